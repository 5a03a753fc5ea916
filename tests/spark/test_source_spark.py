"""The source inside Spark: found by its name, restarted from checkpoints, bounded, with clear errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.journal import named_readers
from penstock.journal.disk import RealDisk
from penstock.spark.pipeline.reporter import code_in
from tests.spark.journals import Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PATIENCE_S = 60
OTHER = "cd" * 16


class Lane:
    """A stream of the source into Parquet files, with a checkpoint: run it, and run it again."""

    def __init__(self, spark: SparkSession, folder: Path, *data: Path, **options: object) -> None:
        self.spark = spark
        self._folder = folder
        self._data = ",".join(map(str, data))
        self._options = {name: str(value) for name, value in options.items()}

    def start(self, **trigger: Any) -> StreamingQuery:
        rows = self.spark.readStream.format("penstock").options(**self._options).load(self._data)
        return (
            rows.writeStream.format("parquet")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .option("path", str(self._folder / "rows"))
            .trigger(**trigger)
            .start()
        )

    def run(self) -> list[dict[str, Any]]:
        """Everything there is; returns what Spark says of the batches."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(PATIENCE_S)
        return [progress for progress in query.recentProgress if progress["numInputRows"]]

    def rows(self) -> list[tuple[str, int]]:
        found = self.spark.read.parquet(str(self._folder / "rows"))
        return sorted((row["journal"], row["offset"]) for row in found.collect())


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    journal = Written(tmp_path / "data")
    for _ in range(2):
        journal.add(10)
        journal.seal()
    journal.add(10)
    yield journal
    journal.close()


@pytest.mark.promise(
    "Spark: source and sinks",
    "the source is found without registration and returns Arrow batches with exactly the declared schema",
)
def test_a_batch_read_gives_every_row_and_every_type(spark: SparkSession, written: Written) -> None:
    source = spark.read.format("penstock").option("minPartitions", 4).option("bodyAs", "json")
    rows = source.load(str(written.data))
    assert rows.columns[:5] == ["journal", "shard", "epoch", "offset", "recorded_at"]
    found = rows.selectExpr(
        "offset", "get_json_object(body, '$.n') as n", "id", "unix_micros(recorded_at) as at"
    ).collect()
    assert [(row["offset"], int(row["n"]), row["id"]) for row in sorted(found)] == [(n, n, f"e{n}") for n in range(30)]
    assert len({row["at"] for row in found}) == 30
    assert rows.selectExpr("spark_partition_id() as part").distinct().count() >= 4
    nothing = source.option("startingOffsets", "latest").load(str(written.data))
    assert nothing.count() == 0
    some = spark.read.format("penstock").options(columns="channel,offset", channel="jo*", event="ack")
    assert some.load(str(written.data)).columns == ["channel", "offset"]
    assert some.load(str(written.data)).count() == 0


def test_a_mistake_reads_as_one(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no option `startingoffset`; did you mean `startingOffsets`"):
        spark.read.format("penstock").option("startingoffset", "latest").load(str(tmp_path))
    with pytest.raises(Exception, match="there is no journal in"):
        spark.read.format("penstock").load(str(tmp_path)).count()


@pytest.mark.promise("Spark: source and sinks", "one query can read two journals")
def test_two_journals_in_many_bounded_batches_and_again_from_the_checkpoint(
    spark: SparkSession, tmp_path: Path, written: Written
) -> None:
    other = Written(tmp_path / "other", OTHER)
    other.add(10)
    lane = Lane(
        spark, tmp_path, written.data, other.data,
        startingOffsets="earliest", maxOffsetsPerTrigger=16, columns="journal,offset",
    )  # fmt: skip
    batches = lane.run()
    assert [batch["numInputRows"] for batch in batches] == [16, 16, 8]
    (source,) = batches[-1]["sources"]
    end = {"v": 1, "journals": {written.id: {"0": 30}, OTHER: {"0": 10}}}
    assert json.loads(source["endOffset"]) == end == json.loads(source["latestOffset"])
    kept = (tmp_path / "checkpoint" / "offsets" / str(batches[-1]["batchId"])).read_text().splitlines()
    assert json.loads(kept[-1]) == end, "what stands in the checkpoint is what is documented"
    expected = [(written.id, n) for n in range(30)] + [(OTHER, n) for n in range(10)]
    assert lane.rows() == sorted(expected)
    # The journals go on and are sealed while the query is down; nothing comes twice, nothing is missing.
    written.add(5)
    written.seal()
    other.add(5)
    assert [batch["numInputRows"] for batch in lane.run()] == [10]
    assert lane.rows() == sorted(
        expected + [(written.id, n) for n in range(30, 35)] + [(OTHER, n) for n in range(10, 15)]
    )
    other.close()


@pytest.mark.promise("Spark: source and sinks", "a journal can grow and be sealed while it is read")
def test_a_journal_that_grows_and_is_sealed_under_a_running_query(
    spark: SparkSession, tmp_path: Path, written: Written
) -> None:
    lane = Lane(spark, tmp_path, written.data, reader="nightly", columns="journal,offset")
    query = lane.start(processingTime="0 seconds")
    try:
        query.processAllAvailable()
        assert lane.rows() == [], "a stream begins at the end"
        for turn in range(3):
            written.add(7, each=3)
            written.add(1, sender="pipeline/own")
            if turn == 1:
                written.seal()
            query.processAllAvailable()
    finally:
        query.stop()
    own = {37, 45, 53}
    assert lane.rows() == [(written.id, n) for n in range(30, 54) if n not in own]
    (reader,) = named_readers.list_readers(RealDisk(written.data / "journal"))
    assert reader.name == "nightly" and 30 < reader.offset <= 54
    # The checkpoint is of this journal, and of no other that takes its place.
    written.remake(OTHER).add(100)
    query = lane.start(availableNow=True)
    with pytest.raises(Exception, match="DATA_LOSS") as caught:
        query.awaitTermination(PATIENCE_S)
    text = str(caught.value)
    assert code_in(text) == "JournalChanged"
    assert written.id in text and OTHER in text and "penstock pipeline reset" in text
