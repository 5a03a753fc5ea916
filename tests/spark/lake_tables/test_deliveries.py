"""Rows of the tables `deliveries` and `envelopes` for one record of each outcome."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from penstock.core.rows import Row
from penstock.spark.lake.schemas import DELIVERIES, ENVELOPES
from penstock.spark.lake_tables.deliveries import deliveries
from penstock.spark.lake_tables.envelopes import envelopes
from penstock.spark.lake_tables.expressions import OWN_SENDER, without_own
from tests.core.driving import START_WALL_US, purge_all, redrive
from tests.spark.journaled import COMMIT_US, JOURNAL, Journaled, events_of, holder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime.fromtimestamp(START_WALL_US // 1_000_000, UTC)


def after(ms: float, *, committed: bool = True) -> datetime:
    return START + timedelta(milliseconds=ms, microseconds=COMMIT_US * committed)


@pytest.fixture(scope="module")
def history() -> Journaled:
    """One record for each way to end, a dead letter, a redriven one, one sent by the pipeline, one that is not settled."""
    bench = Journaled()
    sam = bench.subscribe("jobs", 3, link=bench.connect(holder("sam")))
    bench.send("jobs", "acked", "kim", corr="c")
    bench.send("jobs", "dead", "kim")
    bench.send("jobs", "open", "kim")
    bench.advance(100)
    bench.nack(sam, "acked", 0)
    bench.grant(sam, 1)
    bench.send("jobs", "purged", "kim")
    bench.advance(400)
    bench.ack(sam, "acked")
    bench.term(sam, "dead", "broken")
    purge_all(bench.machine, bench.now, bench.channel("jobs"))
    bench.commit()
    redrive(bench.machine, bench.now, "jobs", 1)
    bench.apply()
    bench.commit()
    bench.send("agents/kim/inbox", "alert", OWN_SENDER)
    bench.ack(bench.subscribe("agents/kim/inbox", 1), "alert")
    bench.wait(60)
    return bench


@pytest.mark.promise("Spark: pipeline", "silver tables have one row for every envelope and every settle")
def test_every_envelope_and_every_end_is_one_row(spark: SparkSession, history: Journaled) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bad = Row(event="enqueue", offset=900, recorded_at=START_WALL_US, channel="jobs", seq=99, id="bad", body=b"{")
    events = spark.createDataFrame(pa.concat_tables([history.events, events_of([bad])])).repartition(2)
    sent = envelopes(without_own(events))
    assert sent.schema.simpleString() == from_arrow_schema(ENVELOPES.schema).simpleString()
    found = {(row["channel"], row["id"], row["seq"]): row for row in sent.toArrow().to_pylist()}
    assert sorted(found) == [
        ("dlq/jobs", "dead", 1),
        ("jobs", "acked", 1),
        ("jobs", "bad", 99),
        ("jobs", "dead", 2),
        ("jobs", "dead", 5),
        ("jobs", "open", 3),
        ("jobs", "purged", 4),
    ]
    letter = found["dlq/jobs", "dead", 1]
    assert (letter["targets"], letter["payload"]) == (["jobs"], '{"n":"dead"}')
    assert msgspec.json.decode(dict(letter["headers"])["x-courier"])["lastError"] == "broken"
    assert found["jobs", "acked", 1]["producer_ts"] == START
    assert found["jobs", "acked", 1]["recorded_at"] == after(0)
    broken = found["jobs", "bad", 99]
    assert (broken["payload"], broken["payload_error"], broken["targets"]) == (
        None,
        "input data was truncated",
        ["jobs"],
    )

    ended = deliveries(without_own(events))
    assert ended.schema.simpleString() == from_arrow_schema(DELIVERIES.schema).simpleString()
    ends = {row["id"]: row for row in ended.toArrow().to_pylist()}
    assert {id_: (row["outcome"], row["holder"], row["attempts"]) for id_, row in ends.items()} == {
        "acked": ("acked", "sam", 2),
        "dead": ("dead", "sam", 1),
        "purged": ("purged", None, 0),
    }
    assert ends["acked"] == {
        "journal": JOURNAL,
        "offset": next(row.offset for row in history.rows if row.event == "ack"),
        "date": date(2025, 10, 9),
        "channel": "jobs",
        "seq": 1,
        "id": "acked",
        "type": "note",
        "sender": "kim",
        "holder": "sam",
        "corr": "c",
        "enqueued_at": after(0),
        "first_delivered_at": after(0, committed=False),
        "settled_at": after(500),
        "attempts": 2,
        "wait_ms": 0.0,
        "work_ms": 500 + COMMIT_US / 1000,
        "total_ms": 500.0,
        "outcome": "acked",
        "reason": None,
    }
    never = ends["purged"]
    assert (never["first_delivered_at"], never["wait_ms"], never["work_ms"]) == (None, None, None)
    assert never["total_ms"] == 400
    assert ends["dead"]["reason"] == "term"


def test_a_clock_that_was_set_back_gives_no_negative_times(spark: SparkSession) -> None:
    back = Row(event="ack", offset=0, recorded_at=5_000_000, channel="a", ref_at=9_000_000, first_at=8_000_000)
    (row,) = deliveries(spark.createDataFrame(events_of([back]))).toArrow().to_pylist()
    assert (row["wait_ms"], row["work_ms"], row["total_ms"]) == (0.0, 0.0, 0.0)
