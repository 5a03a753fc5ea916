"""Which minutes new rows can change, and when a minute is final."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.spark import location
from penstock.spark.lake.schemas import QUEUE_MINUTES, TRIGGER_MINUTES
from penstock.spark.lake_tables.expressions import OWN_SENDER, without_own
from penstock.spark.lake_tables.minutes import (
    GRACE_US,
    MINUTE_US,
    TRIGGERED,
    floor_minute,
    from_us,
    is_final,
    queue_minutes,
    reach_us,
    trigger_minutes,
)
from penstock.spark.pipeline.batch import JournalBatch
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.steps import Step, built_in
from tests.core.driving import purge_all
from tests.spark.journal_builder import JournalBuilder, rule
from tests.spark.journaled import MINUTE_0, Journaled, events_of, holder
from tests.spark.pipeline.queried import batch_between

times = st.integers(MINUTE_0, MINUTE_0 + 20 * MINUTE_US)


@given(last_us=times, later_us=times, back_us=st.integers(0, MINUTE_US + GRACE_US - 1))
def test_no_row_changes_a_minute_before_the_reach_nor_a_final_one(last_us: int, later_us: int, back_us: int) -> None:
    """A row counts for its own minute or, as a gauge, for one that ended less than the grace before it."""
    at_us = max(last_us, later_us)
    for minute_us in (floor_minute(at_us), floor_minute(at_us - back_us)):
        if at_us < minute_us + MINUTE_US + GRACE_US:
            assert minute_us >= reach_us(last_us)
            assert not is_final(minute_us, last_us) or at_us == last_us


@given(last_us=times)
def test_the_reach_covers_every_minute_that_is_not_final_and_not_many_more(last_us: int) -> None:
    reach = reach_us(last_us)
    assert reach % MINUTE_US == 0
    assert is_final(reach - MINUTE_US, last_us)
    assert last_us - reach < 2 * MINUTE_US + GRACE_US


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = dict[tuple[str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def history() -> Journaled:
    """Some minutes of two queues: deliveries of every kind, a restart, a pause."""
    bench = Journaled(Policy(max_deliveries=2, lease_us=20_000_000, dedup_us=600_000_000))
    worker = bench.subscribe("jobs", 3, link=bench.connect(holder("sam")))
    bench.send("jobs", "1", "kim")
    bench.advance(100)
    bench.send("jobs", "2", "kim")
    bench.send("jobs", "2", "kim", ts="2025-10-09T08:53:20.100Z")
    bench.ack(worker, "1")
    bench.nack(worker, "2")  # delivered again at once, with the last credit
    bench.nack(worker, "2")  # and once more is once too often
    bench.send("jobs", "3", "kim")
    bench.wait(55)  # into the next minute
    bench.send("other", "1")
    bench.wait(30)
    late = bench.subscribe("jobs", 1)
    bench.wait(10)
    bench.ack(late, "3")
    bench.restart()
    bench.send("jobs", "4", "kim")
    bench.wait(70)
    again = bench.subscribe("jobs", 1)
    bench.wait(3)
    bench.ack(again, "4")
    purge_all(bench.machine, bench.now, bench.channel("other"))
    bench.commit()
    bench.wait(120)
    return bench


def minutes_of(spark: SparkSession, rows: list[Row]) -> Rows:
    until = {"": rows[-1].recorded_at}
    made = queue_minutes(without_own(spark.createDataFrame(events_of(rows))), until).toArrow().to_pylist()
    keyed = {
        (row["channel"], (int(row["minute"].timestamp()) * 1_000_000 - MINUTE_0) // MINUTE_US): row for row in made
    }
    assert len(keyed) == len(made)
    return keyed


def picked(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


@pytest.mark.promise("Spark: pipeline", "gold tables have exact minutes, however rows are batched")
def test_a_minute_holds_what_happened_in_it(spark: SparkSession, history: Journaled) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    shape = queue_minutes(spark.createDataFrame(history.events), {"": 0}).schema
    assert shape.simpleString() == from_arrow_schema(QUEUE_MINUTES.schema).simpleString()
    rows = minutes_of(spark, history.rows)
    first = rows["jobs", 0]
    assert picked(first, "enqueued", "delivered", "redelivered", "acked", "nacked", "dead", "duplicates") == (
        3,
        3,
        1,
        1,
        1,
        1,
        1,
    )
    assert picked(first, "ready", "leased", "delayed", "timed_out", "dropped", "purged", "rejected") == (
        1,
        0,
        0,
        0,
        0,
        0,
        0,
    )
    assert first["bytes_in"] == sum(
        len(row.body or b"") for row in history.rows if row.channel == "jobs" and row.id in ("1", "2", "3")
    )
    assert first["oldest_ms"] == 39_900
    assert picked(first, "wait_p50_ms", "wait_p99_ms") == (0.0, 0.0)
    # Two were settled, after 100 ms and at once.
    assert first["total_p95_ms"] == pytest.approx(0.95 * 100)
    assert first["final"] is True
    assert picked(rows["dlq/jobs", 0], "enqueued", "ready") == (1, 1)


def test_what_has_no_row_is_taken_from_the_gauges_once(spark: SparkSession, history: Journaled) -> None:
    rows = minutes_of(spark, history.rows)
    out = sum(row["delivered"] for (channel, _), row in rows.items() if channel == "jobs")
    # Unreported deliveries of a crashed run are lost with it; reported ones are not reported again.
    assert out == 3 + 1
    quiet = rows["other", 1]
    assert picked(quiet, "enqueued", "ready", "wait_p50_ms", "total_p95_ms") == (1, 1, None, None)
    stands = rows["jobs", 1]
    assert picked(stands, "enqueued", "acked", "delivered", "ready") == (1, 1, 0, 1)


def test_a_running_minute_shows_what_is_known_and_no_depth(spark: SparkSession, history: Journaled) -> None:
    end = next(index for index, row in enumerate(history.rows) if row.event == "gauge")
    rows = minutes_of(spark, history.rows[: end - 1])
    assert picked(rows["jobs", 0], "enqueued", "acked", "delivered", "ready", "final") == (
        3,
        1,
        0,
        None,
        False,
    )


def test_a_gauge_that_comes_too_late_counts_where_it_stands(spark: SparkSession) -> None:
    def gauge(offset: int, minute_us: int | None, at_us: int) -> Row:
        told = {"ready": offset, "delta": {"out": 1}, **({} if minute_us is None else {"minute": minute_us})}
        meta = json.dumps(told)
        return Row(event="gauge", channel="a", offset=offset, recorded_at=at_us, meta=meta)

    end = MINUTE_0 + MINUTE_US
    rows = [
        Row(event="nack", channel="a", offset=0, recorded_at=MINUTE_0, meta='{"fate":"term"}'),
        gauge(1, MINUTE_0, end + GRACE_US - 1),
        gauge(2, MINUTE_0, end + GRACE_US),
        gauge(3, MINUTE_0 + 50 * MINUTE_US, end + GRACE_US),
        gauge(4, None, end + GRACE_US),
    ]
    found = minutes_of(spark, rows)
    assert {minute: picked(row, "ready", "delivered", "nacked") for (_, minute), row in found.items()} == {
        0: (1, 1, 0),
        1: (4, 3, 0),
    }


@pytest.mark.promise("Spark: pipeline", "gold tables have exact minutes, however rows are batched")
@pytest.mark.parametrize("where", ["anywhere", "before the gauges", "behind the gauges"])
def test_any_way_to_cut_the_rows_ends_in_the_same_table(spark: SparkSession, history: Journaled, where: str) -> None:
    rows = history.rows
    gauges = [index for index, row in enumerate(rows) if row.event == "gauge"]
    cuts = {
        "anywhere": [3, 9, 14, 20, 23],
        "before the gauges": [index for index in gauges if rows[index - 1].event != "gauge"],
        "behind the gauges": [index + 1 for index in gauges if rows[index + 1].event != "gauge"],
    }[where]
    times_us = [row.recorded_at for row in rows]
    table: Rows = {}
    was_final: Rows = {}
    start = 0
    for end in [*cuts, len(rows)]:
        first = start and min(start, bisect_left(times_us, reach_us(times_us[start - 1])))
        table.update(minutes_of(spark, rows[first:end]))
        assert {key: table[key] for key in was_final} == was_final
        was_final = {key: row for key, row in table.items() if row["final"]}
        start = end
    assert table == minutes_of(spark, rows)


if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


COPY = {
    "id": "copy",
    "when": {"to": "jobs/*"},
    "do": [{"action": "route", "to": "copies"}, {"action": "notify", "to": "told"}],
    "limits": {"cooldownMs": 5_000},
}
HALF = {
    "id": "half",
    "when": {"to": "jobs/*"},
    "strict": True,
    "do": [
        {"action": "emit", "to": "told", "type": "x", "payload": "${env.payload.absent}"},
        {"action": "notify", "to": "told"},
    ],
}
SUMMARY = {
    "id": "summary",
    "hook": "on_ack",
    "when": {"to": "jobs/*"},
    "do": [{"action": "notify", "to": "told"}],
    "limits": {"cooldownMs": 5_000, "trailing": True},
}


@pytest.mark.promise(
    "Spark: pipeline",
    "`trigger_minutes` counts each firing; batches without one close its minute at no other cost",
)
def test_a_minute_holds_what_each_trigger_did_in_it(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bench = Journaled()
    rule(bench, COPY, HALF, SUMMARY)
    bench.send("jobs/a", "1", "kim")
    bench.send("jobs/b", "own", OWN_SENDER)
    bench.send("jobs/b", "2", "kim")  # both copies are suppressed, which is reported when the cooldown ends
    bench.ack(bench.subscribe("jobs/b", 2), "own", "2")  # the second ack is in the summary
    bench.wait(50)
    rule(bench, COPY | {"hook": "on_ack"}, HALF)
    bench.ack(bench.subscribe("jobs/a", 1), "1")
    bench.wait(10)
    until = {"": bench.now.wall_us}
    events = without_own(spark.createDataFrame(events_of(bench.rows)))
    made = trigger_minutes(events, until)
    assert made.schema.simpleString() == from_arrow_schema(TRIGGER_MINUTES.schema).simpleString()
    found = {}
    for row in made.toArrow().to_pylist():
        minute = (int(row["minute"].timestamp()) * 1_000_000 - MINUTE_0) // MINUTE_US
        assert row["date"] == row["minute"].date()
        named = ("hook", "fired", "failed", "suppressed", "sent", "streams", "final")
        found[row["trigger"], minute] = tuple(row[name] for name in named)
    assert found == {
        ("copy", 0): ("on_insert", 1, 0, 2, 2, 2, True),
        ("half", 0): ("on_insert", 0, 2, 0, 2, 2, True),
        ("summary", 0): ("on_ack", 1, 0, 1, 1, 1, True),
        ("copy", 1): ("on_ack", 1, 0, 0, 2, 1, False),
    }


@dataclass
class Made:
    """What Spark hands back."""

    rows: pa.Table

    def toArrow(self) -> pa.Table:
        return self.rows


def counted(part: JournalBatch) -> pa.Table:
    """The rows of the table for a stretch, counted without Spark."""
    [(one, rows_of)] = part.ranges.items()
    first, since_us = rows_of.reach
    names = ["recorded_at", "event", "peer"]
    batches = rows_of.journal.batches(first, rows_of.end, names)
    found: dict[tuple[int, str], int] = {}
    for row in pa.Table.from_batches(batches).cast(_PLAIN).to_pylist():
        minute_us = floor_minute(row["recorded_at"])
        if row["event"] == "trigger" and minute_us >= floor_minute(since_us):
            found[minute_us, row["peer"]] = found.get((minute_us, row["peer"]), 0) + 1
    rows = [
        {
            "journal": one,
            "date": from_us(minute_us).date(),
            "minute": minute_us,
            "trigger": rule,
            "fired": count,
            "final": is_final(minute_us, rows_of.until_us),
        }
        for (minute_us, rule), count in found.items()
    ]
    return pa.Table.from_pylist(rows, TRIGGER_MINUTES.schema)


_PLAIN = pa.schema([("recorded_at", pa.int64()), ("event", pa.string()), ("peer", pa.string())])


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trigger that acts now and then, in a queue that has other things to do meanwhile."""
    data = tmp_path_factory.mktemp("quiet")
    story = JournalBuilder(data)
    rule(story, {"id": "copy", "when": {"to": "jobs"}, "do": COPY["do"]})
    for number, wait_s in enumerate((5, 50, 20, 100, 200)):
        story.send("jobs", f"job-{number}", "ann")
        story.wait(wait_s / 2)
        story.send("other", f"other-{number}", "ann")
        story.wait(wait_s / 2)
    for number in range(10):
        story.send("other", f"more-{number}", "ann")
    story.close()
    return data


def brought(data: Path, lake: Path, cuts: Sequence[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """The table after batches that end at these rows, and the batches for which rows were asked for."""
    journal = location.open_one(data)
    asked = []

    def rows(part: JournalBatch) -> DataFrame:
        asked.extend(part.ends.values())
        return cast("DataFrame", Made(counted(part)))

    [shipped] = [step for step in built_in() if step.table is TRIGGER_MINUTES]
    step = Step(TRIGGER_MINUTES, rows, when=shipped.when, by_minute=shipped.by_minute)
    ingest = Ingest(cast("SparkSession", None), journal, lake, [step])
    first = 0
    for end in cuts:
        events = pa.Table.from_batches(journal.batches(first, end, ["event"])).column("event").to_pylist()
        unmet = () if "trigger" in events else (TRIGGERED,)
        ingest.advance(batch_between(ingest, first, end, unmet))
        first = end
    ingest.close()
    found = ingest.table("trigger_minutes").rows().to_pylist()
    return sorted(found, key=lambda row: row["minute"]), asked


@pytest.mark.promise(
    "Spark: pipeline",
    "`trigger_minutes` counts each firing; batches without one close its minute at no other cost",
)
@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_batch_without_firings_closes_the_minutes_of_earlier_ones_and_asks_no_more(
    quiet: Path, tmp_path: Path, size: int
) -> None:
    end = location.open_one(quiet).bounds().end
    whole, _ = brought(quiet, tmp_path / "whole", [end])
    assert [(row["fired"], row["final"]) for row in whole] == [(2, True), (2, True), (1, True)]
    made, asked = brought(quiet, tmp_path / "cut", [*range(size, end, size), end])
    assert made == whole
    assert asked == [last for first, last in pairwise([*range(0, end, size), end]) if is_needed(quiet, first, last)]
    assert max(asked) < end


def is_needed(data: Path, first: int, end: int) -> bool:
    """Whether a batch has a firing, or comes after one whose minute was not closed before."""
    journal = location.open_one(data)
    rows = pa.Table.from_batches(journal.batches(0, end, list(_PLAIN.names))).cast(_PLAIN).to_pylist()
    since_us = reach_us(rows[first - 1]["recorded_at"]) if first else 0
    fired = [place for place, row in enumerate(rows) if row["event"] == "trigger"]
    return any(place >= first or rows[place]["recorded_at"] >= since_us for place in fired)


@pytest.mark.promise("Spark: pipeline", "what the pipeline sends is in no table but its own, gauges included")
def test_envelopes_of_the_pipeline_are_in_no_minute(spark: SparkSession) -> None:
    bench = Journaled()
    for number in range(3):
        bench.send("agents/ops/inbox", f"alert-{number}", OWN_SENDER)
        bench.send("agents/sam/inbox", f"also-{number}", OWN_SENDER)
    bench.send("agents/sam/inbox", "mine", "kim")
    bench.wait(60)
    ops = bench.subscribe("agents/ops/inbox", 2)
    sam = bench.subscribe("agents/sam/inbox", 4)
    bench.ack(ops, "alert-0")
    bench.ack(sam, "also-0")
    bench.ack(sam, "mine")
    bench.wait(60)
    rows = minutes_of(spark, bench.rows)
    assert {channel for channel, _ in rows} == {"agents/sam/inbox"}
    counts = ("enqueued", "delivered", "acked", "ready", "leased", "delayed")
    assert picked(rows["agents/sam/inbox", 0], *counts) == (1, 0, 0, 1, 0, 0)
    assert picked(rows["agents/sam/inbox", 1], *counts) == (0, 1, 1, 0, 0, 0)
