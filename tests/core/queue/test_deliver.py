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
        driver = QueueDriver()
        driver.subscribe("a")
        driver.put("a", *IDS)
        assert driver.deliveries == []
        assert driver.state("a") == (10, 0, 0)

    @pytest.mark.promise("The document's testing strategy", "Unit: subscribe")
    @pytest.mark.promise("Delivery", "credits add up, and a grant over the cap is rejected as a whole")
    def test_grants_add_up_and_each_delivery_uses_one(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 2)
        driver.grant(consumer, 3)
        driver.put("a", *IDS)
        assert driver.ids() == IDS[:5]
        assert (consumer.credit, consumer.granted, consumer.delivered) == (0, 5, 5)

    def test_an_ack_a_nack_and_an_expiry_give_no_credit_back(self) -> None:
        driver = QueueDriver(Policy(lease_us=1_000_000))
        consumer = driver.subscribe("a", 3)
        driver.put("a", *IDS)
        driver.ack(consumer, "1")
        driver.nack(consumer, "2")
        driver.advance(1_000)
        assert driver.ids() == ["1", "2", "3"]
        assert consumer.credit == 0

    @pytest.mark.parametrize("n", [0, -1, -(10**30)])
    def test_a_grant_of_less_than_one_is_refused(self, n: int) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 5)
        refusal = driver.machine.grant(driver.now, consumer, n)
        assert refusal is not None
        assert refusal.code == "InvalidCredit"
        assert (consumer.credit, consumer.granted) == (5, 5)

    @pytest.mark.promise("Delivery", "credits add up, and a grant over the cap is rejected as a whole")
    def test_a_grant_over_the_cap_is_refused_whole(self) -> None:
        driver = QueueDriver(limits=Limits(credit_max=10))
        consumer = driver.subscribe("a", 6)
        refusal = driver.machine.grant(driver.now, consumer, 5)
        assert refusal is not None
        assert refusal.code == "InvalidCredit"
        assert consumer.credit == 6
        driver.grant(consumer, 4)
        assert consumer.credit == 10

    def test_credit_dies_with_its_subscription(self) -> None:
        driver = QueueDriver()
        driver.unsubscribe(driver.subscribe("a", 5))
        driver.subscribe("a")
        driver.put("a", "1")
        assert driver.deliveries == []

    def test_automatic_credit_keeps_the_window(self) -> None:
        driver = QueueDriver(Policy(lease_us=60_000_000))
        consumer = driver.subscribe("a", auto=2)
        driver.put("a", *IDS)
        assert driver.ids() == ["1", "2"]
        driver.ack(consumer, "1")
        driver.nack(consumer, "2", 600_000)
        assert driver.ids() == ["3", "4"]
        driver.term(consumer, "3")
        assert driver.ids() == ["5"]
        driver.advance(60_000)
        assert driver.ids() == ["6", "7"]
        assert consumer.credit + len(consumer.leases) == 2

    def test_a_late_ack_does_not_widen_the_automatic_window(self) -> None:
        driver = QueueDriver(Policy(lease_us=60_000_000, late_ack="accept"))
        consumer = driver.subscribe("a", auto=1)
        driver.put("a", "1", "2", "3")
        driver.advance(60_000)
        assert driver.ids() == ["1", "2"]
        assert driver.ack(consumer, "1") == []
        assert consumer.credit + len(consumer.leases) == 1


class TestOrder:
    @pytest.mark.promise(
        "Invariants",
        "3: first deliveries are in order, a record has one holder, and a late settle has no effect on another lease",
    )
    def test_first_deliveries_follow_the_numbers(self) -> None:
        driver = QueueDriver()
        driver.put("a", *IDS)
        driver.subscribe("a", 3, label="x")
        driver.subscribe("a", 7, label="y")
        assert driver.seqs == list(range(1, 11))

    @pytest.mark.promise("Delivery", "a redelivery goes to the tail or the head, as configured")
    def test_by_default_what_comes_back_goes_to_the_tail(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1", "2", "3")
        driver.nack(consumer, "1")
        driver.grant(consumer, 3)
        assert driver.deliveries == [("c", "1", 1), ("c", "2", 1), ("c", "3", 1), ("c", "1", 2)]
        assert driver.seqs == [1, 2, 3, 1]

    @pytest.mark.promise("Delivery", "a redelivery goes to the tail or the head, as configured")
    def test_with_head_the_smallest_number_comes_first(self) -> None:
        driver = QueueDriver(Policy(redelivery="head", lease_us=5_000_000))
        consumer = driver.subscribe("a", 3)
        driver.put("a", "1", "2", "3", "4")
        driver.nack(consumer, "3")
        driver.nack(consumer, "1")
        driver.grant(consumer, 3)
        assert driver.ids() == ["1", "2", "3", "1", "3", "4"]

    def test_with_head_an_expired_lease_goes_before_newer_ones(self) -> None:
        driver = QueueDriver(Policy(redelivery="head", lease_us=5_000_000))
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1", "2", "3")
        driver.advance(5_000)
        driver.grant(consumer, 3)
        assert driver.ids() == ["1", "2", "1", "2", "3"]

    def test_one_lease_at_a_time_gives_strict_processing_order(self) -> None:
        driver = QueueDriver(Policy(max_inflight=1))
        one = driver.subscribe("a", 5, label="x")
        two = driver.subscribe("a", 5, label="y")
        driver.put("a", "1", "2", "3")
        assert driver.deliveries == [("x", "1", 1)]
        driver.ack(one, "1")
        assert driver.deliveries[1:] == [("y", "2", 1)]
        driver.nack(two, "2")
        assert len(driver.deliveries) == 3
        assert driver.state("a")[1] == 1


class TestFairness:
    @pytest.mark.promise("Delivery", "subscriptions are served round-robin")
    def test_a_thousand_credits_do_not_drain_past_single_ones(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 1_000, label="greedy")
        driver.subscribe("a", 1, label="modest 1")
        driver.subscribe("a", 1, label="modest 2")
        driver.put("a", *IDS)
        assert [label for label, _, _ in driver.deliveries[:3]] != ["greedy"] * 3
        got = {label: id_ for label, id_, _ in driver.deliveries if label != "greedy"}
        assert got == {"modest 1": "2", "modest 2": "3"}

    @pytest.mark.promise("Delivery", "subscriptions are served round-robin")
    def test_single_credits_share_evenly_without_starvation(self) -> None:
        driver = QueueDriver()
        consumers = [driver.subscribe("a", 1, label=str(n)) for n in range(5)]
        for n in range(50):
            driver.put("a", f"e{n}")
            label, id_, _ = driver.deliveries[-1]
            driver.ack(consumers[int(label)], id_)
            driver.grant(consumers[int(label)], 1)
        counts = [sum(label == str(n) for label, _, _ in driver.deliveries) for n in range(5)]
        assert counts == [10] * 5

    def test_who_gets_credit_again_goes_to_the_back(self) -> None:
        driver = QueueDriver()
        first = driver.subscribe("a", 1, label="first")
        driver.subscribe("a", 1, label="second")
        driver.put("a", "1")
        driver.grant(first, 1)
        driver.put("a", "2")
        driver.put("a", "3")
        assert [label for label, _, _ in driver.deliveries] == ["first", "second", "first"]


class TestRoom:
    def test_no_more_is_leased_than_the_link_has_room_for(self) -> None:
        driver = QueueDriver(Policy(lease_us=1_000_000), limits=Limits(outbox_max=100))
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1", "2")
        assert driver.ids() == ["1"]
        assert (consumer.credit, driver.link.stalled) == (9, True)
        assert driver.state("a") == (1, 1, 0)
        driver.machine.writable(driver.now, driver.link)
        driver.apply()
        assert driver.ids() == ["2"]

    def test_the_lease_clock_starts_with_the_room(self) -> None:
        driver = QueueDriver(Policy(lease_us=1_000_000), limits=Limits(outbox_max=100))
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1", "2")
        driver.ack(consumer, "1")
        driver.advance(900)
        driver.machine.writable(driver.now, driver.link)
        driver.apply()
        assert driver.held(consumer, "2").deadline_us == driver.us + 1_000_000

    def test_a_full_link_does_not_stop_another(self) -> None:
        driver = QueueDriver(limits=Limits(outbox_max=100))
        driver.subscribe("a", 10, label="full")
        driver.subscribe("a", 10, label="free", link=driver.connect())
        driver.put("a", "1", "2", "3")
        assert [label for label, _, _ in driver.deliveries] == ["full", "free"]
        driver.machine.writable(driver.now, driver.link)
        driver.apply()
        assert driver.deliveries[-1] == ("full", "3", 1)

    def test_a_large_record_passes_when_there_is_any_room(self) -> None:
        driver = QueueDriver(limits=Limits(outbox_max=10))
        driver.subscribe("a", 1)
        driver.offer("a", record_of("1", "x" * 1_000))
        driver.commit()
        assert driver.ids() == ["1"]


class TestPull:
    def test_takes_what_is_there_up_to_its_count(self) -> None:
        driver = QueueDriver()
        driver.put("a", *IDS)
        driver.pull("a", 4)
        assert driver.ids() == IDS[:4]
        assert driver.machine.waiting_pulls == 0

    def test_answers_at_once_without_a_wait(self) -> None:
        driver = QueueDriver()
        driver.pull("a")
        assert len(driver.empty_pulls) == 1
        assert driver.machine.consumers == {}

    def test_waits_and_then_takes_the_first(self) -> None:
        driver = QueueDriver()
        driver.pull("a", 5, wait_ms=1_000)
        driver.advance(500)
        driver.put("a", "1", "2")
        assert driver.ids() == ["1", "2"]
        driver.advance(10_000)
        assert driver.empty_pulls == []

    def test_ends_empty_when_its_wait_is_over(self) -> None:
        driver = QueueDriver()
        driver.pull("a", 5, wait_ms=1_000)
        driver.advance(999)
        assert driver.empty_pulls == []
        driver.advance(1)
        assert driver.empty_pulls == ["pull"]
        driver.put("a", "1")
        assert driver.ids() == []

    def test_its_leases_outlive_its_link(self) -> None:
        driver = QueueDriver(Policy(lease_us=1_000_000))
        driver.put("a", "1")
        driver.pull("a")
        driver.disconnect(driver.link)
        assert driver.state("a") == (0, 1, 0)
        driver.advance(1_000)
        assert driver.state("a") == (1, 0, 0)
        assert driver.machine.consumers == {}

    def test_a_waiting_pull_ends_with_its_link(self) -> None:
        driver = QueueDriver()
        driver.pull("a", wait_ms=1_000)
        driver.disconnect(driver.link)
        driver.put("a", "1")
        assert driver.state("a") == (1, 0, 0)
        assert (driver.machine.waiting_pulls, driver.machine.consumers) == (0, {})

    def test_waiting_pulls_are_bounded(self) -> None:
        driver = QueueDriver(limits=Limits(waiters_max=2))
        driver.pull("a", wait_ms=1_000)
        driver.pull("b", wait_ms=1_000)
        refusal = driver.machine.pull(driver.now, driver.link, "c", 1, 1_000_000)
        assert isinstance(refusal, Refusal)
        assert refusal.code == "QuotaExceeded"

    def test_pulls_and_subscriptions_take_turns(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 5)
        driver.pull("a", 2, wait_ms=1_000)
        driver.put("a", "1", "2", "3", "4")
        assert [label for label, _, _ in driver.deliveries].count("pull") == 2


class TestLinks:
    def test_connections_are_bounded(self) -> None:
        driver = QueueDriver(limits=Limits(links_max=2))
        link = driver.connect()
        refusal = driver.machine.connect(link.principal, None)
        assert isinstance(refusal, Refusal)
        assert refusal.code == "QuotaExceeded"
        driver.disconnect(link)
        driver.connect()

    def test_subscriptions_of_a_connection_are_bounded(self) -> None:
        driver = QueueDriver(limits=Limits(subscriptions_max=2))
        first = driver.subscribe("a")
        driver.subscribe("a")
        refusal = driver.machine.subscribe(driver.now, driver.link, "a")
        assert isinstance(refusal, Refusal)
        assert refusal.code == "QuotaExceeded"
        driver.unsubscribe(first)
        driver.subscribe("a")


def test_one_connection_cannot_use_up_all_waiting_pulls() -> None:
    driver = QueueDriver(limits=Limits(subscriptions_max=3))
    for _ in range(3):
        driver.pull("a", wait_ms=1_000)
    refusal = driver.machine.pull(driver.now, driver.link, "a", 1, 1_000_000)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "QuotaExceeded"
    other = driver.connect()
    assert not isinstance(driver.machine.pull(driver.now, other, "a", 1, 1_000_000), Refusal)


def test_while_draining_nothing_is_delivered_but_leases_settle() -> None:
    driver = QueueDriver(Policy(lease_us=1_000_000))
    consumer = driver.subscribe("a", 1)
    driver.put("a", "1", "2")
    driver.pull("b", wait_ms=60_000)
    machine: QueueMachine = driver.machine
    machine.drain(driver.now)
    driver.apply()
    assert driver.empty_pulls == ["pull"], "a waiting pull is answered"
    driver.grant(consumer, 5)
    assert driver.ids() == ["1"]
    assert driver.ack(consumer, "1") == []
    assert machine.leased == 0
    assert isinstance(machine.subscribe(driver.now, driver.link, "a"), Refusal)
    assert isinstance(machine.pull(driver.now, driver.link, "a", 1, 0), Refusal)


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
    driver = QueueDriver()
    consumers = [driver.subscribe("a", label=str(n)) for n in range(3)]
    count = 0
    for verb, n in steps:
        if verb == "put":
            driver.put("a", *(f"e{count + k}" for k in range(n)))
            count += n
        elif verb == "grant":
            driver.grant(consumers[n], n + 1)
        elif verb == "wait":
            driver.advance(n)
        else:
            held = [(c, r) for c in consumers for r in c.leases.values()]
            if held:
                consumer, record = held[n % len(held)]
                if n % 2:
                    driver.ack(consumer, record.id)
                else:
                    driver.nack(consumer, record.id)
        for consumer in consumers:
            assert consumer.delivered <= consumer.granted
    firsts = [seq for seq, (_, _, attempt) in zip(driver.seqs, driver.deliveries, strict=True) if attempt == 1]
    assert firsts == sorted(set(firsts))
    ready = driver.channel("a").ready
    assert not ready or all(consumer.credit == 0 for consumer in consumers)
    assert driver.machine.bytes == sum(len(body_of(id_)) for id_ in driver.channel("a").live)
