"""Rows of the table `envelopes`, made without a JVM."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake.schemas import AGENTS, ENVELOPES
from penstock.spark.lake_tables.envelopes import agents, envelope_rows, turns
from penstock.spark.lake_tables.expressions import OWN_SENDER, without_own
from tests.core.driving import START_WALL_US
from tests.spark.journaled import COMMIT_US, JOURNAL, Journaled, events_of, holder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime.fromtimestamp(START_WALL_US // 1_000_000, UTC)


def after(ms: float, *, committed: bool = True) -> datetime:
    return START + timedelta(milliseconds=ms, microseconds=COMMIT_US * committed)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_a_batch_of_the_journal_becomes_rows_without_a_jvm() -> None:
    bench = Journaled()
    bench.send("agents/sam/inbox", "1", "kim", corr="c", refs=["0"], headers={"n": 1}, priority=9)
    batch = bench.events.to_batches()[0]
    made = envelope_rows(batch)
    assert made.schema.equals(ENVELOPES.schema)
    assert rows_of(made) == [
        {
            "journal": JOURNAL,
            "offset": 0,
            "date": date(2025, 10, 9),
            "recorded_at": after(0),
            "door": "courier",
            "channel": "agents/sam/inbox",
            "seq": 1,
            "id": "1",
            "type": "note",
            "sender": "kim",
            "targets": ["agents/sam/inbox"],
            "corr": "c",
            "refs": ["0"],
            "tags": None,
            "headers": [("n", "1")],
            "schema": None,
            "producer_ts": START,
            "payload": '{"n":"1"}',
            "payload_error": None,
            "extra": '{"priority":9}',
            "bytes": len(bench.rows[0].body or b""),
        }
    ]


def test_the_date_is_that_of_utc_whatever_zone_the_times_are_shown_in() -> None:
    row = Row(event="enqueue", offset=0, recorded_at=86_400_000_000 * 365 - 1, channel="a", body=b"{}")
    batch = events_of([row]).to_batches()[0]
    index = batch.schema.get_field_index("recorded_at")
    zoned = batch.column(index).cast(pa.timestamp("us", tz="Asia/Tokyo"))
    made = envelope_rows(batch.set_column(index, "recorded_at", zoned))
    assert rows_of(made)[0]["date"] == date(1970, 12, 31)


def test_an_empty_batch_is_no_rows() -> None:
    assert envelope_rows(pa.RecordBatch.from_pylist([], FILE_SCHEMA)).num_rows == 0


def picked(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


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
    bench.term(bench.subscribe("agents/ann/inbox", 1), "4")  # by the operator, which is no agent
    bench.send("agents/bob/inbox", "5")
    unnamed = bench.connect(holder("anonymous"))
    bench.ack(bench.subscribe("agents/bob/inbox", 1, link=unnamed), "5")
    bench.send("jobs", "6", OWN_SENDER)
    bench.send("jobs", "7", "anonymous")
    made = agents(without_own(spark.createDataFrame(bench.events)))
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
    kept = [tuple(row) for row in turns(spark.createDataFrame(bench.events), 1_000).collect()]
    assert kept == [
        ("sam", start_us, start_us + 1_200_000),
        ("kim", start_us, start_us),
        ("sam", start_us + 2_201_000, start_us + 2_221_000),
    ]
