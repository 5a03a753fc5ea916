"""A subscribe socket in front of several cells: one leg, whose messages pass unchanged."""

from __future__ import annotations

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS, Principal
from penstock.dialects.courier.sessions.front.legs import LegHello, LegOwner
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery
from penstock.server.courier.front import SocketFrontSession, open_front
from penstock.server.engine.connections import Connection
from tests.dialects.courier.talking import Broker, ListWire


class Cells:
    """One leg that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.reads: list[int] = []
        self.who: list[str] = []
        self.is_closed = False
        self.owner: LegOwner

    def open(self, shard: int, hello: LegHello, owner: LegOwner, query: SubscribeQuery | None = None) -> Cells:
        self.owner = owner
        return self

    def send(self, lines: bytes) -> None:
        self.sent.append(lines)

    def read(self, size: int) -> None:
        self.reads.append(size)

    def identify(self, principal: Principal, agent: str | None) -> None:
        self.who.append(principal.name)

    def close(self) -> None:
        self.is_closed = True


def opened() -> tuple[Broker, Cells, ListWire, Connection, SocketFrontSession]:
    broker, cells, wire = Broker(), Cells(), ListWire()
    session = SocketFrontSession(cells, 3, SubscribeQuery("jobs"))  # type: ignore[arg-type]
    connection = open_front(broker.runtime, session, wire, ANONYMOUS, "127.0.0.1")
    assert isinstance(connection, Connection)
    return broker, cells, wire, connection, session


def test_messages_pass_both_ways_and_count_until_they_are_read() -> None:
    broker, cells, wire, connection, session = opened()
    connection.received(b'{"credit":1}')
    cells.owner.arrived([b"one", b"two"])
    broker.run()
    assert (cells.sent, wire.writes, cells.reads) == ([b'{"credit":1}'], [[b"one", b"two"]], [6])
    connection.congested(True)
    cells.owner.arrived([b"more"])
    assert cells.reads == [6]
    connection.congested(False)
    assert cells.reads == [6, 4]
    session.identified_as()
    assert cells.who == ["anonymous"]
    connection.lost()
    cells.owner.arrived([b"late"])
    assert cells.is_closed


def test_a_held_leg_holds_the_socket_and_its_end_closes_it() -> None:
    broker, cells, wire, _, _ = opened()
    cells.owner.held(True)
    broker.run()
    cells.owner.held(False)
    broker.run()
    assert wire.holds == [True, False]
    cells.owner.ended(1013, "Unreachable", Refusal("Unreachable", "down"))
    broker.run()
    assert wire.closed == (1013, "Unreachable")
    assert b"down" in wire.writes[-1][0]


def test_a_drained_socket_says_so() -> None:
    broker, _, wire, connection, _ = opened()
    broker.runtime.peers.dismiss(connection, Refusal("Draining", "the server is shutting down"))
    broker.run()
    assert wire.closed == (1001, "Draining")
