"""Recovery by hand gives the same tables: recreated journals, lost rows, halted states."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.ipc.pipeline import AlertsSection
from penstock.journal.disk import RealDisk
from penstock.journal.merge_small_files import FILES_MIN
from penstock.journal.parquet_table import EventsTable
from penstock.journal.reader import JournalReader
from penstock.journal.retention import Retention
from penstock.spark import location
from penstock.spark.lake.schemas import AGENTS, ALERTS
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.pipeline import gaps, steps
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.watch import AlertWatch
from tests.spark.journal_builder import JournalBuilder, content, work
from tests.spark.journaled import JOURNAL
from tests.spark.journals import Written, stream, table
from tests.spark.lakes import NOTES, notes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = f"{JOURNAL}/0"
OTHER = "cd" * 16


def test_a_journal_made_anew_beside_its_lake_reads_its_own_rows_alone(tmp_path: Path) -> None:
    """The lake keeps what an earlier journal sealed, in the same table and with the same offsets."""
    old = Written(tmp_path / "data")
    for _ in range(FILES_MIN):
        old.add(1, channel="old")
        old.seal()
    old.close()
    shutil.rmtree(old.data / "journal")
    new = Written(old.data, OTHER)
    new.add(1, channel="new")
    new.seal()  # of the same range as a file of the old one
    new.add(3, channel="new")
    reader = JournalReader(new.data)
    found = [row for batch in reader.batches(0, 9, ["journal", "offset", "channel"]) for row in batch.to_pylist()]
    assert found == [{"journal": OTHER, "offset": n, "channel": "new"} for n in range(4)]
    files = EventsTable(new.data / "lake").files()
    assert sum(file.rows for file in files if file.journal == old.id) == FILES_MIN
    held = Retention(age_ms=0, bytes_max=1)
    reader_disk = RealDisk(new.data / "journal")
    from penstock.journal import named_readers

    named_readers.advance(reader_disk, "me", 0, new.now_us)
    new.seal(held)
    left = EventsTable(new.data / "lake").files()
    assert {file.journal for file in left} == {OTHER} and sum(file.rows for file in left) == 4


def test_a_careless_stream_reads_the_rows_that_took_the_place_of_lost_ones(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data", sync="off")
    journal.add(15)
    seen = stream(journal.data).latestOffset({"v": 1, "journals": {journal.id: {"0": 0}}}, None)
    segment = sorted((journal.data / "journal").glob("log-*"))[-1]
    RealDisk(segment.parent).open(segment.name).truncate(segment.stat().st_size * 2 // 3)
    again = Written(journal.data, sync="off")
    lost = again.end
    assert lost < 15
    again.add(20)
    careless = stream(journal.data, failOnDataLoss="false", columns="offset,epoch")
    end = careless.latestOffset(seen, None)
    rows = table(careless, careless.partitions(seen, end)).to_pylist()
    assert rows == [{"offset": n, "epoch": 1} for n in range(lost, lost + 20)]


def test_a_users_table_is_moved_over_a_gap_too(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data", JOURNAL)
    journal.add(10)
    journal.seal()
    journal.add(5)
    journal.seal()
    mine = LakeTable(journal.data / "lake", NOTES)
    mine.append(notes(0, 4), {APP: Progress(0, 4)})
    journal.thin(1)
    assert gaps.accept(journal.data) == {"notes": (4, 10)}
    assert mine.progress(APP) == 10 and mine.rows().num_rows == 4


def test_users_tables_that_clash_or_do_not_load_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    mark = "import penstock.spark as p\n@p.table()\ndef {}(e): return e"
    for texts, said in (
        ([mark.format("_hidden")], "cannot be a table's name"),
        (["import no_such_module_anywhere"], "cannot be loaded: ModuleNotFoundError"),
        ([mark.format("errors"), mark.format("errors")], r"file1.*there is already a table `errors`"),
    ):
        files = [tmp_path / f"file{number}.py" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        with pytest.raises(steps.StepError, match=said):
            steps.load(spark, files)


def test_a_watch_goes_back_with_a_journal_that_lost_rows(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 1)
    story.close()
    journal = location.open_one(data)
    end = journal.bounds().end
    lake = data / "lake"
    seen = [{"journal": JOURNAL, "agent": name, "offset": offset} for name, offset in (("ann", 1), ("gone", end + 50))]
    import pyarrow as pa

    LakeTable(lake, AGENTS).merge(pa.Table.from_pylist(seen, AGENTS.schema), {APP: Progress(0, end + 60)})
    LakeTable(lake, ALERTS).merge(ALERTS.schema.empty_table(), {APP: Progress(0, end + 60)})
    watch = AlertWatch(spark, journal, lake, AlertsSection(), None)
    assert watch.end == end
    assert [row["agent"] for row in content(lake, ["agents"])["agents"]] == ["ann"]


def test_a_table_that_was_left_to_another_writer_needs_no_new_rows_to_catch_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 1)
    story.close()
    journal = location.open_one(data)
    end = journal.bounds().end
    from penstock.spark.pipeline.batch import journal_frame

    ingest = Ingest(spark, journal, data / "lake", steps.built_in())
    with LakeTable(data / "lake", ingest.table("envelopes").definition).writing():
        ingest.on_batch(journal_frame(spark, journal.location, 0, end))
        ingest.catch_up_skipped()
        assert set(ingest.behind) == {"envelopes", "conversations"}
    ingest.catch_up_skipped()
    assert ingest.behind == {}
    whole = Ingest(spark, journal, tmp_path / "lake", steps.built_in())
    whole.on_batch(journal_frame(spark, journal.location, 0, end))
    assert content(data / "lake") == content(tmp_path / "lake")
    ingest.close()
    whole.close()


def test_a_conversation_that_outlives_the_journals_oldest_row_keeps_its_beginning(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    story = JournalBuilder(data)
    story.send("jobs", "ask", "ann", corr="long talk")
    story.wait(60)
    story.seal()
    ingest = Ingest(spark, location.open_one(data), data / "lake", steps.built_in())
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
