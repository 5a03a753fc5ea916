"""The port of Control v1: TCP or a Unix socket, and who may connect there."""

from __future__ import annotations

import asyncio

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.dialects.courier.sessions.control.runs import error_line
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.front.legs import LegOpener
from penstock.server.auth.tokens import UNIX_PEER, Guard, TokenStore
from penstock.server.courier.frame_recorder import Recorder, open_control
from penstock.server.engine.admission import AdmissionControl
from penstock.server.engine.connections import Connection
from penstock.server.engine.runtime import Runtime
from penstock.server.files.addresses import Control, HostPort, is_loopback
from penstock.server.logging import logs
from penstock.transports.byte_streams import listen_tcp, listen_unix
from penstock.transports.transport import ByteStreamTransport


class ControlListener:
    """Accepts Control v1 connections."""

    def __init__(self, runtime: Runtime, tokens: TokenStore, guard: Guard, admission: AdmissionControl) -> None:
        self._runtime = runtime
        self._tokens = tokens
        self._guard = guard
        self._admission = admission
        self.recorder: Recorder | None = None
        self.cells: LegOpener | None = None
        """Set where several cells hold the streams."""
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
        connection = open_control(runtime, self.recorder, wire, principal, peer, self.cells)
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
