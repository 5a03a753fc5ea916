"""The frame recorder: every Control v1 line that comes in or goes out, as JSON lines in a file.

    {"ts":"2026-01-01T00:00:00.000Z","dir":"in","frame":{"type":"ping"},"link":7}

For finding out what two programs really said. Writing happens on a thread of its own; what waits for the disk is bounded in
bytes, and further frames are dropped and counted, so a slow disk never holds a peer. Tokens are left out unless the config
asks for them; a line that is not JSON could hold one anywhere, so then only its length is written.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, BinaryIO

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.scopes import NOBODY, Principal
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.server.engine.connections import Connection, Wire
from penstock.server.engine.runtime import Runtime

HIDDEN = "[hidden]"
FRAME_COST = 128
"""Bytes that a waiting frame takes beside its text."""
CLOSE_S = 2.0
"""How long the end of the server waits for the last frames."""

_Frame = tuple[int, str, int, bytes]


class Recorder:
    """One file of frames."""

    def __init__(self, path: str, *, redact: bool, waiting_max: Callable[[], int]) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "ab")
        self._redact = redact
        self._waiting_max = waiting_max
        self._put = 0
        self._taken = 0
        """Bytes given to the thread, and taken by it: each number has one writer."""
        self.dropped = 0
        """Frames that did not fit, or that the disk refused."""
        self._queue: queue.SimpleQueue[_Frame | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="penstock-recorder", daemon=True)
        self._thread.start()

    def record(self, wall_us: int, direction: str, link: int, line: bytes) -> None:
        """Have one line written, if there is room."""
        cost = FRAME_COST + len(line)
        if self._put - self._taken + cost > self._waiting_max():
            self.dropped += 1
            return
        self._put += cost
        self._queue.put((wall_us, direction, link, line))

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._file.close()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._file.write(self._line(*item))
                if self._queue.empty():
                    self._file.flush()
            except OSError:
                self.dropped += 1  # a full disk: the next frame may do better
            self._taken += FRAME_COST + len(item[3])

    def _line(self, wall_us: int, direction: str, link: int, line: bytes) -> bytes:
        moment = datetime.fromtimestamp(wall_us / 1_000_000, UTC).isoformat(timespec="milliseconds")
        row: dict[str, Any] = {"ts": moment.replace("+00:00", "Z"), "dir": direction}
        try:
            frame = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            frame, row["bytes"] = None, len(line)
        if self._redact and isinstance(frame, dict) and "token" in frame:
            frame["token"] = HIDDEN
        return msgspec.json.encode({**row, "frame": frame, "link": link}) + b"\n"


class RecordedSession(ControlSession):
    """A Control v1 session that is written down."""

    def __init__(self, desk: RuntimePort, recorder: Recorder, *, token_needed: bool) -> None:
        super().__init__(desk, token_needed=token_needed)
        self._recorder = recorder
        self._half = b""

    def receive(self, now: Now, data: bytes) -> None:
        *lines, half = data.split(b"\n")
        if lines:
            lines[0] = self._half + lines[0]
            self._half = half
        elif len(self._half) + len(half) <= self._line_max:  # more is refused, and is no line
            self._half += half
        for line in lines:
            if line.strip():
                self._recorder.record(now.wall_us, "in", self.link.no, line)
        super().receive(now, data)


class RecordedWire:
    """A wire whose messages are written down as they leave."""

    def __init__(
        self, wire: Wire, session: ControlSession, recorder: Recorder, now: Callable[[], Now]
    ) -> None:
        self._wire = wire
        self._session = session
        self._recorder = recorder
        self._now = now

    def send(self, messages: list[bytes]) -> None:
        wall_us = self._now().wall_us
        for message in messages:
            for line in message.split(b"\n"):
                if line:
                    self._recorder.record(wall_us, "out", self._session.link.no, line)
        self._wire.send(messages)

    @property
    def buffered(self) -> int:
        return self._wire.buffered

    def hold(self, on: bool) -> None:
        self._wire.hold(on)

    def close(self, code: int, reason: str) -> None:
        self._wire.close(code, reason)

    def abort(self) -> None:
        self._wire.abort()


def open_control(
    runtime: Runtime, recorder: Recorder | None, wire: Wire, principal: Principal | None, peer: str
) -> Connection | Refusal:
    """A Control v1 connection, written down where that is asked for; without a principal it must say hello first."""
    session: ControlSession
    if recorder is None:
        session = ControlSession(runtime, token_needed=principal is None)
    else:
        session = RecordedSession(runtime, recorder, token_needed=principal is None)
        wire = RecordedWire(wire, session, recorder, runtime.scheduler.now)
    return runtime.open(session, wire, principal or NOBODY, peer)
