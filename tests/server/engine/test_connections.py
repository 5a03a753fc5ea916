"""Connections: slow peers, back-pressure, and closing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.links import Consumer
from penstock.core.queue.policy import Policy
from tests.dialects.courier.sessions.test_view_feed import Follower
from tests.dialects.courier.talking import Broker, ListWire, envelope, line
from tests.dialects.mew.driving import GatewayDriver
from tests.server.engine.test_runtime import by_hand, enqueues


class TestSlowPeers:
    LIMITS = Limits(outbox_max=1_000, outbox_hard_max=5_000)

    @pytest.mark.promise("Foundations", "every outbox is bounded and has an overflow policy")
    def test_one_that_does_not_read_gets_no_more_and_no_lease_runs(self) -> None:
        broker = Broker(Policy(lease_us=2_000_000), limits=self.LIMITS)
        peer = broker.subscribe("a", credit=100)
        peer.connection.congested(True)
        broker.control().send(enqueues("a", *(f"{n:04}" for n in range(100))))
        broker.run()
        got = len(peer.heard())
        assert 0 < got < 20
        assert broker.counts("a")["q.if"] == got
        (consumer,) = broker.machine.channels["a"].consumers.values()
        assert consumer.credit == 100 - got, "the credit is kept"
        broker.advance(1_999)
        assert peer.heard() == []
        peer.connection.congested(False)
        broker.run()
        assert len(peer.heard()) == 100 - got
        broker.advance(1)
        assert broker.counts("a")["q.timeout"] == got, "only what had been handed over"

    def test_others_go_on(self) -> None:
        broker = Broker(limits=self.LIMITS)
        slow, quick = broker.subscribe("a", credit=100), broker.subscribe("a", credit=100)
        slow.connection.congested(True)
        broker.control().send(enqueues("a", *(f"{n:04}" for n in range(60))))
        broker.run()
        assert len(quick.heard()) > 40

    @pytest.mark.promise("Foundations", "every outbox is bounded and has an overflow policy")
    def test_one_that_reads_no_answers_is_cut_at_the_hard_bound(self) -> None:
        broker = Broker(limits=self.LIMITS)
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=1)
        broker.control().send(enqueues("a", "1"))
        broker.run()
        peer.connection.congested(True)
        peer.wire.buffered = 5_000
        peer.say(type_="ping", reqId=1)
        assert not peer.wire.aborted
        peer.wire.buffered = 5_001
        peer.say(type_="ping", reqId=1)
        assert peer.wire.aborted
        assert broker.runtime.peers.slow_cut == 1
        assert broker.counts("a")["q.depth"] == 1, "what it held goes back at once"

    def test_reading_stops_while_it_owes_us_reading(self) -> None:
        broker = Broker(limits=self.LIMITS)
        peer = broker.control()
        peer.connection.congested(True)
        peer.wire.buffered = 1_001
        peer.say(type_="ping", reqId=1)
        assert peer.wire.holds == [True]
        peer.wire.buffered = 0
        peer.connection.congested(False)
        broker.run()
        assert peer.wire.holds == [True, False]

    def test_reading_stops_while_answers_pile_up(self) -> None:
        broker, journal = by_hand(limits=Limits(answers_max=3))
        peer = broker.control()
        for n in range(5):
            peer.send(line(type_="enqueue", to=f"s{n}", env=envelope("1"), reqId=n))
        broker.run()
        assert peer.wire.holds == [True]
        journal.commit()
        broker.run()
        assert peer.wire.holds == [True, False]
        assert len(peer.heard()) == 5


class TestEnds:
    def test_an_error_is_written_before_the_close(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="hello", version="v9")
        assert len(peer.wire.writes) == 1
        assert peer.wire.closed == (1003, "Unsupported")

    def test_what_was_asked_before_is_answered_before_the_close(self) -> None:
        broker, journal = by_hand()
        peer = broker.control()
        peer.send(enqueues("a", "1") + line(type_="hello", version="v9"))
        broker.run()
        assert peer.wire.closed is None
        journal.commit()
        broker.run()
        assert [frame["type"] for frame in peer.heard()] == ["ok", "error"]
        assert peer.wire.closed is not None

    def test_a_waiting_pull_does_not_put_off_the_close(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="pull", stream="a", waitMs=60_000, reqId="pull")
        heard = peer.say(type_="hello", version="v9")
        assert [(frame["type"], frame["reqId"]) for frame in heard] == [("ok", "pull"), ("error", "hello")]
        assert peer.wire.closed is not None

    def test_one_that_waits_for_its_close_gets_no_deliveries(self) -> None:
        broker, journal = by_hand()
        peer = broker.control()
        peer.send(line(type_="subscribe", stream="a", credit=5) + enqueues("a", "1"))
        peer.send(line(type_="hello", version="v9"))
        broker.run()
        journal.commit()
        broker.run()
        assert [frame["type"] for frame in peer.heard()] == ["ok", "error"]
        assert (broker.counts("a")["q.depth"], broker.counts("a")["q.out"]) == (1, 0)

    def test_a_closed_connection_holds_nothing_and_hears_nothing(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="subscribe", stream="a", credit=5)
        broker.control().send(enqueues("a", "1"))
        broker.run()
        peer.say(type_="hello", version="v9")
        writes = len(peer.wire.writes)
        assert broker.counts("a")["q.depth"] == 1
        broker.control().send(enqueues("a", "2"))
        broker.run()
        peer.send(line(type_="ping", reqId=1))
        broker.run()
        assert len(peer.wire.writes) == writes
        peer.gone()
        assert broker.counts("a")["q.depth"] == 2

    def test_a_lost_connection_gives_back_what_it_held(self) -> None:
        broker = Broker()
        peer, other = broker.subscribe("a", credit=5), broker.subscribe("a")
        broker.control().send(enqueues("a", "1"))
        broker.run()
        other.send({"credit": 1})
        peer.gone()
        assert [frame["attempt"] for frame in other.heard()] == [2]
        peer.gone()

    def test_connections_beyond_the_bound_are_refused(self) -> None:
        broker = Broker(limits=Limits(links_max=1))
        peer = broker.control()
        refusal = broker.runtime.peers.open(peer.session, ListWire(), peer.connection.link.principal, "x")
        assert isinstance(refusal, Refusal)
        assert refusal.code == "QuotaExceeded"


class TestClosing:
    LIMITS = Limits(outbox_max=1_000, outbox_hard_max=5_000)

    @pytest.mark.parametrize("is_stuck", [True, False])
    def test_one_that_has_not_read_much_is_cut_rather_than_closed(self, is_stuck: bool) -> None:
        broker = Broker(limits=self.LIMITS)
        peer = broker.control()
        peer.connection.congested(is_stuck)
        peer.wire.buffered = 1_001
        peer.say(type_="hello", version="v9")
        assert (peer.wire.aborted, peer.wire.closed) == (True, None)
        assert (broker.runtime.peers.slow_cut, broker.runtime.peers.outboxes.total) == (1, 0)

    def test_what_it_has_not_read_counts_until_the_wire_is_empty(self) -> None:
        broker = Broker(limits=self.LIMITS)
        peer = broker.control()
        peer.wire.buffered = 1_000
        peer.say(type_="hello", version="v9")
        assert peer.wire.closed is not None
        assert broker.runtime.peers.outboxes.total == 1_000
        assert broker.runtime.peers.all() == []
        peer.connection.lost()
        assert broker.runtime.peers.outboxes.total == 0

    def test_closed_ones_are_cut_at_the_bound_over_all(self) -> None:
        broker = Broker(limits=Limits(outbox_max=1_000, outbox_hard_max=5_000, outbox_total_max=2_500))
        peers = [broker.control() for _ in range(3)]
        for peer in peers:
            peer.wire.buffered = 1_000
            peer.say(type_="hello", version="v9")
        assert [peer.wire.aborted for peer in peers].count(True) == 1
        assert broker.runtime.peers.outboxes.total == 2_000

    def test_the_hard_bound_holds_while_a_close_waits_for_answers(self) -> None:
        broker, _ = by_hand(limits=self.LIMITS)
        peer = broker.control()
        peer.send(enqueues("a", "1") + line(type_="hello", version="v9"))
        peer.connection.congested(True)
        peer.wire.buffered = 5_001
        broker.run()
        assert peer.wire.aborted


@contextmanager
def without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class TestReleasedMemory:
    """A visit of the cycle collector to 100,000 objects takes 100 ms, so a connection that ends must leave it nothing."""

    @pytest.mark.parametrize("kind", ["control", "subscribe", "live"])
    def test_a_connection_that_ends_leaves_nothing_to_the_cycle_collector(self, kind: str) -> None:
        broker = Broker()
        peer: Any
        if kind == "control":
            peer = broker.control()
            peer.send(b"".join(line(type_="subscribe", stream=f"s{n}", reqId=n, credit=1) for n in range(50)))
            peer.say(type_="follow", view="latestPerAgent", reqId="f")
            peer.say(type_="tap", stream="s1", reqId="t")
            peer.send(enqueues("s2", "1") + line(type_="enqueue", to="s3", env=envelope("2"), reqId=1) + b"{")
        elif kind == "subscribe":
            peer = broker.subscribe("a", credit=3)
        else:
            peer = Follower(broker)
        broker.run()
        peer.wire.writes.clear()
        session, link = weakref.ref(peer.session), id(peer.connection.link)
        with without_collector():
            peer.connection.lost()
            broker.run()
            peer.connection = peer.session = None
            assert session() is None
            left = [each for each in gc.get_objects() if isinstance(each, Consumer) and id(each.link) == link]
            assert len(left) < 5, "a timer that is not due may know one of them"

    def test_a_participant_of_a_space_that_leaves_too(self) -> None:
        driver = GatewayDriver()
        (client,) = driver.joined("p1")
        session = weakref.ref(client.session)
        with without_collector():
            client.gone()
            client.session = client.connection = None  # type: ignore[assignment]
            driver.advance(Limits().join_ms)  # the timer of the join knows the connection
            assert session() is None

    def test_answers_that_wait_for_the_journal_end_with_their_connection(self) -> None:
        broker, journal = by_hand()
        peer = broker.control()
        peer.send(enqueues("a", "1"))
        broker.run()
        session = weakref.ref(peer.session)
        with without_collector():
            peer.gone()
            peer.connection = peer.session = None  # type: ignore[assignment]
            journal.commit()
            broker.run()
            assert session() is None
        assert broker.counts("a")["q.depth"] == 1
