"""Rows of the table `envelopes`, made without a JVM."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.core.rows import Row
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake.schemas import ENVELOPES
from penstock.spark.lake_tables.envelopes import envelope_rows
from tests.core.driving import START_WALL_US
from tests.spark.journaled import COMMIT_US, JOURNAL, Journaled, events_of

if TYPE_CHECKING:
    pass

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
