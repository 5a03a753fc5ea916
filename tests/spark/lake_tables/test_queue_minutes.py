"""Queues by the minute."""

from __future__ import annotations

import json
from bisect import bisect_left
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.spark.lake.schemas import QUEUE_MINUTES
from penstock.spark.lake_tables.expressions import without_own
from penstock.spark.lake_tables.minutes import GRACE_US, MINUTE_US, queue_minutes, reach_us
from tests.spark.journaled import COMMIT_US, MINUTE_0, Journaled, events_of, holder

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
    bench.machine.purge(bench.now, bench.channel("other"))
    bench.commit()
    bench.wait(120)
    return bench


def minutes_of(spark: SparkSession, rows: list[Row]) -> Rows:
    until = datetime.fromtimestamp(rows[-1].recorded_at / 1_000_000, UTC)
    until = until.replace(microsecond=rows[-1].recorded_at % 1_000_000)
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

    shape = queue_minutes(spark.createDataFrame(history.events), datetime.now(UTC)).schema
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
    # Two were settled, after 100 ms and at once, each with the time of its commit.
    assert first["total_p95_ms"] == pytest.approx(0.95 * 100 + COMMIT_US / 1000)
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
