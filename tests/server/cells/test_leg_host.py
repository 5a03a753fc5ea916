"""Legs at their cell: ordinary connections whose bytes count until the client has taken them."""

from __future__ import annotations

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.front.legs import LegHello
from penstock.server.cells.leg_host import HIGH_WATER, HostedLeg, LegWire
from penstock.server.engine.connections import Connection
from tests.dialects.courier.talking import Broker

HELLO = LegHello(ANONYMOUS, "127.0.0.1", None, "-3")


class Owner:
    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.holds: list[bool] = []
        self.end: tuple[int, str, Refusal | None] | None = None

    def arrived(self, messages: list[bytes]) -> None:
        self.messages += messages

    def held(self, on: bool) -> None:
        self.holds.append(on)

    def ended(self, code: int, reason: str, refusal: Refusal | None = None) -> None:
        self.end = (code, reason, refusal)


def test_a_leg_makes_up_labels_with_its_suffix() -> None:
    broker, owner = Broker(), Owner()
    leg = HostedLeg(broker.runtime, HELLO, owner)
    leg.send(b'{"type":"subscribe","stream":"s","reqId":1}\n')
    broker.run()
    assert owner.messages == [b'{"type":"ok","reqId":1,"result":{"subId":"s1-3"}}\n']
    leg.close()
    assert len(broker.runtime.peers) == 0


def test_a_cell_that_refuses_a_leg_says_why() -> None:
    broker, owner = Broker(limits=Limits(links_max=0)), Owner()
    leg = HostedLeg(broker.runtime, HELLO, owner)
    leg.send(b'{"type":"ping"}\n')
    broker.run()
    assert owner.end is not None
    assert owner.end[2] is not None and owner.end[2].code == "QuotaExceeded"
    leg.close()


def test_unread_bytes_pause_the_connection_until_they_are_read() -> None:
    broker, owner = Broker(), Owner()
    session = broker.control(ANONYMOUS).session
    wire = LegWire(owner)
    connection = broker.runtime.peers.find(session)
    assert isinstance(connection, Connection)
    wire.connection = connection
    wire.send([b"x" * (HIGH_WATER + 1)])
    assert connection.stuck
    wire.read(HIGH_WATER)
    assert not connection.stuck
    wire.close(1000, "a")
    wire.abort()
    assert owner.end == (1000, "a", None)
