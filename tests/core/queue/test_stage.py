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


def take(bench: QueueDriver, batch: int, *drafts: Draft, app: str = APP) -> Taken | Refusal:
    answer = bench.machine.take(bench.now, app, batch, list(drafts))
    bench.apply()
    return answer


def taken(bench: QueueDriver, batch: int, *drafts: Draft, app: str = APP) -> Taken:
    """Take a batch and commit it."""
    answer = take(bench, batch, *drafts, app=app)
    assert isinstance(answer, Taken), answer
    bench.commit()
    return answer


def refusal(bench: QueueDriver, batch: int, *drafts: Draft, app: str = APP) -> Refusal:
    answer = take(bench, batch, *drafts, app=app)
    assert isinstance(answer, Refusal), answer
    return answer


def ready(bench: QueueDriver, stream: str = "q") -> list[str]:
    return [record.id for record in bench.channel(stream).ready]


class TestOneBatch:
    def test_comes_in_with_its_memory_in_one_commit(self) -> None:
        bench = QueueDriver()
        answer = taken(bench, 0, draft_of("a"), draft_of("b", "p"))
        assert (answer.enqueued, answer.duplicate) == (2, False)
        assert bench.batches == [["enqueue", "enqueue", "tick"]]
        assert ready(bench) == ["a"] and ready(bench, "p") == ["b"]
        assert bench.machine.last_batch(APP) == 0

    def test_is_invisible_until_it_is_durable(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("q", 5)
        answer = take(bench, 3, draft_of("a"))
        assert isinstance(answer, Taken) and answer.gate == bench.machine.commit_log.gate
        assert bench.machine.last_batch(APP) is None
        assert bench.ids() == []
        bench.commit()
        assert bench.machine.last_batch(APP) == 3
        assert bench.ids() == ["a"]
        assert consumer.credit == 4

    @pytest.mark.parametrize("first", [0, 7])
    def test_repeated_it_is_a_duplicate_that_brings_nothing(self, first: int) -> None:
        bench = QueueDriver()
        taken(bench, first, draft_of("a"))
        for batch in range(first + 1):
            again = taken(bench, batch, draft_of("a"), draft_of("new"))
            assert (again.gate, again.enqueued, again.duplicate) == (0, 0, True)
        assert ready(bench) == ["a"]
        assert not taken(bench, first + 1, draft_of("new")).duplicate

    def test_repeated_while_it_is_written_it_waits_for_the_same_commit(self) -> None:
        bench = QueueDriver()
        first = take(bench, 0, draft_of("a"))
        batch = bench.machine.commit_log.take_batch()
        assert isinstance(first, Taken) and batch is not None
        again = take(bench, 0, draft_of("a"))
        assert isinstance(again, Taken)
        assert (again.gate, again.duplicate) == (first.gate, True)
        bench.machine.committed(bench.now, 0)
        assert ready(bench) == ["a"]

    def test_the_next_one_does_not_overtake_it(self) -> None:
        bench = QueueDriver()
        take(bench, 0, draft_of("a"))
        busy = refusal(bench, 1, draft_of("b"))
        assert (busy.code, busy.kind.retryable) == ("JournalUnavailable", True)
        bench.commit()
        assert taken(bench, 1, draft_of("b")).enqueued == 1

    def test_without_envelopes_it_is_not_worth_a_row(self) -> None:
        bench = QueueDriver()
        assert taken(bench, 4) == Taken(0)
        assert bench.batches == [] and bench.machine.last_batch(APP) is None

    def test_without_envelopes_it_is_remembered_when_it_has_something_else(self) -> None:
        bench = QueueDriver()
        answer = bench.machine.take(bench.now, APP, 4, [], is_remembered=True)
        assert isinstance(answer, Taken) and answer.gate == bench.machine.commit_log.gate
        bench.commit()
        assert bench.batches == [["tick"]] and bench.machine.last_batch(APP) == 4
        again = bench.machine.take(bench.now, APP, 4, [], is_remembered=True)
        assert isinstance(again, Taken) and again.duplicate

    def test_applications_do_not_know_one_another(self) -> None:
        bench = QueueDriver()
        taken(bench, 5, draft_of("a"), app="one")
        assert taken(bench, 0, draft_of("b"), app="two").enqueued == 1
        assert (last_batch(bench.machine, "one"), last_batch(bench.machine, "two")) == (5, 0)


class TestIds:
    def test_equal_rows_all_arrive_each_with_its_own_id_in_its_bytes(self) -> None:
        bench = QueueDriver()
        assert taken(bench, 0, made("s-1"), made("s-2"), made("s-1"), made("s-1")).enqueued == 4
        assert ready(bench) == ["s-1", "s-2", "s-1-1", "s-1-2"]
        assert [record.body for record in bench.channel("q").ready][2] == b'{"id":"s-1-1","payload":""}'

    def test_a_given_id_twice_is_one_envelope(self) -> None:
        bench = QueueDriver()
        assert taken(bench, 0, draft_of("a"), draft_of("a")).enqueued == 1
        assert bench.channel("q").counters.dup == 1

    def test_an_id_that_is_known_with_the_same_content_is_skipped(self) -> None:
        bench = QueueDriver()
        bench.put("q", "live", "settled")
        consumer = bench.subscribe("q", 2)
        bench.ack(consumer, "settled")
        answer = taken(bench, 0, draft_of("live"), draft_of("settled"), draft_of("new"))
        assert answer.enqueued == 1
        assert bench.channel("q").counters.dup == 2

    @pytest.mark.parametrize("is_settled", [False, True])
    def test_an_id_that_is_known_with_other_content_refuses_the_batch(self, is_settled: bool) -> None:
        bench = QueueDriver()
        bench.put("q", "a")
        if is_settled:
            bench.ack(bench.subscribe("q", 1), "a")
        assert refusal(bench, 0, draft_of("b"), draft_of("a", note="other")).code == "IdConflict"
        assert bench.machine.last_batch(APP) is None
        assert taken(bench, 0, draft_of("b")).enqueued == 1

    def test_a_time_that_we_filled_in_makes_no_other_content(self) -> None:
        bench = QueueDriver()
        stamp = (21, 22)
        first = draft_of("a", note="1", stamp=stamp)
        assert first.body[slice(*stamp)] == b"1"
        taken(bench, 0, first)
        again = taken(bench, 1, draft_of("a", note="2", stamp=stamp))
        assert (again.enqueued, again.duplicate) == (0, False)
        assert refusal(bench, 2, draft_of("a", note="22", stamp=stamp)).code == "IdConflict"
        bench.ack(bench.subscribe("q", 1), "a")
        assert taken(bench, 2, draft_of("a", note="3", stamp=stamp)).enqueued == 0

    def test_an_id_that_another_commit_is_writing_is_for_later(self) -> None:
        bench = QueueDriver()
        bench.offer("q", record_of("a"))
        assert bench.machine.commit_log.take_batch() is not None
        assert refusal(bench, 0, draft_of("a"), draft_of("b")).code == "JournalUnavailable"
        bench.machine.committed(bench.now, 0)
        assert taken(bench, 0, draft_of("a"), draft_of("b")).enqueued == 1


class TestBounds:
    def test_one_full_stream_refuses_the_whole_and_later_all_comes_in(self) -> None:
        bench = QueueDriver(policies={"full": Policy(max_depth=2)})
        bench.put("full", "x", "y")
        full = refusal(bench, 0, draft_of("a", "empty"), draft_of("b", "full"))
        assert (full.code, full.ref, full.retry_after_ms) == ("StreamFull", "full", 1_000)
        assert not bench.machine.known("empty")
        assert bench.machine.commit_log.take_batch() is None and bench.machine.applied == {}
        bench.ack(bench.subscribe("full", 1), "x")
        assert taken(bench, 0, draft_of("a", "empty"), draft_of("b", "full")).enqueued == 2

    def test_drop_oldest_drops_only_when_everything_fits(self) -> None:
        policies = {"ring": Policy(max_depth=2, overflow="drop-oldest"), "full": Policy(max_depth=1)}
        bench = QueueDriver(policies=policies)
        bench.put("ring", "x", "y")
        bench.put("full", "z")
        assert refusal(bench, 0, draft_of("a", "ring"), draft_of("b", "full")).code == "StreamFull"
        assert ready(bench, "ring") == ["x", "y"]
        assert taken(bench, 0, draft_of("a", "ring")).enqueued == 1
        assert ready(bench, "ring") == ["y", "a"]
        assert bench.batches[-1] == ["drop", "enqueue", "tick"]

    def test_what_could_never_fit_says_so(self) -> None:
        bench = QueueDriver(Policy(max_depth=2))
        never = refusal(bench, 0, *(draft_of(id_) for id_ in "abc"))
        assert (never.code, never.kind.retryable) == ("TooLarge", False)
        assert "maxOffsetsPerTrigger" in (never.hint or "")
        large = QueueDriver(limits=Limits(pending_max=100))
        assert refusal(large, 0, draft_of("a", note="x" * 100)).code == "TooLarge"

    def test_bytes_of_all_streams_count_together(self) -> None:
        size = len(draft_of("a").body)
        bench = QueueDriver(limits=Limits(memory_max=2 * size, pending_max=10 * size))
        drafts = [draft_of("a", "p"), draft_of("b", "q"), draft_of("c", "r")]
        assert refusal(bench, 0, *drafts).code == "QuotaExceeded"
        assert taken(bench, 0, *drafts[:2]).enqueued == 2
        behind = QueueDriver(limits=Limits(pending_max=2 * size))
        behind.offer("o", record_of("o"))
        assert refusal(behind, 0, *drafts[:2]).code == "JournalUnavailable"

    def test_streams_and_applications_are_bounded(self) -> None:
        bench = QueueDriver(limits=Limits(streams_max=1, stage_apps_max=1))
        assert refusal(bench, 0, draft_of("a", "p"), draft_of("b", "q")).code == "QuotaExceeded"
        assert not bench.machine.known("p")
        taken(bench, 0, draft_of("a"))
        full = refusal(bench, 0, draft_of("b"), app="another")
        assert full.code == "QuotaExceeded" and "stage_apps_max" in full.message
        assert taken(bench, 1, draft_of("b")).enqueued == 1

    def test_a_server_that_drains_takes_none_but_knows_old_ones(self) -> None:
        bench = QueueDriver()
        taken(bench, 0, draft_of("a"))
        bench.machine.drain(bench.now)
        assert refusal(bench, 1, draft_of("b")).code == "Draining"
        assert taken(bench, 0, draft_of("a")).duplicate


class TestRefusedCommits:
    @pytest.mark.parametrize("before", [None, 4])
    @pytest.mark.parametrize("is_whole", [True, False])
    def test_the_batch_was_never_taken_and_may_come_again(self, before: int | None, is_whole: bool) -> None:
        bench = QueueDriver()
        if before is not None:
            taken(bench, before, draft_of("old"))
        assert isinstance(take(bench, 5, draft_of("a"), draft_of("b", "p")), Taken)
        if is_whole:
            bench.refuse()
        else:
            bench.commit(refused="the disk is full")
            assert bench.batches[-1] == []
        assert bench.machine.last_batch(APP) == before
        assert taken(bench, 5, draft_of("a"), draft_of("b", "p")).enqueued == 2
        assert bench.machine.last_batch(APP) == 5

    def test_the_memory_is_refused_with_the_records_and_never_kept_alone(self) -> None:
        assert is_fresh(Applied(APP, 0))
        assert not is_fresh(Note("tick", "server"))

    def test_settles_of_the_same_commit_stay(self) -> None:
        bench = QueueDriver()
        bench.put("q", "x")
        consumer = bench.subscribe("q", 1)
        assert bench.machine.ack(bench.now, consumer, ["x"]) == []
        assert isinstance(take(bench, 0, draft_of("a")), Taken)
        bench.commit(refused="the disk is full")
        assert bench.batches[-1] == ["ack"]
        assert bench.machine.last_batch(APP) is None and ready(bench) == []


def rows_of(bench: QueueDriver) -> list[Row]:
    """Commit what is open; its rows as a journal would keep them."""
    batch = bench.machine.commit_log.take_batch()
    assert batch is not None
    rows = [replace(row_of(fact), offset=bench.offset + place) for place, fact in enumerate(batch.facts)]
    bench.machine.committed(bench.now, bench.offset)
    bench.offset += len(rows)
    return rows


class TestRecovery:
    def test_history_and_snapshot_both_carry_it(self) -> None:
        bench = QueueDriver()
        take(bench, 0, draft_of("a"), app="one")
        take(bench, 6, draft_of("b"), app="two")
        rows = rows_of(bench)
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
        bench = QueueDriver()
        taken(bench, 1, draft_of("a"))
        take(bench, 2, draft_of("b"))
        metas = [row.meta for row in bench.machine.snapshot(bench.now) if row.door == "server"]
        assert metas == ['{"app":"report","batch":1,"envelopes":1}']


@pytest.mark.promise("Spark: source and sinks", "the newest batch of an application is durable with its envelopes")
def test_a_batch_larger_than_the_window_of_ids_is_still_known() -> None:
    bench = QueueDriver(Policy(dedup_count=10))
    drafts = [draft_of(f"{number}") for number in range(50)]
    taken(bench, 0, *drafts)
    bench.ack(bench.subscribe("q", 50), *(draft.id for draft in drafts))
    bench.put("q", "later")
    assert len(bench.channel("q").settled) == 10
    assert taken(bench, 0, *drafts).duplicate
    assert ready(bench) == ["later"]


@pytest.mark.promise(
    "Spark: source and sinks", "the sink writes to the queue exactly once, including a replayed batch 0"
)
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_is_repeated_and_refused_each_batch_comes_in_once(data: st.DataObject) -> None:
    """A driver that repeats a batch until it is confirmed, on a journal that sometimes rejects."""
    bench = QueueDriver(Policy(max_depth=6, dedup_count=0))
    consumer = bench.subscribe("q", 1_000)
    seen: list[str] = []
    wanted: list[str] = []
    for batch in range(data.draw(st.integers(1, 5))):
        words = data.draw(st.lists(st.sampled_from("xyz"), max_size=4))
        drafts = [made(f"{batch}{word}") for word in words]
        wanted += [f"{batch}{word}" for word in words]
        for _ in range(20):
            answer = take(bench, batch, *data.draw(st.permutations(drafts)))
            mood = data.draw(st.sampled_from(("well", "full", "failing", "lost")))
            if mood == "failing" and bench.machine.commit_log.facts:
                bench.refuse()
            else:
                bench.commit(refused="full" if mood == "full" else None)
            ids = bench.ids()
            seen += ids
            bench.ack(consumer, *ids)
            if isinstance(answer, Taken) and (mood == "well" or (answer.duplicate and mood != "lost")):
                break
    came = {id_[0] for id_ in seen}  # a batch that was refused every time is missing whole
    assert sorted(id_.partition("-")[0] for id_ in seen) == sorted(id_ for id_ in wanted if id_[0] in came)
    assert len(set(seen)) == len(seen)


def test_a_record_says_where_it_came_from() -> None:
    bench = QueueDriver()
    taken(bench, 0, Draft("q", "a", "alarm", b"{}", "pipeline/report", "c-1"))
    record = bench.channel("q").live["a"]
    assert isinstance(record, Record)
    assert (record.kind, record.sender, record.corr) == ("alarm", "pipeline/report", "c-1")


def test_no_tenant_uses_up_the_memory_of_applications_for_others() -> None:
    bench = QueueDriver(limits=Limits(stage_apps_max=2))
    for app in ("a", "b"):
        taken(bench, 0, draft_of(app, "t/acme/s"), app=f"t/acme/{app}")
    refused = take(bench, 0, draft_of("c", "t/acme/s"), app="t/acme/c")
    assert isinstance(refused, Refusal)
    assert refused.code == "QuotaExceeded"
    taken(bench, 0, draft_of("c"), app="c")
