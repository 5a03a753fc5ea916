"""Partition keys and priority: blocking, order, and no starvation."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from penstock.core.queue.policy import Policy, Retry
from penstock.core.queue.ready_order import AGED_EVERY, KeyedOrder, PriorityOrder
from penstock.core.queue.stage import Draft, Taken
from penstock.core.records import Record
from tests.core.driving import QueueDriver, purge_all, record_of, redrive
from tests.core.queue.test_rebuild import Recorded

KEYED = Policy(partitioned=True)
URGENT = Policy(priority=True, priority_wait_us=10_000_000)


def keyed(id_: str, key: str | None = None) -> Record:
    """A record whose id says its key: `a1` is the first of key `a`, `1` has none."""
    key = id_[0] if key is None and id_[0].isalpha() else key
    body = {"id": id_, **({} if key is None else {"partitionKey": key})}
    return Record(id_, "test", msgspec.json.encode(body))


def urgent(id_: str, priority: object) -> Record:
    return Record(id_, "test", msgspec.json.encode({"id": id_, "headers": {"priority": priority}}))


def put(driver: QueueDriver, *ids: str, stream: str = "q", due_ms: int = 0) -> None:
    records = [keyed(id_) for id_ in ids]
    for record in records:
        record.due_wall_us = record.scheduled_wall_us = driver.now.wall_us + due_ms * 1000 if due_ms else 0
    driver.offer(stream, *records)
    driver.commit()


def explained(driver: QueueDriver, stream: str = "q") -> dict[str, Any]:
    row = driver.machine.explain(driver.now, driver.channel(stream))
    return {reason["code"]: reason for reason in row["reasons"]} | {"flowing": row["flowing"]}


class TestKeys:
    @pytest.mark.promise(
        "Streams",
        "`partitioned`: one envelope of a key is leased at a time, other keys flow, keys take turns",
    )
    def test_one_of_a_key_is_out_and_other_keys_flow(self) -> None:
        driver = QueueDriver(KEYED)
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "a2", "b1", "a3", "b2")
        assert driver.ids() == ["a1", "b1"]
        driver.ack(consumer, "a1")
        assert driver.ids() == ["a2"]
        driver.ack(consumer, "b1", "a2")
        assert sorted(driver.ids()) == ["a3", "b2"]

    def test_a_record_without_a_key_is_never_blocked(self) -> None:
        driver = QueueDriver(KEYED)
        driver.subscribe("q", 10)
        put(driver, "a1", "1", "a2", "2", "3")
        assert driver.ids() == ["a1", "1", "2", "3"]

    @pytest.mark.promise(
        "Streams",
        "`partitioned`: one envelope of a key is leased at a time, other keys flow, keys take turns",
    )
    def test_keys_take_turns_whatever_waits_in_them(self) -> None:
        driver = QueueDriver(KEYED)
        put(driver, *(f"a{n}" for n in range(50)), "b1", "c1", "b2")
        consumer = driver.subscribe("q", 1)
        order = []
        for _ in range(6):
            (id_,) = driver.ids()
            order.append(id_)
            driver.ack(consumer, id_)
            driver.grant(consumer, 1)
        assert order == ["a0", "b1", "c1", "a1", "b2", "a2"]

    @pytest.mark.promise(
        "Streams",
        "a returned envelope stays first of its key, a delay blocks the key, a dead letter frees it",
    )
    @pytest.mark.parametrize("how", ["nack", "release", "expiry", "disconnect"])
    def test_what_comes_back_goes_to_the_head_of_its_key(self, how: str) -> None:
        driver = QueueDriver(KEYED)
        link = driver.connect()
        first = driver.subscribe("q", 1, link=link, lease_ms=1_000)
        put(driver, "a1", "a2", "a3")
        match how:
            case "nack":
                driver.nack(first, "a1")
            case "release":
                driver.release(first, "a1")
            case "expiry":
                driver.advance(1_000)
            case _:
                driver.disconnect(link)
        second = driver.subscribe("q", 1, label="d")
        assert driver.deliveries == [("c", "a1", 1), ("d", "a1", 2)]
        driver.ack(second, "a1")
        driver.grant(second, 1)
        assert driver.ids()[-1] == "a2"

    @pytest.mark.promise(
        "Streams",
        "a returned envelope stays first of its key, a delay blocks the key, a dead letter frees it",
    )
    def test_a_delayed_nack_blocks_its_key_until_it_is_due(self) -> None:
        driver = QueueDriver(KEYED)
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "a2", "b1")
        driver.nack(consumer, "a1", 5_000)
        assert driver.ids() == ["a1", "b1"]
        assert explained(driver)["key_blocked"]["count"] == 1
        driver.advance(4_999)
        assert driver.ids() == []
        driver.advance(1)
        assert driver.deliveries == [("c", "a1", 2)]

    def test_so_does_the_back_off_after_an_expiry(self) -> None:
        driver = QueueDriver(Policy(partitioned=True, retry=Retry(2_000_000)))
        driver.subscribe("q", 10, lease_ms=1_000)
        put(driver, "a1", "a2")
        driver.advance(2_900)
        assert driver.ids() == ["a1"]
        driver.advance(100)
        assert driver.ids() == ["a1"]

    @pytest.mark.promise(
        "Streams",
        "a returned envelope stays first of its key, a delay blocks the key, a dead letter frees it",
    )
    @pytest.mark.parametrize("limit", [0, 1])
    def test_dead_letters_free_their_key(self, limit: int) -> None:
        driver = QueueDriver(Policy(partitioned=True, max_deliveries=limit))
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "a2")
        driver.nack(consumer, "a1") if limit else driver.term(consumer, "a1")
        assert driver.ids() == ["a1", "a2"]
        assert [record.id for record in driver.channel("dlq/q").ready] == ["a1"]

    def test_dead_letters_that_have_no_room_free_their_key_too(self) -> None:
        driver = QueueDriver(policies={"q": KEYED, "dlq/q": Policy(max_depth=1)})
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "a2", "a3")
        driver.term(consumer, "a1")
        driver.term(consumer, "a2")
        assert driver.ids() == ["a1", "a2", "a3"]
        assert driver.state("q") == (0, 1, 1)

    def test_a_scheduled_record_blocks_no_other_and_takes_its_place_by_number(self) -> None:
        driver = QueueDriver(KEYED)
        put(driver, "a1", due_ms=1_000)
        put(driver, "a2", "a3")
        consumer = driver.subscribe("q", 1)
        assert driver.ids() == ["a2"]
        driver.advance(1_000)
        driver.ack(consumer, "a2")
        driver.grant(consumer, 1)
        assert driver.ids() == ["a1"]

    def test_an_ack_that_the_journal_refused_comes_back_and_never_beside_another_of_its_key(self) -> None:
        driver = QueueDriver(KEYED)
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "a2", "a3")
        driver.machine.ack(driver.now, consumer, ["a1"])
        driver.apply()
        driver.refuse()
        assert driver.ids() == ["a1", "a2"]
        driver.ack(consumer, "a2")
        assert driver.ids() == []
        driver.advance(1_000)
        assert driver.ids() == ["a1"]
        driver.ack(consumer, "a1")
        assert driver.ids() == ["a3"]

    def test_a_late_ack_is_taken_and_lets_the_next_one_go(self) -> None:
        driver = QueueDriver(Policy(partitioned=True, late_ack="accept"))
        consumer = driver.subscribe("q", 1, lease_ms=1_000)
        put(driver, "a1", "a2")
        driver.advance(1_000)
        assert driver.ack(consumer, "a1") == []
        driver.grant(consumer, 1)
        assert driver.ids() == ["a1", "a2"]

    def test_the_bound_on_leases_counts_over_all_keys(self) -> None:
        driver = QueueDriver(Policy(partitioned=True, max_inflight=2))
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "b1", "c1", "a2")
        assert driver.ids() == ["a1", "b1"]
        driver.ack(consumer, "b1")
        assert driver.ids() == ["c1"]

    def test_the_first_in_line_is_dropped_for_room_and_what_is_out_is_not(self) -> None:
        driver = QueueDriver(Policy(partitioned=True, max_depth=4, overflow="drop-oldest"))
        consumer = driver.subscribe("q", 1)
        put(driver, "a1", "a2", "b1", "b2")
        put(driver, "c1", "c2")
        assert [record.id for record in driver.channel("q").ready] == ["c1", "c2", "a2"]
        assert driver.channel("q").counters.drop == 2
        put(driver, "d1", "d2", "d3")
        assert driver.state("q") == (3, 1, 0)
        driver.ack(consumer, "a1")
        driver.grant(consumer, 10)
        assert driver.ids() == ["a1", "d1"]

    def test_only_what_is_blocked_may_be_left_to_drop(self) -> None:
        driver = QueueDriver(Policy(partitioned=True, max_depth=3, overflow="drop-oldest"))
        driver.subscribe("q", 1)
        put(driver, "a1", "a2", "a3")
        put(driver, "a4", "a5")
        assert [record.id for record in driver.channel("q").ready] == ["a4", "a5"]

    def test_a_purge_leaves_what_is_out_and_its_key_goes_on(self) -> None:
        driver = QueueDriver(KEYED)
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "a2", "b1", "b2", "1")
        driver.nack(consumer, "b1", 60_000)
        assert purge_all(driver.machine, driver.now, driver.channel("q")) == 3
        driver.commit()
        put(driver, "a3", "b3")
        assert driver.ids() == ["a1", "b1", "1", "b3"]
        driver.ack(consumer, "a1")
        assert driver.ids() == ["a3"]

    def test_dead_letters_may_be_keyed_themselves_and_go_home_all_the_same(self) -> None:
        driver = QueueDriver(KEYED)
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "a2", "b1")
        for id_ in ("a1", "b1", "a2"):
            driver.term(consumer, id_)
        reader = driver.subscribe("dlq/q", 1, label="d")
        driver.ids()
        put(driver, "b1", stream="elsewhere")
        redrive(driver.machine, driver.now, "q", 10)
        driver.apply()
        driver.commit()
        assert sorted(driver.ids()) == ["a2", "b1"]
        driver.ack(reader, "a1")
        assert driver.state("dlq/q") == (0, 0, 0)

    def test_a_key_that_is_no_text_is_refused_and_changes_nothing(self) -> None:
        driver = QueueDriver(KEYED)
        for key in ("", "x" * 257, 7, 1.5, True, ["a"], {}):
            body = msgspec.json.encode({"id": "1", "partitionKey": key})
            refusal = driver.refusal("q", keyed("2"), Record("1", "test", body))
            assert (refusal.code, refusal.ref) == ("InvalidEnvelope", "partitionKey")
        assert not driver.machine.known("q")

    def test_a_staged_batch_is_sorted_or_refused_as_a_whole(self) -> None:
        driver = QueueDriver(KEYED)
        driver.subscribe("q", 10)
        drafts = [Draft("q", id_, "t", keyed(id_).body) for id_ in ("a1", "a2", "b1")]
        bad = Draft("q", "x", "t", b'{"id":"x","headers":{"partitionKey":3}}')
        refusal = driver.machine.take(driver.now, "app", 1, [*drafts, bad])
        assert not isinstance(refusal, Taken) and refusal.code == "InvalidEnvelope"
        assert isinstance(driver.machine.take(driver.now, "app", 1, drafts), Taken)
        driver.commit()
        assert driver.ids() == ["a1", "b1"]

    def test_a_plain_stream_does_not_look_at_keys(self) -> None:
        driver = QueueDriver()
        driver.subscribe("q", 10)
        put(driver, "a1", "a2")
        driver.offer("q", Record("1", "t", b'{"id":"1","partitionKey":7}'))
        driver.commit()
        assert driver.ids() == ["a1", "a2", "1"]
        assert {record.sort_key for record in driver.channel("q").live.values()} == {None}

    @pytest.mark.promise("Streams", "a long backlog of a blocked key does not stall other keys")
    def test_a_hundred_thousand_of_a_blocked_key_stall_no_other_key(self) -> None:
        """Each delivery is one step of the ring, so the work is counted, not timed."""
        order = KeyedOrder()
        for seq in range(100_000):
            order.put(Record(str(seq), "t", b"", sort_key="a", seq=seq), 0, first=False)
        order.take()
        for seq in range(100_000, 100_010):
            order.put(Record(str(seq), "t", b"", sort_key=f"k{seq}", seq=seq), 0, first=False)
        assert (len(order), len(order.leasable), order.blocked) == (100_009, 10, (99_999, 1))
        assert [order.take().seq for _ in range(10)] == list(range(100_000, 100_010))
        assert len(order.leasable) == 0


class TestExplain:
    @pytest.mark.promise("Streams", "`explain` reports `key_blocked`")
    def test_says_how_many_wait_for_how_many_keys(self) -> None:
        driver = QueueDriver(KEYED)
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "a2", "a3", "b1", "b2", "c1")
        why = explained(driver)
        assert (why["key_blocked"]["count"], why["key_blocked"]["keys"], why["flowing"]) == (3, 2, False)
        driver.ack(consumer, "a1", "b1", "c1")
        driver.ack(consumer, "a2", "b2")
        assert "key_blocked" not in explained(driver)

    def test_a_stream_with_free_keys_flows(self) -> None:
        driver = QueueDriver(KEYED)
        first = driver.subscribe("q", 1)
        put(driver, "a1", "a2", "b1")
        why = explained(driver)
        assert {"no_credit", "key_blocked"} <= set(why)
        first.credit = 1  # granted and not yet dispatched
        assert explained(driver)["flowing"] is True


class TestRestart:
    @pytest.mark.promise("Streams", "keys and priority levels survive a restart")
    def test_keys_and_their_order_come_back(self) -> None:
        driver = Recorded(KEYED)
        consumer = driver.subscribe("q", 10)
        put(driver, "a1", "b1", "a2", "a3", "b2", "1")
        driver.ack(consumer, "a1")
        driver.nack(consumer, "b1", 5_000)
        fresh = driver.restarted(1_000)
        again = fresh.subscribe("q", 10)
        assert fresh.ids() == ["a2", "1"]
        fresh.advance(4_000)
        assert fresh.ids() == ["b1"]
        fresh.ack(again, "a2", "b1")
        assert fresh.ids() == ["a3", "b2"]

    @pytest.mark.promise("Streams", "keys and priority levels survive a restart")
    def test_levels_come_back(self) -> None:
        driver = Recorded(URGENT)
        driver.offer("q", urgent("1", "low"), urgent("2", 9), urgent("3", None))
        driver.commit()
        fresh = driver.restarted()
        fresh.subscribe("q", 10)
        assert fresh.ids() == ["2", "3", "1"]

    def test_a_bad_key_from_before_the_stream_was_partitioned_counts_as_none(self) -> None:
        driver = Recorded()
        driver.offer("q", Record("1", "t", b'{"id":"1","partitionKey":7}'), keyed("a1"), keyed("a2"))
        driver.commit()
        fresh = QueueDriver(KEYED)
        for row in driver.rows:
            fresh.machine.restore(fresh.now, row)
        fresh.machine.recovered(fresh.now)
        fresh.subscribe("q", 10)
        assert fresh.ids() == ["1", "a1"]


class TestLevels:
    def order(self, driver: QueueDriver, count: int) -> list[str]:
        """Deliver one at a time, and ack each."""
        consumer = driver.subscribe("q")
        for _ in range(count):
            driver.grant(consumer, 1)
            driver.ack(consumer, driver.deliveries[-1][1])
        return driver.ids()

    @pytest.mark.promise("Streams", "`priority`: the most urgent level is served first, and low levels never starve")
    def test_the_most_urgent_first_and_in_order_within_a_level(self) -> None:
        driver = QueueDriver(URGENT)
        asked = [0, "low", "normal", None, "whatever", "high", 9, "9", "7", 5]
        driver.offer("q", *(urgent(str(n), priority) for n, priority in enumerate(asked)))
        driver.commit()
        assert self.order(driver, 10) == ["6", "7", "5", "8", "2", "3", "4", "9", "1", "0"]

    @pytest.mark.promise("Streams", "`priority`: the most urgent level is served first, and low levels never starve")
    def test_low_gets_one_turn_in_four_once_it_waited_too_long(self) -> None:
        driver = QueueDriver(URGENT)
        driver.offer("q", urgent("low-1", "low"), urgent("low-2", "low"))
        driver.commit()
        driver.advance(9_999)
        driver.offer("q", *(urgent(f"high-{n}", "high") for n in range(20)))
        driver.commit()
        assert all(id_.startswith("high") for id_ in self.order(driver, AGED_EVERY))
        driver.advance(1)
        got = self.order(driver, 2 * AGED_EVERY)
        assert [id_ for id_ in got if id_.startswith("low")] == ["low-1", "low-2"]
        assert got.index("low-1") == AGED_EVERY - 1

    def test_waiting_begins_anew_with_a_redelivery(self) -> None:
        driver = QueueDriver(URGENT)
        consumer = driver.subscribe("q", 1)
        driver.offer("q", urgent("1", "low"))
        driver.commit()
        driver.advance(20_000)
        driver.nack(consumer, "1")
        driver.offer("q", *(urgent(f"high-{n}", "high") for n in range(10)))
        driver.commit()
        driver.deliveries = []
        assert "1" not in self.order(driver, 10)

    @pytest.mark.parametrize(("redelivery", "order"), [("tail", ["2", "3", "1"]), ("head", ["1", "2", "3"])])
    def test_what_comes_back_keeps_its_level(self, redelivery: str, order: list[str]) -> None:
        driver = QueueDriver(Policy(priority=True, redelivery=redelivery))  # type: ignore[arg-type]
        consumer = driver.subscribe("q", 1)
        driver.offer("q", *(urgent(id_, "high") for id_ in "123"), urgent("0", "low"))
        driver.commit()
        driver.nack(consumer, "1")
        driver.deliveries = []
        assert self.order(driver, 4) == [*order, "0"]

    def test_what_is_given_back_is_first_in_its_level(self) -> None:
        driver = QueueDriver(URGENT)
        consumer = driver.subscribe("q", 1)
        driver.offer("q", *(urgent(id_, "high") for id_ in "12"))
        driver.commit()
        driver.release(consumer, "1")
        driver.deliveries = []
        assert self.order(driver, 2) == ["1", "2"]

    def test_what_is_given_back_does_not_hide_how_long_others_waited(self) -> None:
        order = PriorityOrder(10, by_number=False)
        order.put(Record("old", "t", b"", sort_key=2, seq=1), 0, first=False)
        order.put(Record("back", "t", b"", sort_key=2, seq=2), 100, first=True)
        for seq in range(10):
            order.put(Record("high", "t", b"", sort_key=8, seq=seq), 100, first=False)
        order.at(100)
        assert [order.popleft().id for _ in range(8)] == ["high"] * 3 + ["back"] + ["high"] * 3 + ["old"]

    def test_the_least_urgent_is_dropped_for_room(self) -> None:
        driver = QueueDriver(Policy(priority=True, max_depth=3, overflow="drop-oldest"))
        driver.offer("q", urgent("1", "high"), urgent("2", "low"), urgent("3", "low"))
        driver.commit()
        driver.offer("q", urgent("4", "low"), urgent("5", "normal"))
        driver.commit()
        assert [record.id for record in driver.channel("q").ready] == ["1", "5", "4"]

    def test_peek_purge_and_redrive_work(self) -> None:
        driver = QueueDriver(URGENT)
        consumer = driver.subscribe("q", 1)
        driver.offer("q", urgent("1", "low"), urgent("2", "high"), urgent("3", 9))
        driver.commit()
        driver.term(consumer, "3")
        peeked = driver.machine.peek(driver.now, driver.channel("q"), "ready", 10)
        assert [record.id for record in peeked] == ["2", "1"]
        redrive(driver.machine, driver.now, "q", 1)
        driver.apply()
        driver.commit()
        assert [record.id for record in driver.channel("q").ready] == ["3", "2", "1"]
        assert purge_all(driver.machine, driver.now, driver.channel("q")) == 3
        assert len(driver.channel("q").ready) == 0


@pytest.mark.promise("Streams", "`priority`: the most urgent level is served first, and low levels never starve")
@given(
    ops=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 9)),
            st.tuples(st.just("take"), st.integers(0, 30)),
        ),
        max_size=60,
    )
)
@settings(max_examples=60, deadline=None)
def test_levels_are_a_list_searched_by_hand(ops: list[tuple[str, int]]) -> None:
    """The same choices as the simplest code that can be right."""
    order = PriorityOrder(20, by_number=False)
    model: list[tuple[int, int, int]] = []
    now_us = takes = 0
    for seq, (what, number) in enumerate(ops):
        now_us += 3
        if what == "put":
            order.put(Record(str(seq), "t", b"", sort_key=number, seq=seq), now_us, first=False)
            model.append((number, now_us, seq))
            continue
        now_us += number
        order.at(now_us)
        if not model:
            continue
        takes += 1
        aged = [entry for entry in model if entry[1] <= now_us - 20] if takes % AGED_EVERY == 0 else []
        best = min(aged, key=lambda entry: (entry[1], entry[0])) if aged else max(model, key=lambda e: (e[0], -e[2]))
        model.remove(best)
        assert order.popleft().seq == best[2]
        assert len(order) == len(model)


def test_a_record_without_a_lane_is_normal() -> None:
    order = PriorityOrder(20, by_number=False)
    for seq, sort_key in enumerate((4, None, 6)):
        order.put(Record(str(seq), "t", b"", sort_key=sort_key, seq=seq), 0, first=False)
    assert [record.sort_key for record in order] == [6, None, 4]
    assert [record.sort_key for record in order.expendable()] == [4, None, 6]
    order.remove(next(iter(order)))
    assert len(order) == 2
    assert record_of("1").sort_key is None
