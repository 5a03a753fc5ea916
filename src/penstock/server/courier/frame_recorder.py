"""The frame recorder: writes every Control v1 line, in and out, to a file as JSON lines.

    {"ts":"2026-01-01T00:00:00.000Z","dir":"in","frame":{"type":"ping"},"link":7}

For debugging what two programs sent each other. A thread writes the file; the bytes that wait for it are bounded, and
further frames are dropped and counted, so a slow disk never delays a peer. Tokens are hidden unless the config says
otherwise; of a line that is not JSON only the length is written, because it could hold a token anywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.scopes import UNAUTHENTICATED, Principal
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.front.legs import LegOpener
from penstock.dialects.courier.sessions.front.session import FrontSession
from penstock.server.courier.front import open_front
from penstock.server.engine.connections import Connection, Wire
from penstock.server.engine.runtime import Runtime
from penstock.server.files.line_writer import LineWriter, RotatingFile

HIDDEN = "[hidden]"
FRAME_COST = 128
"""Bytes that a waiting frame takes in addition to its text."""
CLOSE_S = 2.0
"""How long a stopping server waits for the last frames."""

_Frame = tuple[int, str, int, bytes]


class Recorder(LineWriter[_Frame]):
    """One file of frames."""

    def __init__(self, path: str, *, redact: bool, waiting_max: Callable[[], int]) -> None:
        self._redact = redact
        self._bytes_max = waiting_max
        super().__init__(
            RotatingFile(Path(path)),
            self._format,
            waiting_max=sys.maxsize,
            waiting_bytes_max=waiting_max(),
            linger_s=0,
            thread="penstock-recorder",
            close_s=CLOSE_S,
            report=None,
        )

    def record(self, wall_us: int, direction: str, link: int, line: bytes) -> None:
        """Write one line, if there is room."""
        self._waiting_bytes_max = self._bytes_max()  # a reload may change it
        self.put([(wall_us, direction, link, line)], FRAME_COST + len(line))

    def _format(self, item: _Frame) -> bytes:
        wall_us, direction, link, line = item
        row: dict[str, Any] = {"ts": rfc3339(wall_us), "dir": direction}
        try:
            frame = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            frame, row["bytes"] = None, len(line)
        if self._redact and isinstance(frame, dict) and "token" in frame:
            frame["token"] = HIDDEN
        return msgspec.json.encode({**row, "frame": frame, "link": link})


class RecordedSession(ControlSession):
    """A Control v1 session that records its input."""

    def __init__(self, runtime: RuntimePort, recorder: Recorder, *, token_needed: bool) -> None:
        super().__init__(runtime, token_needed=token_needed)
        self._recorder = recorder
        self._half = b""

    def receive(self, now: Now, data: bytes) -> None:
        *lines, half = data.split(b"\n")
        if lines:
            lines[0] = self._half + lines[0]
            self._half = half
        elif len(self._half) + len(half) <= self._line_max:  # the session refuses a longer line
            self._half += half
        for line in lines:
            if line.strip():
                self._recorder.record(now.wall_us, "in", self.link.no, line)
        super().receive(now, data)


class RecordedWire(msgspec.Struct, eq=False):
    """A transport that records its output."""

    _wire: Wire
    _session: ControlSession
    _recorder: Recorder
    _now: Callable[[], Now]

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
    runtime: Runtime,
    recorder: Recorder | None,
    wire: Wire,
    principal: Principal | None,
    peer: str,
    cells: LegOpener | None = None,
) -> Connection | Refusal:
    """A Control v1 connection, recorded if configured; without a principal it must send `hello` first."""
    session: ControlSession
    if cells is not None:
        front = FrontSession(runtime, cells, token_needed=principal is None)
        return open_front(runtime, front, wire, principal or UNAUTHENTICATED, peer)
    if recorder is None:
        session = ControlSession(runtime, token_needed=principal is None)
    else:
        session = RecordedSession(runtime, recorder, token_needed=principal is None)
        wire = RecordedWire(wire, session, recorder, runtime.scheduler.now)
    return runtime.peers.open(session, wire, principal or UNAUTHENTICATED, peer)
