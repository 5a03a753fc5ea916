"""Token streams through Spark: silver, the audit of chains, and the tables of a pipeline with keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core.records import Entry
from penstock.core.rows import Row
from penstock.dialects.streamservice.messages import Complete, Token
from penstock.spark import location, token_audit
from penstock.spark.lake.schemas import TOKEN_CHUNKS, TOKEN_STREAMS
from penstock.spark.lake_tables.token_streams import token_chunks
from penstock.spark.pipeline import steps
from penstock.spark.pipeline.ingest import Ingest
from tests.spark.journal_builder import JournalBuilder, content
from tests.spark.journaled import MINUTE_0, events_of
from tests.spark.lake_tables.test_stream_state import HASH, KEY, TOPIC, Tale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND_US = 1_000_000


def rows_of(*tales: tuple[str, Tale]) -> list[Row]:
    """Rows of the journal for rows of topics, those of all topics in turn."""
    heard = sorted(((row.at_us, topic, row) for topic, tale in tales for row in tale.rows), key=lambda one: one[:2])
    return [
        Row(
            door="streamservice",
            event=row.event,
            channel=topic,
            seq=place,
            offset=place,
            recorded_at=MINUTE_0 + at_us,
            kind=row.format,
            size=row.size,
            recipients=2,
            reason=row.reason,
            meta=row.meta,
            body=row.body,
        )
        for place, (at_us, topic, row) in enumerate(heard)
    ]


def told(count: int) -> Tale:
    """A stream of so many tokens from beginning to end."""
    tale = Tale()
    tale.add("register")
    for number in range(count):
        tale.chunk(Token(f"{number}"))
    tale.counts(count, replayed=3, waiting=1)
    tale.chunk(Complete(count, "stop"))
    tale.add("expire", reason="expired")
    return tale


@pytest.mark.promise("Spark: pipeline", "`token_chunks` and `token_streams` do not depend on how rows are batched")
def test_silver_has_a_row_for_each_message_and_each_count(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    tale = told(2)
    tale.add("chunk", format="block", size=9, meta='{"held":true}', body=b"x")
    made = token_chunks(spark.createDataFrame(events_of(rows_of((HASH, tale)))))
    assert made.schema.simpleString() == from_arrow_schema(TOKEN_CHUNKS.schema).simpleString()
    named = ("seq", "format", "bytes", "replayed", "held", "subscribers", "chunks")
    rows = made.orderBy("offset").toArrow().to_pylist()
    assert [tuple(row[name] for name in named) for row in rows] == [
        (1, "chunk", None, False, False, 2, None),
        (2, "chunk", None, False, False, 2, None),
        (3, "chunk", 200, True, True, 2, 2),
        (4, "chunk", None, False, False, 2, None),
        (6, "block", 9, False, True, 2, None),
    ]
    assert {row["topic_hash"] for row in rows} == {HASH}
    assert {row["date"] for row in rows} == {row["recorded_at"].date() for row in rows}


@pytest.mark.promise(
    "Spark: pipeline",
    "with keys, tokens and endings are counted, and an audit of whole chains detects forged, lost and moved messages",
)
def test_an_audit_tells_whole_chains_from_others(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    broken = told(3)
    del broken.rows[2]
    unknown = told(1)
    events = spark.createDataFrame(events_of(rows_of((HASH, told(4)), ("b" * 64, unknown))))
    made = token_audit(events, {TOPIC: KEY.mac_key})
    assert made.schema.simpleString() == from_arrow_schema(TOKEN_STREAMS.schema).simpleString()
    named = ("tokens", "chain_ok", "breaks", "ended", "finish_reason")
    found = {row["topic_hash"]: tuple(row[name] for name in named) for row in made.toArrow().to_pylist()}
    assert found == {
        HASH: (4, True, 0, "complete", "stop"),
        "b" * 64: (None, None, None, "expired", None),
    }
    events = spark.createDataFrame(events_of(rows_of((HASH, broken))))
    [row] = token_audit(events, {TOPIC: KEY}).collect()
    assert (row.tokens, row.chain_ok, row.breaks, row.ended) == (2, False, 1, "complete")


@pytest.mark.promise(
    "Spark: pipeline",
    "with keys, tokens and endings are counted, and an audit of whole chains detects forged, lost and moved messages",
)
def test_a_pipeline_with_keys_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    story = JournalBuilder(tmp_path)
    tale = told(5)
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_bytes(msgspec.json.encode({"topic": TOPIC, "mac_key": KEY.mac_key.hex()}) + b"\n")
    built = [step for step in steps.built_in(keys) if step.table is TOKEN_STREAMS]
    found = []
    for first, end in ((0, 3), (3, 7), (7, len(tale.rows))):
        for row in tale.rows[first:end]:
            size = None if row.body is None else len(row.body)
            more = {
                "kind": row.format,
                "reason": row.reason,
                "meta": row.meta,
                "body": row.body,
                "size": size,
            }
            story.note(Entry("streamservice", row.event, HASH, row.offset, **more))
            story.wait(1)
        ingest = Ingest(spark, location.open_one(tmp_path), tmp_path / "lake", built)
        ingest.backfill()
        ingest.close()
        [row] = content(tmp_path / "lake", ["token_streams"])["token_streams"]
        found.append((row["tokens"], row["chain_ok"], row["ended"], row["finish_reason"]))
    story.close()
    assert found == [(2, True, "open", None), (5, True, "open", None), (5, True, "complete", "stop")]
    assert row["expired_at"] > row["ended_at"] and row["journaled"] == 6
    audited = token_audit(spark.read.format("penstock").load(str(tmp_path)), {TOPIC: KEY.mac_key.hex()})
    assert audited.toArrow().to_pylist() == [row]
