"""Staged batches: all or nothing, applied once, and remembered in the same commit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.queue.stage import Draft, Taken, last_batch
from penstock.core.records import Applied, Note, Record, is_fresh
from penstock.core.rows import Row, row_of
from tests.core.driving import QueueDriver, record_of

APP = "report"


def draft_of(id_: str, stream: str = "q", note: str = "", **more: Any) -> Draft:
    return Draft(stream, id_, "test", b'{"id":"%b","payload":"%b"}' % (id_.encode(), note.encode()), **more)


def made(id_: str, stream: str = "q") -> Draft:
    return draft_of(id_, stream, is_named=False)


def take(driver: QueueDriver, batch: int, *drafts: Draft, app: str = APP) -> Taken | Refusal:
    answer = driver.machine.take(driver.now, app, batch, list(drafts))
    driver.apply()
    return answer


def taken(driver: QueueDriver, batch: int, *drafts: Draft, app: str = APP) -> Taken:
    """Take a batch and commit it."""
    answer = take(driver, batch, *drafts, app=app)
    assert isinstance(answer, Taken), answer
    driver.commit()
    return answer


def refusal(driver: QueueDriver, batch: int, *drafts: Draft, app: str = APP) -> Refusal:
    answer = take(driver, batch, *drafts, app=app)
    assert isinstance(answer, Refusal), answer
    return answer


def ready(driver: QueueDriver, stream: str = "q") -> list[str]:
    return [record.id for record in driver.channel(stream).ready]


class TestOneBatch:
    def test_comes_in_with_its_memory_in_one_commit(self) -> None:
        driver = QueueDriver()
        answer = taken(driver, 0, draft_of("a"), draft_of("b", "p"))
        assert (answer.enqueued, answer.duplicate) == (2, False)
        assert driver.batches == [["enqueue", "enqueue", "tick"]]
        assert ready(driver) == ["a"] and ready(driver, "p") == ["b"]
        assert driver.machine.last_batch(APP) == 0

    def test_is_invisible_until_it_is_durable(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("q", 5)
        answer = take(driver, 3, draft_of("a"))
        assert isinstance(answer, Taken) and answer.gate == driver.machine.commit_log.gate
        assert driver.machine.last_batch(APP) is None
        assert driver.ids() == []
        driver.commit()
        assert driver.machine.last_batch(APP) == 3
        assert driver.ids() == ["a"]
        assert consumer.credit == 4

    @pytest.mark.parametrize("first", [0, 7])
    def test_repeated_it_is_a_duplicate_that_brings_nothing(self, first: int) -> None:
        driver = QueueDriver()
        taken(driver, first, draft_of("a"))
        for batch in range(first + 1):
            again = taken(driver, batch, draft_of("a"), draft_of("new"))
            assert (again.gate, again.enqueued, again.duplicate) == (0, 0, True)
        assert ready(driver) == ["a"]
        assert not taken(driver, first + 1, draft_of("new")).duplicate

    def test_repeated_while_it_is_written_it_waits_for_the_same_commit(self) -> None:
        driver = QueueDriver()
        first = take(driver, 0, draft_of("a"))
        batch = driver.machine.commit_log.take_batch()
        assert isinstance(first, Taken) and batch is not None
        again = take(driver, 0, draft_of("a"))
        assert isinstance(again, Taken)
        assert (again.gate, again.duplicate) == (first.gate, True)
        driver.machine.committed(driver.now, 0)
        assert ready(driver) == ["a"]

    def test_the_next_one_does_not_overtake_it(self) -> None:
        driver = QueueDriver()
        take(driver, 0, draft_of("a"))
        busy = refusal(driver, 1, draft_of("b"))
        assert (busy.code, busy.kind.retryable) == ("JournalUnavailable", True)
        driver.commit()
        assert taken(driver, 1, draft_of("b")).enqueued == 1

    def test_without_envelopes_it_is_not_worth_a_row(self) -> None:
        driver = QueueDriver()
        assert taken(driver, 4) == Taken(0)
        assert driver.batches == [] and driver.machine.last_batch(APP) is None

    def test_without_envelopes_it_is_remembered_when_it_has_something_else(self) -> None:
        driver = QueueDriver()
        answer = driver.machine.take(driver.now, APP, 4, [], is_remembered=True)
        assert isinstance(answer, Taken) and answer.gate == driver.machine.commit_log.gate
        driver.commit()
        assert driver.batches == [["tick"]] and driver.machine.last_batch(APP) == 4
        again = driver.machine.take(driver.now, APP, 4, [], is_remembered=True)
        assert isinstance(again, Taken) and again.duplicate

    def test_applications_do_not_know_one_another(self) -> None:
        driver = QueueDriver()
        taken(driver, 5, draft_of("a"), app="one")
        assert taken(driver, 0, draft_of("b"), app="two").enqueued == 1
        assert (last_batch(driver.machine, "one"), last_batch(driver.machine, "two")) == (5, 0)


class TestIds:
    def test_equal_rows_all_arrive_each_with_its_own_id_in_its_bytes(self) -> None:
        driver = QueueDriver()
        assert taken(driver, 0, made("s-1"), made("s-2"), made("s-1"), made("s-1")).enqueued == 4
        assert ready(driver) == ["s-1", "s-2", "s-1-1", "s-1-2"]
        assert [record.body for record in driver.channel("q").ready][2] == b'{"id":"s-1-1","payload":""}'

    def test_a_given_id_twice_is_one_envelope(self) -> None:
        driver = QueueDriver()
        assert taken(driver, 0, draft_of("a"), draft_of("a")).enqueued == 1
        assert driver.channel("q").counters.dup == 1

    def test_an_id_that_is_known_with_the_same_content_is_skipped(self) -> None:
        driver = QueueDriver()
        driver.put("q", "live", "settled")
        consumer = driver.subscribe("q", 2)
        driver.ack(consumer, "settled")
        answer = taken(driver, 0, draft_of("live"), draft_of("settled"), draft_of("new"))
        assert answer.enqueued == 1
        assert driver.channel("q").counters.dup == 2

    @pytest.mark.parametrize("is_settled", [False, True])
    def test_an_id_that_is_known_with_other_content_refuses_the_batch(self, is_settled: bool) -> None:
        driver = QueueDriver()
        driver.put("q", "a")
        if is_settled:
            driver.ack(driver.subscribe("q", 1), "a")
        assert refusal(driver, 0, draft_of("b"), draft_of("a", note="other")).code == "IdConflict"
        assert driver.machine.last_batch(APP) is None
        assert taken(driver, 0, draft_of("b")).enqueued == 1

    def test_a_time_that_we_filled_in_makes_no_other_content(self) -> None:
        driver = QueueDriver()
        stamp = (21, 22)
        first = draft_of("a", note="1", stamp=stamp)
        assert first.body[slice(*stamp)] == b"1"
        taken(driver, 0, first)
        again = taken(driver, 1, draft_of("a", note="2", stamp=stamp))
        assert (again.enqueued, again.duplicate) == (0, False)
        assert refusal(driver, 2, draft_of("a", note="22", stamp=stamp)).code == "IdConflict"
        driver.ack(driver.subscribe("q", 1), "a")
        assert taken(driver, 2, draft_of("a", note="3", stamp=stamp)).enqueued == 0

    def test_an_id_that_another_commit_is_writing_is_for_later(self) -> None:
        driver = QueueDriver()
        driver.offer("q", record_of("a"))
        assert driver.machine.commit_log.take_batch() is not None
        assert refusal(driver, 0, draft_of("a"), draft_of("b")).code == "JournalUnavailable"
        driver.machine.committed(driver.now, 0)
        assert taken(driver, 0, draft_of("a"), draft_of("b")).enqueued == 1


class TestBounds:
    def test_one_full_stream_refuses_the_whole_and_later_all_comes_in(self) -> None:
        driver = QueueDriver(policies={"full": Policy(max_depth=2)})
        driver.put("full", "x", "y")
        full = refusal(driver, 0, draft_of("a", "empty"), draft_of("b", "full"))
        assert (full.code, full.ref, full.retry_after_ms) == ("StreamFull", "full", 1_000)
        assert not driver.machine.known("empty")
        assert driver.machine.commit_log.take_batch() is None and driver.machine.applied == {}
        driver.ack(driver.subscribe("full", 1), "x")
        assert taken(driver, 0, draft_of("a", "empty"), draft_of("b", "full")).enqueued == 2

    def test_drop_oldest_drops_only_when_everything_fits(self) -> None:
        policies = {"ring": Policy(max_depth=2, overflow="drop-oldest"), "full": Policy(max_depth=1)}
        driver = QueueDriver(policies=policies)
        driver.put("ring", "x", "y")
        driver.put("full", "z")
        assert refusal(driver, 0, draft_of("a", "ring"), draft_of("b", "full")).code == "StreamFull"
        assert ready(driver, "ring") == ["x", "y"]
        assert taken(driver, 0, draft_of("a", "ring")).enqueued == 1
        assert ready(driver, "ring") == ["y", "a"]
        assert driver.batches[-1] == ["drop", "enqueue", "tick"]

    def test_what_could_never_fit_says_so(self) -> None:
        driver = QueueDriver(Policy(max_depth=2))
        never = refusal(driver, 0, *(draft_of(id_) for id_ in "abc"))
        assert (never.code, never.kind.retryable) == ("TooLarge", False)
        assert "maxOffsetsPerTrigger" in (never.hint or "")
        large = QueueDriver(limits=Limits(pending_max=100))
        assert refusal(large, 0, draft_of("a", note="x" * 100)).code == "TooLarge"

    def test_bytes_of_all_streams_count_together(self) -> None:
        size = len(draft_of("a").body)
        driver = QueueDriver(limits=Limits(memory_max=2 * size, pending_max=10 * size))
        drafts = [draft_of("a", "p"), draft_of("b", "q"), draft_of("c", "r")]
        assert refusal(driver, 0, *drafts).code == "QuotaExceeded"
        assert taken(driver, 0, *drafts[:2]).enqueued == 2
        behind = QueueDriver(limits=Limits(pending_max=2 * size))
        behind.offer("o", record_of("o"))
        assert refusal(behind, 0, *drafts[:2]).code == "JournalUnavailable"

    def test_streams_and_applications_are_bounded(self) -> None:
        driver = QueueDriver(limits=Limits(streams_max=1, stage_apps_max=1))
        assert refusal(driver, 0, draft_of("a", "p"), draft_of("b", "q")).code == "QuotaExceeded"
        assert not driver.machine.known("p")
        taken(driver, 0, draft_of("a"))
        full = refusal(driver, 0, draft_of("b"), app="another")
        assert full.code == "QuotaExceeded" and "stage_apps_max" in full.message
        assert taken(driver, 1, draft_of("b")).enqueued == 1

    def test_a_server_that_drains_takes_none_but_knows_old_ones(self) -> None:
        driver = QueueDriver()
        taken(driver, 0, draft_of("a"))
        driver.machine.drain(driver.now)
        assert refusal(driver, 1, draft_of("b")).code == "Draining"
        assert taken(driver, 0, draft_of("a")).duplicate


class TestRefusedCommits:
    @pytest.mark.parametrize("before", [None, 4])
    @pytest.mark.parametrize("is_whole", [True, False])
    def test_the_batch_was_never_taken_and_may_come_again(self, before: int | None, is_whole: bool) -> None:
        driver = QueueDriver()
        if before is not None:
            taken(driver, before, draft_of("old"))
        assert isinstance(take(driver, 5, draft_of("a"), draft_of("b", "p")), Taken)
        if is_whole:
            driver.refuse()
        else:
            driver.commit(refused="the disk is full")
            assert driver.batches[-1] == []
        assert driver.machine.last_batch(APP) == before
        assert taken(driver, 5, draft_of("a"), draft_of("b", "p")).enqueued == 2
        assert driver.machine.last_batch(APP) == 5

    def test_the_memory_is_refused_with_the_records_and_never_kept_alone(self) -> None:
        assert is_fresh(Applied(APP, 0))
        assert not is_fresh(Note("tick", "server"))

    def test_settles_of_the_same_commit_stay(self) -> None:
        driver = QueueDriver()
        driver.put("q", "x")
        consumer = driver.subscribe("q", 1)
        assert driver.machine.ack(driver.now, consumer, ["x"]) == []
        assert isinstance(take(driver, 0, draft_of("a")), Taken)
        driver.commit(refused="the disk is full")
        assert driver.batches[-1] == ["ack"]
        assert driver.machine.last_batch(APP) is None and ready(driver) == []


def rows_of(driver: QueueDriver) -> list[Row]:
    """Commit what is open; its rows as a journal would keep them."""
    batch = driver.machine.commit_log.take_batch()
    assert batch is not None
    rows = [replace(row_of(fact), offset=driver.offset + place) for place, fact in enumerate(batch.facts)]
    driver.machine.committed(driver.now, driver.offset)
    driver.offset += len(rows)
    return rows


class TestRecovery:
    def test_history_and_snapshot_both_carry_it(self) -> None:
        driver = QueueDriver()
        take(driver, 0, draft_of("a"), app="one")
        take(driver, 6, draft_of("b"), app="two")
        rows = rows_of(driver)
        assert {(row.door, row.event) for row in rows if row.body is None} == {("server", "tick")}
        assert '{"app":"two","batch":6,"envelopes":1}' in [row.meta for row in rows]
        again = QueueDriver()
        for row in [*rows, Row(door="server", event="tick"), Row(door="mew", event="tick", meta="[]")]:
            again.machine.restore(again.now, row)
        resumed = QueueDriver()
        for row in again.machine.snapshot(again.now):
            resumed.machine.resume(resumed.now, row)
        for one in (again, resumed):
            one.machine.recovered(one.now)
            assert last_batch(one.machine, "one") == 0 and last_batch(one.machine, "two") == 6
            assert taken(one, 0, draft_of("a"), app="one").duplicate
            assert taken(one, 1, draft_of("c"), app="one").enqueued == 1

    def test_a_snapshot_knows_nothing_of_what_is_not_durable(self) -> None:
        driver = QueueDriver()
        taken(driver, 1, draft_of("a"))
        take(driver, 2, draft_of("b"))
        metas = [row.meta for row in driver.machine.snapshot(driver.now) if row.door == "server"]
        assert metas == ['{"app":"report","batch":1,"envelopes":1}']


@pytest.mark.promise("Spark: source and sinks", "the newest batch of an application is durable with its envelopes")
def test_a_batch_larger_than_the_window_of_ids_is_still_known() -> None:
    driver = QueueDriver(Policy(dedup_count=10))
    drafts = [draft_of(f"{number}") for number in range(50)]
    taken(driver, 0, *drafts)
    driver.ack(driver.subscribe("q", 50), *(draft.id for draft in drafts))
    driver.put("q", "later")
    assert len(driver.channel("q").settled) == 10
    assert taken(driver, 0, *drafts).duplicate
    assert ready(driver) == ["later"]


@pytest.mark.promise(
    "Spark: source and sinks", "the sink writes to the queue exactly once, including a replayed batch 0"
)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_repeated_and_refused_each_batch_comes_in_once(data: st.DataObject) -> None:
    """A driver that repeats a batch until it is confirmed, on a journal that sometimes rejects."""
    driver = QueueDriver(Policy(max_depth=6, dedup_count=0))
    consumer = driver.subscribe("q", 1_000)
    seen: list[str] = []
    wanted: list[str] = []
    for batch in range(data.draw(st.integers(1, 5))):
        words = data.draw(st.lists(st.sampled_from("xyz"), max_size=4))
        drafts = [made(f"{batch}{word}") for word in words]
        wanted += [f"{batch}{word}" for word in words]
        for _ in range(20):
            answer = take(driver, batch, *data.draw(st.permutations(drafts)))
            mood = data.draw(st.sampled_from(("well", "full", "failing", "lost")))
            if mood == "failing" and driver.machine.commit_log.facts:
                driver.refuse()
            else:
                driver.commit(refused="full" if mood == "full" else None)
            ids = driver.ids()
            seen += ids
            driver.ack(consumer, *ids)
            if isinstance(answer, Taken) and (mood == "well" or (answer.duplicate and mood != "lost")):
                break
    came = {id_[0] for id_ in seen}  # a batch that was refused every time is missing whole
    assert sorted(id_.partition("-")[0] for id_ in seen) == sorted(id_ for id_ in wanted if id_[0] in came)
    assert len(set(seen)) == len(seen)


def test_a_record_says_where_it_came_from() -> None:
    driver = QueueDriver()
    taken(driver, 0, Draft("q", "a", "alarm", b"{}", "pipeline/report", "c-1"))
    record = driver.channel("q").live["a"]
    assert isinstance(record, Record)
    assert (record.kind, record.sender, record.corr) == ("alarm", "pipeline/report", "c-1")


def test_no_tenant_uses_up_the_memory_of_applications_for_others() -> None:
    driver = QueueDriver(limits=Limits(stage_apps_max=2))
    for app in ("a", "b"):
        taken(driver, 0, draft_of(app, "t/acme/s"), app=f"t/acme/{app}")
    refused = take(driver, 0, draft_of("c", "t/acme/s"), app="t/acme/c")
    assert isinstance(refused, Refusal)
    assert refused.code == "QuotaExceeded"
    taken(driver, 0, draft_of("c"), app="c")
