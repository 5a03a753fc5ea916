"""What a minute of a queue holds, and that it does not depend on how the rows are cut or counted."""

from __future__ import annotations

import json
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.spark.lake.schemas import QUEUE_MINUTES
from penstock.spark.lake_tables.expressions import OWN_SENDER, without_own
from penstock.spark.lake_tables.minutes import GRACE_US, MINUTE_US, floor_minute, reach_us
from penstock.spark.lake_tables.queue_minutes import count, queue_minutes
from tests.core.driving import purge_all
from tests.spark.journaled import MINUTE_0, Journaled, events_of, holder

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


def keyed(made: list[dict[str, Any]]) -> Rows:
    found = {
        (row["channel"], (int(row["minute"].timestamp()) * 1_000_000 - MINUTE_0) // MINUTE_US): row for row in made
    }
    assert len(found) == len(made)
    return found


def minutes_of(rows: list[Row]) -> Rows:
    """The minutes of rows, counted without Spark, as a small batch is."""
    events = pa.table(events_of(rows))
    sender, door, channel = (pc.field(name) for name in ("sender", "door", "channel"))
    is_meant = (sender.is_null() | (sender != OWN_SENDER)) & (door == "courier") & (channel != "")
    times = {"": rows[-1].recorded_at}, {"": floor_minute(rows[0].recorded_at)}
    return keyed(
        pa.Table.from_batches(count(events.filter(is_meant).to_batches(), *times), QUEUE_MINUTES.schema).to_pylist()
    )


def picked(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


@pytest.mark.promise("Spark: pipeline", "gold tables have exact minutes, however rows are batched")
def test_a_minute_holds_what_happened_in_it(history: Journaled) -> None:
    rows = minutes_of(history.rows)
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


def test_what_has_no_row_is_taken_from_the_gauges_once(history: Journaled) -> None:
    rows = minutes_of(history.rows)
    out = sum(row["delivered"] for (channel, _), row in rows.items() if channel == "jobs")
    # Unreported deliveries of a crashed run are lost with it; reported ones are not reported again.
    assert out == 3 + 1
    quiet = rows["other", 1]
    assert picked(quiet, "enqueued", "ready", "wait_p50_ms", "total_p95_ms") == (1, 1, None, None)
    stands = rows["jobs", 1]
    assert picked(stands, "enqueued", "acked", "delivered", "ready") == (1, 1, 0, 1)


def test_a_running_minute_shows_what_is_known_and_no_depth(history: Journaled) -> None:
    end = next(index for index, row in enumerate(history.rows) if row.event == "gauge")
    rows = minutes_of(history.rows[: end - 1])
    assert picked(rows["jobs", 0], "enqueued", "acked", "delivered", "ready", "final") == (
        3,
        1,
        0,
        None,
        False,
    )


def test_a_gauge_that_comes_too_late_counts_where_it_stands() -> None:
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
    found = minutes_of(rows)
    assert {minute: picked(row, "ready", "delivered", "nacked") for (_, minute), row in found.items()} == {
        0: (1, 1, 0),
        1: (4, 3, 0),
    }


@pytest.mark.promise("Spark: pipeline", "gold tables have exact minutes, however rows are batched")
@pytest.mark.parametrize("where", ["anywhere", "before the gauges", "behind the gauges"])
def test_any_way_to_cut_the_rows_ends_in_the_same_table(history: Journaled, where: str) -> None:
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
        table.update(minutes_of(rows[first:end]))
        assert {key: table[key] for key in was_final} == was_final
        was_final = {key: row for key, row in table.items() if row["final"]}
        start = end
    assert table == minutes_of(rows)


@pytest.mark.promise("Spark: pipeline", "what the pipeline sends is in no table but its own, gauges included")
def test_envelopes_of_the_pipeline_are_in_no_minute() -> None:
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
    rows = minutes_of(bench.rows)
    assert {channel for channel, _ in rows} == {"agents/sam/inbox"}
    counts = ("enqueued", "delivered", "acked", "ready", "leased", "delayed")
    assert picked(rows["agents/sam/inbox", 0], *counts) == (1, 0, 0, 1, 0, 0)
    assert picked(rows["agents/sam/inbox", 1], *counts) == (0, 1, 1, 0, 0, 0)


@pytest.mark.promise("Spark: pipeline", "gold tables have exact minutes, however rows are batched")
def test_tasks_count_as_the_driver_does(spark: SparkSession, history: Journaled) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    events = without_own(spark.createDataFrame(events_of(history.rows))).repartition(3)
    made = queue_minutes(events, {"": history.rows[-1].recorded_at})
    assert made.schema.simpleString() == from_arrow_schema(QUEUE_MINUTES.schema).simpleString()
    assert keyed(made.toArrow().to_pylist()) == minutes_of(history.rows)


def test_what_a_row_says_wrongly_counts_for_nothing() -> None:
    at = {"channel": "a", "recorded_at": MINUTE_0}
    rows = [
        Row(event="nack", offset=0, meta="{", **at),
        Row(event="gauge", offset=1, meta="[1]", **at),
        Row(event="ack", offset=2, ref_at=MINUTE_0 + 5, first_at=MINUTE_0 + 2, **at),
        Row(event="ack", offset=3, ref_at=MINUTE_0 - 1_500, **at),
    ]
    [found] = minutes_of(rows).values()
    assert picked(found, "nacked", "delivered", "ready", "oldest_ms", "wait_p50_ms") == (1, 0, None, None, 0.0)
    assert found["total_p95_ms"] == pytest.approx(0.95 * 1.5), "one was settled before it was sent, by the clock"
    assert list(count([], {}, {})) == []
