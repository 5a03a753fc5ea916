"""Enqueue: checked, numbered, all or nothing, and visible once durable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.enqueue import DROP_MAX, Admitted
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from tests.core.driving import QueueDriver, body_of, record_of


def test_numbers_count_from_one_in_each_stream() -> None:
    driver = QueueDriver()
    assert driver.put("a", "1", "2") == [1, 2]
    assert driver.put("b", "1") == [1]
    assert driver.put("a", "3") == [3]


@pytest.mark.promise("The document's testing strategy", "Unit: enqueue")
@pytest.mark.promise("Foundations", "a change is visible only when it is durable")
def test_a_record_is_invisible_until_its_batch_is_committed() -> None:
    driver = QueueDriver()
    driver.subscribe("a", 10)
    driver.offer("a", record_of("1"))
    assert driver.deliveries == []
    assert driver.state("a") == (0, 0, 0)
    assert driver.channel("a").counters.in_ == 0
    driver.commit()
    assert driver.deliveries == [("c", "1", 1)]
    assert driver.channel("a").counters.in_ == 1


def test_an_array_is_one_batch() -> None:
    driver = QueueDriver()
    driver.put("a", "1", "2", "3")
    assert driver.batches == [["enqueue", "enqueue", "enqueue"]]


def test_offsets_are_dense_over_the_facts_of_a_batch() -> None:
    driver = QueueDriver()
    driver.put("a", "1", "2")
    driver.put("a", "3")
    assert [record.offset for record in driver.channel("a").live.values()] == [0, 1, 2]


class TestDuplicates:
    @pytest.mark.promise("Idempotency", "a repeated id answers `duplicate: true`, or 409 if the body differs")
    @pytest.mark.parametrize("where", ["ready", "leased", "delayed", "settled"])
    def test_the_same_bytes_again_get_the_first_number_and_change_nothing(self, where: str) -> None:
        driver = QueueDriver()
        if where == "delayed":
            driver.offer("a", record_of("1", due_wall_us=driver.now.wall_us + 1_000_000))
            driver.commit()
        else:
            driver.put("a", "1")
        if where in ("leased", "settled"):
            consumer = driver.subscribe("a", 1)
        if where == "settled":
            assert driver.ack(consumer, "1") == []
        before = driver.state("a")
        answer = driver.offer("a", record_of("1"))
        assert isinstance(answer, Admitted)
        assert (answer.seqs, answer.duplicates, answer.gate) == ([1], ["1"], 0)
        assert driver.state("a") == before
        assert driver.machine.commit_log.facts == []
        assert driver.channel("a").counters.dup == 1
        assert driver.channel("a").counters.in_ == 1

    @pytest.mark.promise("Idempotency", "a repeated id answers `duplicate: true`, or 409 if the body differs")
    @pytest.mark.parametrize("where", ["pending", "ready", "settled"])
    def test_other_bytes_under_the_same_id_conflict(self, where: str) -> None:
        driver = QueueDriver()
        driver.offer("a", record_of("1"))
        if where != "pending":
            driver.commit()
        if where == "settled":
            driver.ack(driver.subscribe("a", 1), "1")
        refusal = driver.refusal("a", record_of("1", "other"))
        assert (refusal.code, refusal.ref) == ("IdConflict", "1")
        assert driver.channel("a").counters.reject == 1

    def test_a_duplicate_of_a_pending_id_waits_for_the_same_commit(self) -> None:
        driver = QueueDriver()
        first = driver.offer("a", record_of("1"))
        batch = driver.machine.commit_log.take_batch()
        assert batch is not None
        again = driver.offer("a", record_of("1"))
        assert isinstance(first, Admitted)
        assert isinstance(again, Admitted)
        assert again.gate == first.gate == batch.no
        assert again.seqs == first.seqs
        assert again.duplicates == ["1"]

    def test_an_id_twice_in_one_array_is_taken_once(self) -> None:
        driver = QueueDriver()
        answer = driver.offer("a", record_of("1"), record_of("2"), record_of("1"))
        assert isinstance(answer, Admitted)
        assert (answer.seqs, answer.duplicates) == ([1, 2, 1], ["1"])
        driver.commit()
        assert driver.state("a") == (2, 0, 0)

    def test_an_array_that_contradicts_itself_is_refused_whole(self) -> None:
        driver = QueueDriver()
        refusal = driver.refusal("a", record_of("1"), record_of("1", "other"))
        assert refusal.code == "IdConflict"
        driver.commit()
        assert driver.put("a", "1") == [1]

    def test_streams_do_not_share_their_ids(self) -> None:
        driver = QueueDriver()
        driver.put("a", "1")
        assert isinstance(driver.offer("b", record_of("1", "other")), Admitted)

    @pytest.mark.promise("Idempotency", "the window of remembered ids is bounded by count and by age")
    def test_settled_ids_are_kept_up_to_a_count(self) -> None:
        driver = QueueDriver(Policy(dedup_count=2))
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1", "2", "3")
        driver.ack(consumer, "1", "2", "3")
        assert driver.put("a", "3", "1") == [3, 4]
        assert list(driver.channel("a").settled) == ["2", "3"]

    def test_an_id_whose_settle_may_still_be_refused_stays_pinned(self) -> None:
        driver = QueueDriver(Policy(dedup_count=0))
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.machine.ack(driver.now, consumer, ["1"])
        assert isinstance(driver.offer("a", record_of("1")), Admitted)
        driver.refuse()
        assert [record.seq for record in driver.channel("a").live.values()] == [1]

    def test_one_answer_does_not_stand_on_two_commits(self) -> None:
        """A duplicate of an uncommitted envelope together with a new one: each could end differently."""
        driver = QueueDriver()
        driver.offer("a", record_of("1"))
        assert driver.machine.commit_log.take_batch() is not None
        refusal = driver.refusal("a", record_of("1"), record_of("2"))
        assert (refusal.code, refusal.kind.retryable) == ("JournalUnavailable", True)
        assert refusal.retry_after_ms is not None
        driver.machine.committed(driver.now, 0)
        assert driver.put("a", "1", "2") == [1, 2]

    @pytest.mark.promise("Idempotency", "the window of remembered ids is bounded by count and by age")
    def test_settled_ids_are_kept_up_to_an_age_which_a_hit_does_not_refresh(self) -> None:
        driver = QueueDriver(Policy(dedup_us=10_000_000))
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1")
        driver.ack(consumer, "1")
        driver.advance(9_999)
        assert driver.put("a", "1") == [1]
        driver.advance(1)
        assert driver.put("a", "1") == [2]
        assert driver.ids() == ["1", "1"]

    @pytest.mark.promise("Idempotency", "an id is remembered while its envelope is live")
    def test_an_id_is_pinned_while_its_record_lives(self) -> None:
        driver = QueueDriver(Policy(dedup_count=1, dedup_us=1_000_000, lease_us=10**12))
        consumer = driver.subscribe("a", 10)
        driver.put("a", "1", "2", "3", "4")
        driver.ack(consumer, "2", "3", "4")
        driver.advance(3_600_000)
        assert driver.put("a", "1") == [1]

    def test_all_streams_together_remember_a_bounded_number_of_ids(self) -> None:
        driver = QueueDriver(limits=Limits(dedup_max=10))
        consumer = driver.subscribe("a", 100)
        ids = [str(n) for n in range(40)]
        driver.put("a", *ids)
        for id_ in ids:
            driver.ack(consumer, id_)
            assert driver.machine.ids <= 10
        assert driver.machine.totals.dedup_evicted == 40 - driver.machine.ids
        assert driver.put("a", "39") == [40], "the newest ids are the ones kept"

    def test_a_rejected_enqueue_is_not_remembered(self) -> None:
        driver = QueueDriver(Policy(max_depth=1))
        consumer = driver.subscribe("a")
        driver.put("a", "1")
        assert driver.refusal("a", record_of("2")).code == "StreamFull"
        driver.grant(consumer, 1)
        driver.ack(consumer, "1")
        answer = driver.offer("a", record_of("2"))
        assert isinstance(answer, Admitted)
        assert answer.duplicates is None


class TestBounds:
    @pytest.mark.promise("Streams", "`maxDepth` counts ready, leased and delayed envelopes")
    def test_depth_counts_ready_leased_and_delayed(self) -> None:
        driver = QueueDriver(Policy(max_depth=3))
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1", "2", "3")
        driver.nack(consumer, "1", 1_000)
        assert driver.state("a") == (1, 1, 1)
        refusal = driver.refusal("a", record_of("4"))
        assert (refusal.code, refusal.ref, refusal.retry_after_ms) == ("StreamFull", "a", 1_000)
        assert "maxDepth" in refusal.message
        driver.ack(consumer, "2")
        assert driver.put("a", "4") == [4]

    def test_pending_records_count_too(self) -> None:
        driver = QueueDriver(Policy(max_depth=1))
        driver.offer("a", record_of("1"))
        assert driver.refusal("a", record_of("2")).code == "StreamFull"

    def test_an_array_that_does_not_fit_is_refused_whole(self) -> None:
        driver = QueueDriver(Policy(max_depth=2))
        assert driver.refusal("a", record_of("1"), record_of("2"), record_of("3")).code == "StreamFull"
        assert driver.machine.commit_log.take_batch() is None
        assert driver.put("a", "1", "2") == [1, 2]
        driver.refusal("a", record_of("3"), record_of("4"))
        assert driver.channel("a").counters.reject == 2

    def test_duplicates_of_an_array_need_no_room(self) -> None:
        driver = QueueDriver(Policy(max_depth=2))
        driver.put("a", "1")
        assert driver.put("a", "1", "2") == [1, 2]

    def test_a_requeue_always_fits(self) -> None:
        driver = QueueDriver(Policy(max_depth=1))
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.nack(consumer, "1")
        assert driver.state("a") == (1, 0, 0)

    @pytest.mark.promise("Streams", "`maxBytes` bounds the bytes of a stream")
    def test_bytes_are_bounded_and_freed(self) -> None:
        size = len(body_of("1"))
        driver = QueueDriver(Policy(max_bytes=2 * size))
        consumer = driver.subscribe("a", 9)
        driver.put("a", "1", "2")
        refusal = driver.refusal("a", record_of("3"))
        assert (refusal.code, "maxBytes" in refusal.message) == ("StreamFull", True)
        driver.ack(consumer, "1")
        assert driver.put("a", "3") == [3]

    @pytest.mark.promise("Invariants", "8: every bound holds")
    def test_memory_of_all_streams_is_bounded(self) -> None:
        size = len(body_of("1"))
        driver = QueueDriver(limits=Limits(memory_max=2 * size))
        driver.put("a", "1")
        driver.put("b", "1")
        refusal = driver.refusal("c", record_of("1"))
        assert (refusal.code, refusal.kind.status) == ("QuotaExceeded", 429)

    def test_what_waits_for_the_journal_is_bounded_until_it_answers(self) -> None:
        size = len(body_of("1"))
        driver = QueueDriver(limits=Limits(pending_max=2 * size))
        driver.offer("a", record_of("1"), record_of("2"))
        assert driver.refusal("a", record_of("3")).code == "JournalUnavailable"
        driver.commit()
        assert driver.put("a", "3") == [3]

    @pytest.mark.promise("Streams", "`maxStreams` bounds the number of streams")
    def test_streams_are_bounded(self) -> None:
        driver = QueueDriver(limits=Limits(streams_max=2))
        driver.put("a", "1")
        driver.put("b", "1")
        assert driver.refusal("c", record_of("1")).code == "QuotaExceeded"
        assert isinstance(driver.machine.subscribe(driver.now, driver.link, "c"), Refusal)
        assert not driver.machine.known("c")

    def test_without_auto_create_an_unknown_stream_stays_unknown(self) -> None:
        driver = QueueDriver(auto_create=False)
        assert driver.refusal("a", record_of("1")).code == "UnknownStream"
        refusal = driver.machine.subscribe(driver.now, driver.link, "a")
        assert isinstance(refusal, Refusal)
        assert refusal.code == "UnknownStream"


class TestDropOldest:
    @pytest.mark.promise("Streams", "overflow `drop-oldest` counts what it drops and never drops a leased envelope")
    def test_the_oldest_ready_record_makes_room_and_is_counted(self) -> None:
        driver = QueueDriver(Policy(max_depth=2, overflow="drop-oldest"))
        driver.put("a", "1", "2")
        assert driver.put("a", "3") == [3]
        assert [record.id for record in driver.channel("a").ready] == ["2", "3"]
        assert driver.channel("a").counters.drop == 1
        assert driver.batches[-1] == ["drop", "enqueue"]

    def test_one_request_drops_no_more_than_a_turn_allows(self) -> None:
        driver = QueueDriver(Policy(max_depth=DROP_MAX + 1, overflow="drop-oldest"))
        many = [Record(f"e{number}", "t", b"{}") for number in range(DROP_MAX + 1)]
        driver.machine.enqueue(driver.now, "a", many)
        driver.commit()
        again = [Record(f"f{number}", "t", b"{}") for number in range(DROP_MAX + 1)]
        refusal = driver.machine.enqueue(driver.now, "a", again)
        assert isinstance(refusal, Refusal) and refusal.code == "TooLarge" and driver.channel("a").counters.drop == 0
        assert not isinstance(driver.machine.enqueue(driver.now, "a", again[1:]), Refusal)

    @pytest.mark.promise("Streams", "overflow `drop-oldest` counts what it drops and never drops a leased envelope")
    def test_what_is_leased_is_never_dropped(self) -> None:
        driver = QueueDriver(Policy(max_depth=2, overflow="drop-oldest"))
        driver.subscribe("a", 1)
        driver.put("a", "1", "2")
        driver.put("a", "3")
        assert sorted(driver.channel("a").live) == ["1", "3"]
        driver.subscribe("a", 1)
        assert driver.refusal("a", record_of("4")).code == "StreamFull"
        assert driver.channel("a").counters.drop == 1

    def test_an_array_larger_than_the_stream_drops_nothing(self) -> None:
        driver = QueueDriver(Policy(max_depth=2, overflow="drop-oldest"))
        driver.put("a", "1", "2")
        refusal = driver.refusal("a", record_of("3"), record_of("4"), record_of("5"))
        assert refusal.code == "StreamFull"
        assert [record.id for record in driver.channel("a").ready] == ["1", "2"]

    def test_bytes_make_room_too(self) -> None:
        size = len(body_of("1"))
        driver = QueueDriver(Policy(max_bytes=3 * size, overflow="drop-oldest"))
        driver.put("a", "1", "2", "3")
        driver.put("a", "4", "5")
        assert [record.id for record in driver.channel("a").ready] == ["3", "4", "5"]

    def test_a_dropped_id_is_remembered(self) -> None:
        driver = QueueDriver(Policy(max_depth=1, overflow="drop-oldest"))
        driver.put("a", "1")
        driver.put("a", "2")
        assert driver.put("a", "1") == [1]
        assert driver.channel("a").settled["1"].outcome == "dropped"


class TestScheduled:
    @pytest.mark.promise("Delivery", "an enqueue can be delayed")
    def test_a_delayed_record_is_ready_when_due_and_not_before(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 10)
        driver.offer("a", record_of("1", due_wall_us=driver.now.wall_us + 5_000_000))
        driver.commit()
        assert driver.state("a") == (0, 0, 1)
        driver.advance(4_999.999)
        assert driver.deliveries == []
        driver.advance(0.001)
        assert driver.deliveries == [("c", "1", 1)]

    def test_they_come_by_due_time_and_ties_by_number(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 10)
        wall = driver.now.wall_us
        driver.offer("a", record_of("late", due_wall_us=wall + 3_000_000))
        driver.offer("a", record_of("tie 1", due_wall_us=wall + 2_000_000))
        driver.offer("a", record_of("tie 2", due_wall_us=wall + 2_000_000))
        driver.offer("a", record_of("soon", due_wall_us=wall + 1_000_000))
        driver.commit()
        driver.put("a", "now")
        driver.advance(10_000)
        assert driver.ids() == ["now", "soon", "tie 1", "tie 2", "late"]

    def test_one_that_fell_due_before_its_commit_is_ready_at_once(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 1)
        driver.offer("a", record_of("1", due_wall_us=driver.now.wall_us + 1_000))
        driver.us += 1_000
        driver.commit()
        assert driver.ids() == ["1"]


def test_a_drained_machine_takes_nothing() -> None:
    driver = QueueDriver()
    driver.machine.drain(driver.now)
    assert driver.refusal("a", record_of("1")).code == "Draining"
    assert not driver.machine.known("a")


@pytest.mark.promise("Invariants", "2: the counters balance")
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans()), max_size=30))
def test_any_order_of_enqueues_commits_and_refusals_keeps_the_books(
    steps: list[tuple[str, str, bool]],
) -> None:
    driver = QueueDriver(Policy(max_depth=2, overflow="drop-oldest"))
    driver.subscribe("s", 3)
    for id_, note, good in steps:
        driver.offer("s", record_of(id_, note))
        if driver.machine.commit_log.facts and not good:
            driver.refuse()
        elif good:
            driver.commit()
    driver.commit()
