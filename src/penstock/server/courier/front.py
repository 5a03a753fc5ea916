"""Clients in front of several cells: their connections, which belong to the runtime of the front and hold no streams there."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Link
from penstock.core.scopes import Principal
from penstock.dialects.courier.sessions.front.legs import LegHello, LegPort
from penstock.dialects.courier.sessions.front.session import FrontSession
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery, error_message
from penstock.server.engine.connections import Connection, Wire
from penstock.server.engine.runtime import Runtime

if TYPE_CHECKING:
    from penstock.server.http.services import CellsPort


class SocketFrontSession:
    """A subscribe socket: one leg at the cell of its stream, whose messages pass unchanged."""

    def __init__(self, cells: CellsPort, shard: int, query: SubscribeQuery) -> None:
        self.out: list[bytes] = []
        self.closing: tuple[int, str] | None = None
        self.link: Link
        self.wake: Callable[[], None] = lambda: None
        self._cells = cells
        self._shard = shard
        self._query = query
        self._leg: LegPort
        self._is_held = self._is_stuck = self._is_gone = False
        self._unread = 0

    def open(self) -> None:
        """Open the leg, once the socket is open."""
        hello = LegHello(self.link.principal, self.link.peer, self.link.agent, "")
        self._leg = self._cells.open(self._shard, hello, self, self._query)

    @property
    def answers(self) -> Sized:
        return range(self._is_held * 1_000_000_000)  # more than any bound: the socket is not read

    input_bytes = 0

    def receive(self, now: Now, data: bytes) -> None:
        if self.closing is None:
            self._leg.send(data)

    def drain(self, refusal: Refusal) -> None:
        self.out.append(error_message(refusal))
        self._is_held = False
        self.closing = self.closing or (refusal.kind.close or 1001, refusal.code)

    def release(self) -> None:
        self.wake = self._rest

    def _rest(self) -> None:
        """Nothing is due to a client that is gone."""

    def arrived(self, messages: list[bytes]) -> None:
        if self._is_gone:
            return
        self.out += messages
        self._unread += sum(map(len, messages))
        if not self._is_stuck:
            self._taken()
        self.wake()

    def _taken(self) -> None:
        size, self._unread = self._unread, 0
        if size:
            self._leg.read(size)

    def held(self, on: bool) -> None:
        self._is_held = on
        self.wake()

    def ended(self, code: int, reason: str, refusal: Refusal | None = None) -> None:
        if refusal is not None:
            self.out.append(error_message(refusal))
        self._is_held = False
        self.closing = self.closing or (code, reason)
        self.wake()

    def congested(self, on: bool) -> None:
        self._is_stuck = on
        if not on:
            self._taken()

    def identified_as(self) -> None:
        self._leg.identify(self.link.principal, self.link.agent)

    def gone(self) -> None:
        self._is_gone = True
        self._leg.close()


class FrontConnection(Connection):
    """A client of a front."""

    session: FrontSession | SocketFrontSession

    def congested(self, on: bool) -> None:
        super().congested(on)
        self.session.congested(on)

    def gone(self, now: object) -> None:
        self.session.gone()


def open_front(
    runtime: Runtime,
    session: FrontSession | SocketFrontSession,
    wire: Wire,
    principal: Principal,
    peer: str,
    agent: str | None = None,
) -> Connection | Refusal:
    """Accept a client in front of the cells."""
    made: Any = FrontConnection
    connection = runtime.peers.open(session, wire, principal, peer, make=made, agent=agent)
    if isinstance(connection, Connection):
        opened = connection
        session.wake = lambda: runtime.peers.touch(opened)
        if isinstance(session, SocketFrontSession):
            session.open()
    return connection
