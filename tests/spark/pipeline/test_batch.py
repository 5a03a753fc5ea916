"""Batches of journal rows: the cache of recent rows, whole minutes, whole conversations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from penstock.journal.parquet_table import EventsTable
from penstock.spark import location
from penstock.spark.errors import DataLossError
from penstock.spark.lake.schemas import QUEUE_MINUTES
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake_tables.minutes import MINUTE_US, reach_us
from penstock.spark.pipeline.batch import MEASURED, JournalBatch, JournalRange, RecentRows, StepTimes
from penstock.spark.pipeline.journal_group import JournalGroup
from tests.spark.journal_builder import (
    JournalBuilder,
    content,
    work,
)
from tests.spark.journals import SECOND_US, Written, offsets_of
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


# Without a JVM


@pytest.fixture
def recent(tmp_path: Path) -> tuple[Written, RecentRows]:
    """A journal of 30 rows in three sealed files, and a cache of its rows."""
    journal = Written(tmp_path / "data", sync="off")
    for _ in range(3):
        journal.add(10)
        journal.seal()
    return journal, RecentRows(location.open_one(journal.data))


def rows_of(recent: RecentRows, first: int, end: int) -> list[int]:
    found = recent.rows(first, end)
    assert isinstance(found, pa.Table) and found.schema.names == MEASURED
    return offsets_of(found)


def test_recent_rows_are_read_once(recent: tuple[Written, RecentRows]) -> None:
    journal, cache = recent
    assert rows_of(cache, 0, 10) == list(range(10))
    journal.thin(1)
    assert rows_of(cache, 5, 25) == list(range(5, 25)), "those that are gone from the journal come from the cache"
    assert rows_of(cache, 7, 9) == [7, 8]


@pytest.mark.parametrize(("first", "end"), [(0, 5), (12, 15), (25, 30)])
def test_rows_that_do_not_continue_the_cache_are_read_anew(
    recent: tuple[Written, RecentRows], first: int, end: int
) -> None:
    _, cache = recent
    rows_of(cache, 10, 12)
    assert rows_of(cache, first, end) == list(range(first, end))


def test_too_many_rows_are_not_cached(recent: tuple[Written, RecentRows], monkeypatch: pytest.MonkeyPatch) -> None:
    journal, cache = recent
    rows_of(cache, 0, 10)
    monkeypatch.setattr("penstock.spark.pipeline.batch.RECENT_ROWS", 20)
    assert cache.rows(0, 21) is None
    journal.thin(1)
    assert rows_of(cache, 10, 30) == list(range(10, 30)), "the limit itself is cached"
    with pytest.raises(DataLossError):
        cache.rows(25, 31)


def batch_of(journal: Written, first: int) -> JournalBatch:
    source = location.open_one(journal.data)
    part = JournalRange(source, first, journal.end, source.time_of(journal.end - 1))
    return JournalBatch(NO_SPARK, NO_TABLES, JournalGroup.of(source), {source.id: part})


def range_of(journal: Written, first: int) -> JournalRange:
    [part] = batch_of(journal, first).ranges.values()
    return part


def test_a_batch_recounts_every_minute_that_it_may_change(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data", sync="off")
    journal.add(200)  # one row a second
    source = location.open_one(journal.data)
    part = range_of(journal, 190)
    reach = reach_us(source.time_of(189))
    assert part.reach == (source.offset_at(reach), reach)
    assert part.minutes_since_us == reach and reach % MINUTE_US == 0
    assert source.time_of(189) - reach > MINUTE_US, "the minute before may still be open"
    assert range_of(journal, 0).minutes_since_us == source.time_of(0) // MINUTE_US * MINUTE_US
    within = replace(part, end=195, until_us=source.time_of(194), has_gauges=False)
    assert reach_us(within.until_us) == reach, "it makes no minute final"
    assert within.minutes_since_us == source.time_of(190) // MINUTE_US * MINUTE_US > reach


def test_a_minute_without_its_first_rows_is_not_recounted(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data", sync="off")
    journal.add(110)
    journal.seal()
    journal.add(30)
    journal.seal()
    journal.thin(1)
    source = location.open_one(journal.data)
    assert source.bounds().first == 110
    oldest_us = source.time_of(110)
    assert oldest_us % MINUTE_US >= SECOND_US, "it begins within a minute"
    assert range_of(journal, 120).minutes_since_us == (oldest_us // MINUTE_US + 1) * MINUTE_US


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
    assert (list(times.ms), times.failed) == (["read", "envelopes.rows", "envelopes"], "envelopes.rows")
