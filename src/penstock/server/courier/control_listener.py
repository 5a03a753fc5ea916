"""The port of Control v1: TCP or a Unix socket, who may connect there, and the recorder of its lines.

The recorder writes every line, in and out, to a file as JSON lines, to debug what two programs sent each other:

    {"ts":"2026-01-01T00:00:00.000Z","dir":"in","frame":{"type":"ping"},"link":7}

A thread writes the file; the bytes that wait for it are bounded, and further frames are dropped and counted, so a slow disk never delays a
peer. Tokens are hidden unless the config says otherwise; of a line that is not JSON only the length is written, because it could hold a
token anywhere.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.scopes import UNAUTHENTICATED, Principal
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.runs import error_line
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.server.auth.tokens import UNIX_PEER, Guard, TokenStore
from penstock.server.engine.admission import AdmissionControl
from penstock.server.engine.connections import Connection, Wire
from penstock.server.engine.runtime import Runtime
from penstock.server.files.addresses import Control, HostPort, is_loopback
from penstock.server.files.line_writer import LineWriter, RotatingFile
from penstock.server.logging import logs
from penstock.transports.byte_streams import listen_tcp, listen_unix
from penstock.transports.transport import ByteStreamTransport

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
    runtime: Runtime, recorder: Recorder | None, wire: Wire, principal: Principal | None, peer: str
) -> Connection | Refusal:
    """A Control v1 connection, recorded if configured; without a principal it must send `hello` first."""
    session: ControlSession
    if recorder is None:
        session = ControlSession(runtime, token_needed=principal is None)
    else:
        session = RecordedSession(runtime, recorder, token_needed=principal is None)
        wire = RecordedWire(wire, session, recorder, runtime.scheduler.now)
    return runtime.peers.open(session, wire, principal or UNAUTHENTICATED, peer)


class ControlListener:
    """Accepts Control v1 connections."""

    def __init__(self, runtime: Runtime, tokens: TokenStore, guard: Guard, admission: AdmissionControl) -> None:
        self._runtime = runtime
        self._tokens = tokens
        self._guard = guard
        self._admission = admission
        self.recorder: Recorder | None = None
        self._server: asyncio.Server | None = None

    async def start(self, address: Control) -> str | None:
        """Listen; returns the URL that clients use, None without an address."""
        if address is None:
            return None
        if isinstance(address, HostPort):
            host, local = address.host, is_loopback(address.host)
            self._server = await listen_tcp(host, address.port, lambda wire, peer: self._accept(wire, peer, local))
            port = self._server.sockets[0].getsockname()[1]
            return f"tcp://{HostPort(address.host, port)}"
        address.parent.mkdir(parents=True, exist_ok=True)
        self._server = await listen_unix(address, lambda wire, _: self._accept(wire, UNIX_PEER, True))
        return f"unix:{address.absolute()}"

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()

    def _accept(self, wire: ByteStreamTransport, peer: str, local_bind: bool) -> Connection | None:
        """A control connection: anonymous where that is allowed, else waiting for a token."""
        admitted = self._admission.admit(peer, wire.abort)
        if isinstance(admitted, Refusal):
            wire.send([error_line(None, admitted)])
            return None
        wire.admission = admitted
        principal = self._tokens.resolve(None)
        if principal is not None and self._guard.check_peer(peer, local_bind) is not None:
            principal = None
        return self._open(wire, principal, peer)

    def _open(self, wire: ByteStreamTransport, principal: Principal | None, peer: str) -> Connection | None:
        """The connection of an accepted transport; without a principal it must say hello in time."""
        runtime = self._runtime
        connection = open_control(runtime, self.recorder, wire, principal, peer)
        if isinstance(connection, Refusal):
            logs.warning("conn.refused", peer=peer, reason=connection.message)
            wire.send([error_line(None, connection)])
            return None
        session = connection.session
        if wire.admission is not None and isinstance(session, ControlSession):
            wire.needs_token = principal is None
            session.identified = wire.admission.known
        if principal is None:
            deadline_us = runtime.scheduler.now().us + runtime.machine.limits.hello_ms * 1000
            runtime.scheduler.at(deadline_us, lambda: self._expect_hello(connection))
        return connection

    def _expect_hello(self, connection: Connection) -> None:
        if getattr(connection.session, "token_needed", False) and not connection.closed:
            connection.wire.abort()
