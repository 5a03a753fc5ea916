"""Recovery by hand: recreated journals, lost rows, accepted gaps."""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock.journal.disk import RealDisk
from penstock.journal.parquet_table import FILES_MIN, EventsTable
from penstock.journal.reader import JournalReader
from penstock.journal.retention import Retention
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.pipeline.ingest import accept
from tests.spark.journaled import JOURNAL
from tests.spark.journals import Written, stream, table
from tests.spark.lakes import NOTES, notes

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
    assert accept(journal.data) == {"notes": (4, 10)}
    assert mine.progress(APP) == 10 and mine.rows().num_rows == 4
