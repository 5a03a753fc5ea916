"""The cells' side of legs: at its cell, each leg is an ordinary connection with a Control v1 session.

The wire of such a connection leads to the front. What the client has not read counts as unread here too, so the cell pauses deliveries
and cuts off a reader as it does without a front.
"""

from __future__ import annotations

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.front.legs import LegHello, LegOwner
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery, SubscribeSession
from penstock.server.engine.connections import Connection
from penstock.server.engine.runtime import Runtime

HIGH_WATER = 64 * 1024
"""Unread bytes of a leg at which its deliveries pause, as with a socket."""
LOW_WATER = 16 * 1024
"""Unread bytes at which they go on."""
SHRUNK = Refusal("Forbidden", "the token does not allow a subscription of this connection any more")


class LegSession(ControlSession):
    """The session of a leg."""

    def __init__(self, runtime: RuntimePort, suffix: str) -> None:
        super().__init__(runtime, token_needed=False)
        self._subs.suffix = suffix


class LegWire:
    """The way from a cell to the front."""

    def __init__(self, owner: LegOwner) -> None:
        self._owner = owner
        self.connection: Connection | None = None
        self.buffered = 0
        self._is_closed = False

    def send(self, messages: list[bytes]) -> None:
        self.buffered += sum(map(len, messages))
        self._owner.arrived(messages)
        if self.buffered > HIGH_WATER and self.connection is not None and not self.connection.stuck:
            self.connection.congested(True)

    def read(self, size: int) -> None:
        """The client has taken so many bytes."""
        self.buffered -= size
        if self.buffered <= LOW_WATER and self.connection is not None and self.connection.stuck:
            self.connection.congested(False)

    def hold(self, on: bool) -> None:
        self._owner.held(on)

    def close(self, code: int, reason: str) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._owner.ended(code, reason)

    def abort(self) -> None:
        self.close(1008, "SlowConsumer")


class LegConnection(Connection):
    """A leg as a peer of its cell. Its client may have a leg at every shard, and all their bytes wait for one reader."""

    shares = 4


class HostedLeg:
    """One leg at a cell of this process: a Control v1 connection, or with a query a subscribe socket."""

    def __init__(self, runtime: Runtime, hello: LegHello, owner: LegOwner, query: SubscribeQuery | None = None) -> None:
        self._runtime = runtime
        self._wire = LegWire(owner)
        session: LegSession | SubscribeSession
        session = LegSession(runtime, hello.suffix) if query is None else SubscribeSession(runtime, query)
        opened = runtime.peers.open(
            session, self._wire, hello.principal, hello.peer, is_brief=True, make=LegConnection, agent=hello.agent
        )
        if isinstance(opened, Refusal):
            refusal = opened
            runtime.scheduler.soon(lambda: owner.ended(refusal.kind.close or 1013, refusal.code, refusal))
            return
        self._wire.connection = opened
        if isinstance(session, SubscribeSession):
            session.open(runtime.scheduler.now())
            runtime.peers.touch(opened)

    def send(self, lines: bytes) -> None:
        if self._wire.connection is not None:
            self._wire.connection.received(lines)

    def read(self, size: int) -> None:
        self._wire.read(size)

    def identify(self, principal: Principal, agent: str | None) -> None:
        connection = self._wire.connection
        if connection is None or connection.closed:
            return
        link = connection.link
        allowed = all(principal.allows("subscribe", consumer.channel.name) for consumer in link.consumers)
        if not allowed or not all(principal.allows("read", name) for name in link.taps):
            self._runtime.peers.dismiss(connection, SHRUNK)
        link.principal, link.agent = principal, agent

    def close(self) -> None:
        if self._wire.connection is not None:
            self._wire.connection.lost()
