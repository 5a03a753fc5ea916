"""Legs of a client at cells: gathered lines, marks between chunks, and what happens when a leg ends."""

from __future__ import annotations

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS, Principal
from penstock.dialects.courier.sessions.front.legs import LegHello, LegOwner
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from penstock.dialects.courier.sessions.front.session import FrontSession
from penstock.server.courier.front import open_front
from penstock.server.engine.connections import Connection
from tests.dialects.courier.talking import Broker, ListWire

A, B = shard_of_stream("jobs/a"), shard_of_stream("jobs/b")
STATS = b'{"type":"stats","stream":"%b","reqId":%d}'


class Leg:
    def __init__(self, owner: LegOwner) -> None:
        self.owner = owner
        self.sent: list[bytes] = []
        self.reads: list[int] = []
        self.who: list[str] = []
        self.sent_before: list[int] = []
        """How much was sent before each change of the client's rights."""
        self.is_closed = False

    def send(self, lines: bytes) -> None:
        self.sent.append(lines)

    def read(self, size: int) -> None:
        self.reads.append(size)

    def identify(self, principal: Principal, agent: str | None) -> None:
        self.who.append(principal.name)
        self.sent_before.append(len(self.sent))

    def close(self) -> None:
        self.is_closed = True


class Front:
    """A front whose legs a test plays."""

    owners = None

    def __init__(self, *, token_needed: bool = False) -> None:
        self.broker, self.wire = Broker(), ListWire()
        self.legs: dict[int, Leg] = {}
        self.session = FrontSession(self.broker.runtime, self, token_needed=token_needed)
        connection = open_front(self.broker.runtime, self.session, self.wire, ANONYMOUS, "127.0.0.1")
        assert isinstance(connection, Connection)
        self.connection = connection

    def open(self, shard: int, hello: LegHello, owner: LegOwner) -> Leg:
        self.legs[shard] = Leg(owner)
        return self.legs[shard]

    def say(self, *lines: bytes) -> None:
        self.connection.received(b"".join(line + b"\n" for line in lines))

    def written(self) -> bytes:
        self.broker.run()
        return b"".join(message for write in self.wire.writes for message in write)

    @property
    def mark(self) -> bytes:
        return self.session._mark_line + b"\n"


def answer(number: int) -> bytes:
    return b'{"type":"ok","reqId":%d,"result":{}}\n' % number


def test_a_connection_with_one_leg_needs_no_marks() -> None:
    front = Front()
    front.say(STATS % (b"jobs/a", 1), STATS % (b"jobs/a", 2))
    assert front.legs[A].sent == [STATS % (b"jobs/a", 1) + b"\n" + STATS % (b"jobs/a", 2) + b"\n"]
    front.legs[A].owner.arrived([answer(1), answer(2)])
    assert front.written() == answer(1) + answer(2)
    assert front.legs[A].reads == [len(answer(1)) * 2]


def test_a_mark_ends_a_chunk_when_the_next_line_goes_elsewhere() -> None:
    front = Front()
    front.say(STATS % (b"jobs/a", 1), STATS % (b"jobs/b", 2))
    assert front.legs[A].sent[0].endswith(front.mark) and front.mark not in front.legs[B].sent[0]
    front.legs[B].owner.arrived([answer(2), b'{"type":"deliver"}\n'])
    assert front.written() == b'{"type":"deliver"}\n'
    front.legs[A].owner.arrived([answer(1), front.session._mark])
    assert front.written().endswith(answer(1) + answer(2))


def test_a_client_that_does_not_read_keeps_bytes_unread_at_its_legs() -> None:
    front = Front()
    front.say(STATS % (b"jobs/a", 1))
    front.connection.congested(True)
    front.legs[A].owner.arrived([answer(1)])
    assert front.legs[A].reads == []
    front.connection.congested(False)
    assert front.legs[A].reads == [len(answer(1))]


def test_held_legs_hold_the_client() -> None:
    front = Front()
    front.say(STATS % (b"jobs/a", 1), STATS % (b"jobs/b", 2))
    for on in (True, False):
        for shard in (A, B):
            front.legs[shard].owner.held(on)
        front.broker.run()
    assert front.wire.holds == [True, False]


def test_a_refused_leg_closes_the_connection_with_its_reason() -> None:
    front = Front()
    front.say(STATS % (b"jobs/a", 1))
    front.legs[A].owner.ended(1013, "QuotaExceeded", Refusal("QuotaExceeded", "too many"))
    assert b"too many" in front.written()
    assert front.wire.closed == (1013, "QuotaExceeded")


def test_a_leg_that_ends_while_another_one_owes_answers_closes_the_connection_after_them() -> None:
    front = Front()
    front.say(STATS % (b"jobs/a", 1), STATS % (b"jobs/b", 2))
    front.legs[A].owner.arrived([answer(1), front.session._mark])
    front.legs[A].owner.ended(1012, "Moved")  # it owes nothing, and no line follows the one at the other cell
    front.broker.run()
    assert front.wire.closed is None and front.legs[B].sent[-1] == front.mark
    front.legs[B].owner.arrived([answer(2), front.session._mark])
    assert front.written() == answer(1) + answer(2)
    assert front.wire.closed == (1012, "Moved")


def test_a_client_that_leaves_closes_its_legs() -> None:
    front = Front()
    front.say(STATS % (b"jobs/a", 1))
    front.session.identified_as()
    front.connection.lost()
    front.legs[A].owner.arrived([answer(1)])
    front.legs[A].owner.ended(1000, "late")
    assert (front.legs[A].who, front.legs[A].is_closed) == (["anonymous"], True)


def test_an_unordered_client_is_closed_after_the_answers_that_are_due() -> None:
    front = Front()
    front.say(b'{"type":"hello","unordered":true}', STATS % (b"jobs/a", 1))
    front.broker.runtime.peers.dismiss(front.connection, Refusal("Draining", "over"))
    front.broker.run()
    assert front.wire.closed is None and front.legs[A].sent[-1] == front.mark
    front.legs[A].owner.arrived([answer(1), front.session._mark])
    front.broker.run()
    assert front.wire.closed is not None


def test_lines_before_a_hello_are_sent_before_the_rights_change() -> None:
    front = Front()
    front.say(STATS % (b"jobs/a", 1), b'{"type":"hello","agent":"sam"}', STATS % (b"jobs/a", 2))
    assert front.legs[A].sent_before == [1]
    assert len(front.legs[A].sent) == 2


def test_many_requests_for_all_cells_take_several_turns() -> None:
    front = Front()
    front.say(*[b'{"type":"metrics"}'] * 2_000)
    leg = front.legs[A]
    assert b"".join(leg.sent).count(b"metrics") < 200
    front.broker.run()
    assert b"".join(leg.sent).count(b"metrics") == 2_000


def test_lines_that_waited_for_a_turn_are_sent_without_an_input() -> None:
    front = Front(token_needed=True)
    front.broker.runtime.authenticate = lambda token: ANONYMOUS
    front.say(b'{"type":"hello","token":"t"}', *[STATS % (b"jobs/a", 1) + b" " * 700] * 400)
    front.broker.run()
    assert b"".join(front.legs[A].sent).count(b"stats") == 400
