"""Spark and the pipeline on a lake in an object store: formats, views, history, and the same tables as on a disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.journal.lake_location import LakePath, ObjectPath, lake_of, record_lake
from penstock.spark import history, tables
from penstock.spark.lake.catalog import open_table
from penstock.spark.location import open_one
from penstock.spark.pipeline import steps
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.rebuild import rebuild_table
from tests.docs.documents import blocks
from tests.docs.test_object_store import PAGE
from tests.object_store import ObjectStore
from tests.spark.journal_builder import JournalBuilder, content, talk, work
from tests.spark.journals import Written
from tests.spark.pipeline.queried import exported
from tests.spark.recomputation.check import check, lake_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.more


def placed(block: str, lake: LakePath) -> str:
    """A block of the page, with the lake of a test."""
    assert isinstance(lake, ObjectPath) and lake.credentials is not None
    return block.replace("s3://my-bucket/lake", lake.url).replace("lake.credentials", lake.credentials)


def _filled(spark: SparkSession, data: Path) -> Ingest:
    ingest = Ingest(spark, open_one(data), lake_of(data), steps.built_in())
    ingest.backfill()
    return ingest


@pytest.mark.promise("The lake", "the pipeline fills the same tables in S3 as on a disk")
def test_the_pipeline_fills_the_same_tables_as_on_a_disk(
    spark: SparkSession, object_store: ObjectStore, tmp_path: Path
) -> None:
    found = []
    for name in ("disk", "store"):
        story = JournalBuilder(tmp_path / name)
        if name == "store":
            record_lake(story.data, object_store.lake(tmp_path))
        work(story)
        talk(story, 1)
        story.seal()
        work(story, minutes=1)
        story.close()
        object_store.break_answers("PUT _delta_log/0", "PUT /part-")
        ingest = _filled(spark, story.data)
        if name == "store":
            rebuild_table(ingest, "deliveries")
        ingest.close()
        found.append(content(lake_of(story.data)))
    assert found[0] == found[1]
    url, options = str(lake_of(story.data)), object_store.environment(AWS_ALLOW_HTTP="true")
    filled = [name for name, rows in found[1].items() if rows]
    assert min(check(exported(story.data), lake_tables(url, options), filled).values()) > 0
    journal_end = open_one(story.data).mark().end
    names = tables(spark, story.data)
    assert {"events", "queue_minutes", "conversations"} <= set(names)
    assert spark.sql("select count(*) from events").first()[0] == history(spark, story.data).count() > 0
    assert history(spark, story.data, first=3, end=5).count() == 2
    assert spark.read.format("penstock").load(str(story.data)).count() == journal_end
    [(_, block)] = blocks(PAGE, "spark")
    shown: dict[str, Any] = {"spark": spark}
    exec(placed(block, lake_of(story.data)), shown)
    assert shown["rows"].count() == history(spark, story.data).count()
    assert set(os.listdir(story.data / "lake")) <= {"_locks", "_rebuild"}, "only locks are on the disk"


@pytest.mark.promise("The lake", "`history` in an object store opens only the files of its range")
def test_history_opens_only_the_files_of_its_range(
    spark: SparkSession, object_store: ObjectStore, tmp_path: Path
) -> None:
    journal = Written(tmp_path / "data")
    record_lake(journal.data, object_store.lake(tmp_path))
    for _ in range(3):
        journal.add(10)
        journal.seal()
    events = open_table(lake_of(journal.data), "events")
    gone = events.files({"offset": (0, 9)})
    assert 0 < len(gone) < len(events.files())
    for file in gone:
        (events.path / file.path).unlink()
    rows = history(spark, journal.data, first=12, end=14)
    assert sorted(row.offset for row in rows.collect()) == [12, 13]
    with pytest.raises(Exception, match="is gone"):
        history(spark, journal.data, first=8, end=14).collect()


def test_the_format_reads_and_writes_by_url(spark: SparkSession, object_store: ObjectStore, tmp_path: Path) -> None:
    lake = object_store.lake(tmp_path)
    options = {"credentials": str(lake.credentials)}
    url = str(lake / "own").replace("s3://", "s3a://")
    frame = spark.range(10).selectExpr("id", "id % 2 as kind")
    frame.write.format("penstock_delta").options(**options, mergeKeys="id").mode("append").save(url)
    more = spark.range(5, 15).selectExpr("id", "id % 3 as kind")
    more.write.format("penstock_delta").options(**options, mergeKeys="id").mode("append").save(url)
    read = spark.read.format("penstock_delta").options(**options)
    assert read.load(url).count() == 15
    assert {row.kind for row in read.load(url).where("id = 5").collect()} == {2}
    first = spark.read.format("penstock_delta").options(**options, versionAsOf=1)
    assert first.load(url).count() == 10
    feed = read.option("readChangeFeed", "true").option("startingVersion", 2)
    kinds = [row._change_type for row in feed.load(url).where("id >= 5").collect()]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "insert": 5, "update_preimage": 5, "update_postimage": 5
    }  # fmt: skip
    changes = spark.readStream.format("penstock_delta").options(**options, readChangeFeed="true").load(url)
    for _ in range(2):
        sink = changes.writeStream.format("penstock_delta").options(**options, mergeKeys="id", appId="chain")
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        sink.start(str(lake / "chained")).awaitTermination()
        chained = spark.read.format("penstock_delta").options(**options).load(str(lake / "chained"))
        plain = spark.read.format("penstock_delta").options(**options).load(url)
        assert sorted(chained.collect()) == sorted(plain.collect())
        frame.where("id < 3").selectExpr("id", "7 as kind").write.format("penstock_delta").options(
            **options, mergeKeys="id"
        ).mode("append").save(url)
