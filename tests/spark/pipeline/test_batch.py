"""Batches of journal rows: whole minutes, whole conversations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from penstock.journal.parquet_table import EventsTable
from penstock.spark import location
from penstock.spark.lake.schemas import QUEUE_MINUTES
from penstock.spark.lake.table import LakeTable
from penstock.spark.pipeline.batch import JournalBatch, StepTimes
from penstock.spark.pipeline.journal_group import JournalGroup
from penstock.spark.pipeline.journal_rows import JournalRange
from tests.spark.journal_builder import (
    JournalBuilder,
    content,
    talk,
    work,
)
from tests.spark.journals import Written
from tests.spark.pipeline.queried import ingest_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SPARK = cast("SparkSession", None)
"""Steps that read the journal themselves need no session."""
NO_TABLES = cast("Callable[[str], LakeTable]", None)


def test_the_minute_that_began_before_the_oldest_row_keeps_what_was_counted(spark: SparkSession, data: Path) -> None:
    """Retention cuts in the middle of a minute: a new count of its rest must not replace the whole."""
    ingest = ingest_of(spark, data, only={"queue_minutes"})
    ingest.backfill()
    whole = {row["minute"]: row["enqueued"] for row in content(data / "lake", ["queue_minutes"])["queue_minutes"]}
    bronze = EventsTable(data / "lake")
    bronze.remove(bronze.files(), 0)
    story = JournalBuilder(data)
    story.us += 4 * 60_000_000
    work(story, 1)
    story.close()
    ingest_of(spark, data, only={"queue_minutes"}).backfill()
    after = {row["minute"]: row["enqueued"] for row in content(data / "lake", ["queue_minutes"])["queue_minutes"]}
    assert {minute: after[minute] for minute in whole} == whole
    assert QUEUE_MINUTES.key == ("journal", "channel", "minute")


def test_a_conversation_that_outlives_the_journals_oldest_row_keeps_its_beginning(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    story = JournalBuilder(data)
    story.send("jobs", "ask", "ann", corr="long talk")
    story.wait(60)
    story.seal()
    ingest = ingest_of(spark, data, only={"envelopes", "deliveries", "conversations"})
    ingest.backfill()
    before = content(data / "lake", ["conversations"])["conversations"]
    bronze = EventsTable(data / "lake")
    bronze.remove(bronze.files(), 0)
    story.send("jobs", "answer", "bob", corr="long talk", refs=["ask"])
    story.close()
    ingest.backfill()
    [after] = content(data / "lake", ["conversations"])["conversations"]
    assert (after["root_id"], after["started_at"]) == ("ask", before[0]["started_at"])
    assert after["envelopes"] == 2 and after["critical_path"] == ["ask", "answer"]
    ingest.close()


COMMON = ["envelopes", "deliveries", "latest_per_agent", "queue_minutes", "conversations"]


@pytest.mark.parametrize("bound", ["batch.FOUND_ROWS_MAX", "journal_rows.SMALL_ROWS"])
def test_batches_with_and_without_spark_give_the_same_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Of the same rows: all by the driver, and with conversations, or whole batches, that are too large for it."""
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 2)
    talk(story, 0)
    story.close()
    made = []
    for session, lake in ((None, tmp_path / "driver"), (spark, tmp_path / "spark")):
        if session is not None:
            monkeypatch.setattr(f"penstock.spark.pipeline.{bound}", 1)
        ingest = ingest_of(session, data, only=set(COMMON), lake=lake)
        [one] = ingest.group.journals
        for end in (story.end // 2, story.end):
            ingest.on_batch({one: end})
        ingest.close()
        made.append(content(lake, COMMON))
    assert made[0] == made[1] and all(made[0].values())


# Without a JVM


@pytest.mark.promise("Spark: pipeline", "a small batch of the common tables needs no Spark job")
def test_a_small_batch_of_common_rows_needs_no_session(tmp_path: Path) -> None:
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 1)
    ingest = ingest_of(None, data)
    ingest.on_batch(dict.fromkeys(ingest.group.journals, story.end))
    first = dict(ingest.times.written)
    assert min(first[name] for name in ("envelopes", "deliveries", "queue_minutes", "conversations")) > 1
    story.send("jobs", "later", "ann", corr="talk-0-0")
    story.close()
    ingest.on_batch(dict.fromkeys(ingest.group.journals, story.end))
    written = ingest.times.written
    assert (written["envelopes"], written["conversations"], "deliveries" in written) == (1, 1, False)
    talks = content(data / "lake", ["conversations"])["conversations"]
    assert {row["corr"]: row["envelopes"] for row in talks}["talk-0-0"] > 2
    ingest.close()


def batch_of(journal: Written, first: int) -> JournalBatch:
    source = location.open_one(journal.data)
    part = JournalRange(source, first, journal.end, source.time_of(journal.end - 1))
    return JournalBatch(NO_SPARK, NO_TABLES, JournalGroup.of(source), {source.id: part})


def test_a_batch_is_shortened_or_extended_to_the_same_end(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data", sync="off")
    journal.add(20)
    batch = batch_of(journal, 10)
    [one] = batch.ranges
    assert batch.since({one: 10}) is batch
    for first in (5, 15):
        other = batch.since({one: first})
        assert (other.firsts, other.ends, other.until, other.given) == ({one: first}, {one: 20}, batch.until, None)


@pytest.mark.promise("Spark: pipeline", "a failed batch names its table and step")
def test_times_of_steps_add_up_and_the_first_failure_is_named() -> None:
    times = StepTimes()
    for _ in range(2):
        with times.of("read"):
            pass
    for step in ("envelopes.rows", "envelopes"):
        with pytest.raises(ValueError, match="bad"), times.of(step):
            raise ValueError("bad")
    times.wrote("envelopes", 2)
    times.wrote("envelopes", 3)
    assert times.written == {"envelopes": 5}
    assert (list(times.ms), times.failed) == (["read", "envelopes.rows", "envelopes"], "envelopes.rows")
