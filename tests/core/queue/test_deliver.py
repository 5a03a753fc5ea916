"""Delivery: credits, turns and limits decide which subscription receives a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from tests.core.driving import QueueDriver, body_of, record_of

IDS = [str(n) for n in range(1, 11)]


class TestCredit:
    def test_nothing_is_delivered_without_credit(self) -> None:
        bench = QueueDriver()
        bench.subscribe("a")
        bench.put("a", *IDS)
        assert bench.deliveries == []
        assert bench.state("a") == (10, 0, 0)

    @pytest.mark.promise("The document's testing strategy", "Unit: subscribe")
    @pytest.mark.promise("Delivery", "credits add up, and a grant over the cap is rejected as a whole")
    def test_grants_add_up_and_each_delivery_uses_one(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 2)
        bench.grant(consumer, 3)
        bench.put("a", *IDS)
        assert bench.ids() == IDS[:5]
        assert (consumer.credit, consumer.granted, consumer.delivered) == (0, 5, 5)

    def test_an_ack_a_nack_and_an_expiry_give_no_credit_back(self) -> None:
        bench = QueueDriver(Policy(lease_us=1_000_000))
        consumer = bench.subscribe("a", 3)
        bench.put("a", *IDS)
        bench.ack(consumer, "1")
        bench.nack(consumer, "2")
        bench.advance(1_000)
        assert bench.ids() == ["1", "2", "3"]
        assert consumer.credit == 0

    @pytest.mark.parametrize("n", [0, -1, -(10**30)])
    def test_a_grant_of_less_than_one_is_refused(self, n: int) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 5)
        refusal = bench.machine.grant(bench.now, consumer, n)
        assert refusal is not None
        assert refusal.code == "InvalidCredit"
        assert (consumer.credit, consumer.granted) == (5, 5)

    @pytest.mark.promise("Delivery", "credits add up, and a grant over the cap is rejected as a whole")
    def test_a_grant_over_the_cap_is_refused_whole(self) -> None:
        bench = QueueDriver(limits=Limits(credit_max=10))
        consumer = bench.subscribe("a", 6)
        refusal = bench.machine.grant(bench.now, consumer, 5)
        assert refusal is not None
        assert refusal.code == "InvalidCredit"
        assert consumer.credit == 6
        bench.grant(consumer, 4)
        assert consumer.credit == 10

    def test_credit_dies_with_its_subscription(self) -> None:
        bench = QueueDriver()
        bench.unsubscribe(bench.subscribe("a", 5))
        bench.subscribe("a")
        bench.put("a", "1")
        assert bench.deliveries == []

    def test_automatic_credit_keeps_the_window(self) -> None:
        bench = QueueDriver(Policy(lease_us=60_000_000))
        consumer = bench.subscribe("a", auto=2)
        bench.put("a", *IDS)
        assert bench.ids() == ["1", "2"]
        bench.ack(consumer, "1")
        bench.nack(consumer, "2", 600_000)
        assert bench.ids() == ["3", "4"]
        bench.term(consumer, "3")
        assert bench.ids() == ["5"]
        bench.advance(60_000)
        assert bench.ids() == ["6", "7"]
        assert consumer.credit + len(consumer.leases) == 2

    def test_a_late_ack_does_not_widen_the_automatic_window(self) -> None:
        bench = QueueDriver(Policy(lease_us=60_000_000, late_ack="accept"))
        consumer = bench.subscribe("a", auto=1)
        bench.put("a", "1", "2", "3")
        bench.advance(60_000)
        assert bench.ids() == ["1", "2"]
        assert bench.ack(consumer, "1") == []
        assert consumer.credit + len(consumer.leases) == 1


class TestOrder:
    @pytest.mark.promise(
        "Invariants",
        "3: first deliveries are in order, a record has one holder, and a late settle has no effect on another lease",
    )
    def test_first_deliveries_follow_the_numbers(self) -> None:
        bench = QueueDriver()
        bench.put("a", *IDS)
        bench.subscribe("a", 3, label="x")
        bench.subscribe("a", 7, label="y")
        assert bench.seqs == list(range(1, 11))

    @pytest.mark.promise("Delivery", "a redelivery goes to the tail or the head, as configured")
    def test_by_default_what_comes_back_goes_to_the_tail(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1", "2", "3")
        bench.nack(consumer, "1")
        bench.grant(consumer, 3)
        assert bench.deliveries == [("c", "1", 1), ("c", "2", 1), ("c", "3", 1), ("c", "1", 2)]
        assert bench.seqs == [1, 2, 3, 1]

    @pytest.mark.promise("Delivery", "a redelivery goes to the tail or the head, as configured")
    def test_with_head_the_smallest_number_comes_first(self) -> None:
        bench = QueueDriver(Policy(redelivery="head", lease_us=5_000_000))
        consumer = bench.subscribe("a", 3)
        bench.put("a", "1", "2", "3", "4")
        bench.nack(consumer, "3")
        bench.nack(consumer, "1")
        bench.grant(consumer, 3)
        assert bench.ids() == ["1", "2", "3", "1", "3", "4"]

    def test_with_head_an_expired_lease_goes_before_newer_ones(self) -> None:
        bench = QueueDriver(Policy(redelivery="head", lease_us=5_000_000))
        consumer = bench.subscribe("a", 2)
        bench.put("a", "1", "2", "3")
        bench.advance(5_000)
        bench.grant(consumer, 3)
        assert bench.ids() == ["1", "2", "1", "2", "3"]

    def test_one_lease_at_a_time_gives_strict_processing_order(self) -> None:
        bench = QueueDriver(Policy(max_inflight=1))
        one = bench.subscribe("a", 5, label="x")
        two = bench.subscribe("a", 5, label="y")
        bench.put("a", "1", "2", "3")
        assert bench.deliveries == [("x", "1", 1)]
        bench.ack(one, "1")
        assert bench.deliveries[1:] == [("y", "2", 1)]
        bench.nack(two, "2")
        assert len(bench.deliveries) == 3
        assert bench.state("a")[1] == 1


class TestFairness:
    @pytest.mark.promise("Delivery", "subscriptions are served round-robin")
    def test_a_thousand_credits_do_not_drain_past_single_ones(self) -> None:
        bench = QueueDriver()
        bench.subscribe("a", 1_000, label="greedy")
        bench.subscribe("a", 1, label="modest 1")
        bench.subscribe("a", 1, label="modest 2")
        bench.put("a", *IDS)
        assert [label for label, _, _ in bench.deliveries[:3]] != ["greedy"] * 3
        got = {label: id_ for label, id_, _ in bench.deliveries if label != "greedy"}
        assert got == {"modest 1": "2", "modest 2": "3"}

    @pytest.mark.promise("Delivery", "subscriptions are served round-robin")
    def test_single_credits_share_evenly_without_starvation(self) -> None:
        bench = QueueDriver()
        consumers = [bench.subscribe("a", 1, label=str(n)) for n in range(5)]
        for n in range(50):
            bench.put("a", f"e{n}")
            label, id_, _ = bench.deliveries[-1]
            bench.ack(consumers[int(label)], id_)
            bench.grant(consumers[int(label)], 1)
        counts = [sum(label == str(n) for label, _, _ in bench.deliveries) for n in range(5)]
        assert counts == [10] * 5

    def test_who_gets_credit_again_goes_to_the_back(self) -> None:
        bench = QueueDriver()
        first = bench.subscribe("a", 1, label="first")
        bench.subscribe("a", 1, label="second")
        bench.put("a", "1")
        bench.grant(first, 1)
        bench.put("a", "2")
        bench.put("a", "3")
        assert [label for label, _, _ in bench.deliveries] == ["first", "second", "first"]


class TestRoom:
    def test_no_more_is_leased_than_the_link_has_room_for(self) -> None:
        bench = QueueDriver(Policy(lease_us=1_000_000), limits=Limits(outbox_max=100))
        consumer = bench.subscribe("a", 10)
        bench.put("a", "1", "2")
        assert bench.ids() == ["1"]
        assert (consumer.credit, bench.link.stalled) == (9, True)
        assert bench.state("a") == (1, 1, 0)
        bench.machine.writable(bench.now, bench.link)
        bench.apply()
        assert bench.ids() == ["2"]

    def test_the_lease_clock_starts_with_the_room(self) -> None:
        bench = QueueDriver(Policy(lease_us=1_000_000), limits=Limits(outbox_max=100))
        consumer = bench.subscribe("a", 10)
        bench.put("a", "1", "2")
        bench.ack(consumer, "1")
        bench.advance(900)
        bench.machine.writable(bench.now, bench.link)
        bench.apply()
        assert bench.held(consumer, "2").deadline_us == bench.us + 1_000_000

    def test_a_full_link_does_not_stop_another(self) -> None:
        bench = QueueDriver(limits=Limits(outbox_max=100))
        bench.subscribe("a", 10, label="full")
        bench.subscribe("a", 10, label="free", link=bench.connect())
        bench.put("a", "1", "2", "3")
        assert [label for label, _, _ in bench.deliveries] == ["full", "free"]
        bench.machine.writable(bench.now, bench.link)
        bench.apply()
        assert bench.deliveries[-1] == ("full", "3", 1)

    def test_a_large_record_passes_when_there_is_any_room(self) -> None:
        bench = QueueDriver(limits=Limits(outbox_max=10))
        bench.subscribe("a", 1)
        bench.offer("a", record_of("1", "x" * 1_000))
        bench.commit()
        assert bench.ids() == ["1"]


class TestPull:
    def test_takes_what_is_there_up_to_its_count(self) -> None:
        bench = QueueDriver()
        bench.put("a", *IDS)
        bench.pull("a", 4)
        assert bench.ids() == IDS[:4]
        assert bench.machine.waiting_pulls == 0

    def test_answers_at_once_without_a_wait(self) -> None:
        bench = QueueDriver()
        bench.pull("a")
        assert len(bench.empty_pulls) == 1
        assert bench.machine.consumers == {}

    def test_waits_and_then_takes_the_first(self) -> None:
        bench = QueueDriver()
        bench.pull("a", 5, wait_ms=1_000)
        bench.advance(500)
        bench.put("a", "1", "2")
        assert bench.ids() == ["1", "2"]
        bench.advance(10_000)
        assert bench.empty_pulls == []

    def test_ends_empty_when_its_wait_is_over(self) -> None:
        bench = QueueDriver()
        bench.pull("a", 5, wait_ms=1_000)
        bench.advance(999)
        assert bench.empty_pulls == []
        bench.advance(1)
        assert bench.empty_pulls == ["pull"]
        bench.put("a", "1")
        assert bench.ids() == []

    def test_its_leases_outlive_its_link(self) -> None:
        bench = QueueDriver(Policy(lease_us=1_000_000))
        bench.put("a", "1")
        bench.pull("a")
        bench.disconnect(bench.link)
        assert bench.state("a") == (0, 1, 0)
        bench.advance(1_000)
        assert bench.state("a") == (1, 0, 0)
        assert bench.machine.consumers == {}

    def test_a_waiting_pull_ends_with_its_link(self) -> None:
        bench = QueueDriver()
        bench.pull("a", wait_ms=1_000)
        bench.disconnect(bench.link)
        bench.put("a", "1")
        assert bench.state("a") == (1, 0, 0)
        assert (bench.machine.waiting_pulls, bench.machine.consumers) == (0, {})

    def test_waiting_pulls_are_bounded(self) -> None:
        bench = QueueDriver(limits=Limits(waiters_max=2))
        bench.pull("a", wait_ms=1_000)
        bench.pull("b", wait_ms=1_000)
        refusal = bench.machine.pull(bench.now, bench.link, "c", 1, 1_000_000)
        assert isinstance(refusal, Refusal)
        assert refusal.code == "QuotaExceeded"

    def test_pulls_and_subscriptions_take_turns(self) -> None:
        bench = QueueDriver()
        bench.subscribe("a", 5)
        bench.pull("a", 2, wait_ms=1_000)
        bench.put("a", "1", "2", "3", "4")
        assert [label for label, _, _ in bench.deliveries].count("pull") == 2


class TestLinks:
    def test_connections_are_bounded(self) -> None:
        bench = QueueDriver(limits=Limits(links_max=2))
        link = bench.connect()
        refusal = bench.machine.connect(link.principal, None)
        assert isinstance(refusal, Refusal)
        assert refusal.code == "QuotaExceeded"
        bench.disconnect(link)
        bench.connect()

    def test_subscriptions_of_a_connection_are_bounded(self) -> None:
        bench = QueueDriver(limits=Limits(subscriptions_max=2))
        first = bench.subscribe("a")
        bench.subscribe("a")
        refusal = bench.machine.subscribe(bench.now, bench.link, "a")
        assert isinstance(refusal, Refusal)
        assert refusal.code == "QuotaExceeded"
        bench.unsubscribe(first)
        bench.subscribe("a")


def test_one_connection_cannot_use_up_all_waiting_pulls() -> None:
    bench = QueueDriver(limits=Limits(subscriptions_max=3))
    for _ in range(3):
        bench.pull("a", wait_ms=1_000)
    refusal = bench.machine.pull(bench.now, bench.link, "a", 1, 1_000_000)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "QuotaExceeded"
    other = bench.connect()
    assert not isinstance(bench.machine.pull(bench.now, other, "a", 1, 1_000_000), Refusal)


def test_while_draining_nothing_is_delivered_but_leases_settle() -> None:
    bench = QueueDriver(Policy(lease_us=1_000_000))
    consumer = bench.subscribe("a", 1)
    bench.put("a", "1", "2")
    bench.pull("b", wait_ms=60_000)
    machine: QueueMachine = bench.machine
    machine.drain(bench.now)
    bench.apply()
    assert bench.empty_pulls == ["pull"], "a waiting pull is answered"
    bench.grant(consumer, 5)
    assert bench.ids() == ["1"]
    assert bench.ack(consumer, "1") == []
    assert machine.leased == 0
    assert isinstance(machine.subscribe(bench.now, bench.link, "a"), Refusal)
    assert isinstance(machine.pull(bench.now, bench.link, "a", 1, 0), Refusal)


@pytest.mark.promise("The document's testing strategy", "Property: no delivery at zero credit")
@pytest.mark.promise("Invariants", "1: nothing is delivered at zero credit")
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 4)),
            st.tuples(st.just("grant"), st.integers(0, 2)),
            st.tuples(st.just("settle"), st.integers(0, 8)),
            st.tuples(st.just("wait"), st.integers(1, 40_000)),
        ),
        max_size=40,
    )
)
def test_never_more_deliveries_than_credit_and_first_ones_in_order(steps: list[tuple[str, int]]) -> None:
    bench = QueueDriver()
    consumers = [bench.subscribe("a", label=str(n)) for n in range(3)]
    count = 0
    for verb, n in steps:
        if verb == "put":
            bench.put("a", *(f"e{count + k}" for k in range(n)))
            count += n
        elif verb == "grant":
            bench.grant(consumers[n], n + 1)
        elif verb == "wait":
            bench.advance(n)
        else:
            held = [(c, r) for c in consumers for r in c.leases.values()]
            if held:
                consumer, record = held[n % len(held)]
                if n % 2:
                    bench.ack(consumer, record.id)
                else:
                    bench.nack(consumer, record.id)
        for consumer in consumers:
            assert consumer.delivered <= consumer.granted
    firsts = [seq for seq, (_, _, attempt) in zip(bench.seqs, bench.deliveries, strict=True) if attempt == 1]
    assert firsts == sorted(set(firsts))
    ready = bench.channel("a").ready
    assert not ready or all(consumer.credit == 0 for consumer in consumers)
    assert bench.machine.bytes == sum(len(body_of(id_)) for id_ in bench.channel("a").live)
