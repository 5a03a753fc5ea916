"""Queues by the minute, the latest of each inbox, the last act of each agent."""

from __future__ import annotations

import json
from bisect import bisect_left
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.spark.lake.schemas import AGENTS, LATEST_PER_AGENT, QUEUE_MINUTES
from penstock.spark.pipeline.batch import INBOXES
from penstock.spark.tables import gold, silver
from penstock.spark.tables.gold import GRACE_US, MINUTE_US, is_final, queue_minutes, reach_us
from tests.spark.journaled import COMMIT_US, MINUTE_0, Journaled, events_of, holder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = dict[tuple[str, int], dict[str, Any]]
times = st.integers(MINUTE_0, MINUTE_0 + 20 * MINUTE_US)


@given(last_us=times, later_us=times, back_us=st.integers(0, MINUTE_US + GRACE_US - 1))
def test_no_row_changes_a_minute_before_the_reach_nor_a_final_one(
    last_us: int, later_us: int, back_us: int
) -> None:
    """A row counts for its own minute or, as a gauge, for one that ended less than the grace before it."""
    at_us = max(last_us, later_us)
    for minute_us in (gold.floor_minute(at_us), gold.floor_minute(at_us - back_us)):
        if at_us < minute_us + MINUTE_US + GRACE_US:
            assert minute_us >= reach_us(last_us)
            assert not is_final(minute_us, last_us) or at_us == last_us


@given(last_us=times)
def test_the_reach_covers_every_minute_that_is_not_final_and_not_many_more(last_us: int) -> None:
    reach = reach_us(last_us)
    assert reach % MINUTE_US == 0
    assert is_final(reach - MINUTE_US, last_us)
    assert last_us - reach < 2 * MINUTE_US + GRACE_US


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
    made = (
        queue_minutes(silver.without_own(spark.createDataFrame(events_of(rows))), until).toArrow().to_pylist()
    )
    keyed = {
        (row["channel"], (int(row["minute"].timestamp()) * 1_000_000 - MINUTE_0) // MINUTE_US): row
        for row in made
    }
    assert len(keyed) == len(made)
    return keyed


def picked(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


@pytest.mark.promise("Spark: pipeline", "gold: exact minutes, whatever the batches")
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
    # Deliveries of a run that did not live to tell are lost with it; what it had told is not told again.
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


@pytest.mark.promise("Spark: pipeline", "gold: exact minutes, whatever the batches")
@pytest.mark.parametrize("where", ["anywhere", "before the gauges", "behind the gauges"])
def test_any_way_to_cut_the_rows_ends_in_the_same_table(
    spark: SparkSession, history: Journaled, where: str
) -> None:
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


@pytest.mark.promise("Spark: pipeline", "`latest_per_agent`")
def test_the_newest_of_each_inbox_is_what_the_live_view_shows(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bench = Journaled()
    for number, to in enumerate(["agents/sam/inbox", "agents/kim/inbox", "agents/sam/inbox", "jobs"]):
        bench.send(to, f"e{number}", "lee", corr="c")
    for to in ("agents/sam/inbox/more", "agents//inbox", "x/agents/sam/inbox", "agents/sam/outbox"):
        bench.send(to, "elsewhere")
    kim = bench.subscribe("agents/kim/inbox", 1)
    bench.term(kim, "e1")  # its letter is in the dead letters, and no newer envelope of the inbox
    bench.send("agents/kim/inbox", "e4", "lee")
    bench.machine.redrive(bench.now, "agents/kim/inbox", 1)  # nor is it one when it is back
    bench.apply()
    bench.commit()
    rows = spark.createDataFrame(bench.events).repartition(2).where(INBOXES)
    made = gold.latest_per_agent(silver.envelopes(rows))
    assert made.schema.simpleString() == from_arrow_schema(LATEST_PER_AGENT.schema).simpleString()
    found = {row["address"]: row for row in made.toArrow().to_pylist()}
    assert {address: picked(row, "agent", "id", "seq", "sender") for address, row in found.items()} == {
        "agents/sam/inbox": ("sam", "e2", 2, "lee"),
        "agents/kim/inbox": ("kim", "e4", 2, "lee"),
    }
    live = bench.machine.views.latest.rows
    assert {address: msgspec.json.decode(row.data)["id"] for address, row in live.items()} == {
        address: row["id"] for address, row in found.items()
    }
    assert picked(found["agents/sam/inbox"], "offset", "payload", "corr") == (2, '{"n":"e2"}', "c")


def test_an_agent_is_known_by_what_it_sends_and_what_it_settles(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bench = Journaled(Policy(max_deliveries=1))
    bench.send("jobs", "1", "agents/kim")
    bench.send("jobs", "2", "kim")
    bench.send("jobs", "3", "lee")
    sam = bench.subscribe("jobs", 1, link=bench.connect(holder("sam")))
    bench.ack(sam, "1")
    hung = bench.subscribe("jobs", 1, lease_ms=1_000, link=bench.connect(holder("hung")))
    bench.advance(1_500)
    assert not hung.leases
    bench.send("agents/ann/inbox", "4")
    bench.term(bench.subscribe("agents/ann/inbox", 1), "4")  # by the operator, who is nobody's agent
    bench.send("agents/bob/inbox", "5")
    unnamed = bench.connect(holder("anonymous"))
    bench.ack(bench.subscribe("agents/bob/inbox", 1, link=unnamed), "5")
    bench.send("jobs", "6", silver.OWN_SENDER)
    bench.send("jobs", "7", "anonymous")
    made = gold.agents(silver.without_own(spark.createDataFrame(bench.events)))
    assert made.schema.simpleString() == from_arrow_schema(AGENTS.schema).simpleString()
    found = {row["agent"]: picked(row, "event", "channel", "offset") for row in made.toArrow().to_pylist()}
    offsets = {(row.event, row.id): row.offset for row in bench.rows if row.channel != "dlq/jobs"}
    assert found == {
        "kim": ("enqueue", "jobs", offsets["enqueue", "2"]),
        "lee": ("enqueue", "jobs", offsets["enqueue", "3"]),
        "sam": ("ack", "jobs", offsets["ack", "1"]),
        "bob": ("ack", "agents/bob/inbox", offsets["ack", "5"]),
    }


def test_an_agents_acts_are_one_turn_until_a_long_pause(spark: SparkSession) -> None:
    bench = Journaled()
    start_us = bench.now.wall_us + COMMIT_US
    for number, pause_ms in enumerate([100, 100, 1_000, 1_001, 10, 10]):
        bench.send("jobs", str(number), "sam")
        bench.send("other", str(number), None if number else "kim")
        bench.advance(pause_ms)
    bench.send("jobs", "last", "sam")
    kept = [tuple(row) for row in gold.turns(spark.createDataFrame(bench.events), 1_000).collect()]
    assert kept == [
        ("sam", start_us, start_us + 1_200_000),
        ("kim", start_us, start_us),
        ("sam", start_us + 2_201_000, start_us + 2_221_000),
    ]
