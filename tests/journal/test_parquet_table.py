"""The Parquet table of sealed rows."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.rows import Row
from penstock.journal import parquet_table
from penstock.journal.columns import encode_rows, fitted
from penstock.journal.delta_log import CHECKPOINT_EVERY, KEPT_VERSIONS, DeltaLog
from penstock.journal.disk import RealDisk
from penstock.journal.parquet_table import FILE_SCHEMA, EventsTable
from tests.journal.driven import table_rows
from tests.journal.histories import DAY_US, START_US, put, reopened
from tests.journal.test_seal import seal_all

SEALS = 260
STEP_US = 86_400_000_000 * 2 // SEALS  # two days


def sealed(bronze, number):
    """One seal of three rows."""
    rows = [
        Row("j1", 0, 0, offset, number * STEP_US, "courier", "enqueue", "jobs", offset, f"m{offset}")
        for offset in range(number * 3, number * 3 + 3)
    ]
    table = pa.Table.from_batches([fitted(encode_rows(rows), FILE_SCHEMA, {"journal": "j1", "shard": 0, "epoch": 0})])
    assert bronze.publish(table, "j1", 0, number * 3 + 3)
    bronze.tidy()


def offsets(bronze, table=None):
    found = []
    for file in bronze.files(table):
        rows = pq.read_table(bronze.path / file.path, partitioning=None)
        assert rows.column("offset").to_pylist() == list(range(file.first, file.last + 1))
        assert rows.num_rows == file.rows
        found += rows.column("offset").to_pylist()
    return found


def test_two_dates_of_seals_leave_few_files_and_every_row(tmp_path):
    bronze = EventsTable(tmp_path)
    first = SEALS // 2 - parquet_table.FILES_MIN - 5
    for number in range(first, SEALS // 2 + 5):
        sealed(bronze, number)
    dates = Counter(file.path[:15] for file in bronze.files())
    assert len(dates) == 2 and max(dates.values()) <= parquet_table.FILES_MIN
    assert offsets(bronze) == list(range(first * 3, (SEALS // 2 + 5) * 3))


@pytest.mark.more
def test_two_days_of_seals(tmp_path):
    bronze = EventsTable(tmp_path)
    log = DeltaLog(bronze.path)
    most = 0
    for number in range(SEALS):
        sealed(bronze, number)
        if number % 7 == 0 or number == SEALS - 1:
            dates = Counter(file.path[:15] for file in bronze.files())
            assert max(dates.values()) <= parquet_table.FILES_MIN
        most = max(most, len(list(log.path.iterdir())))
    assert len(dates) == 2  # never merged over midnight
    assert most <= KEPT_VERSIONS + 3 * CHECKPOINT_EVERY
    assert offsets(bronze) == list(range(SEALS * 3))
    assert bronze.sealed_end("j1", 0) == SEALS * 3
    rows = bronze.table().to_pyarrow_table()
    assert sorted(rows.column("offset").to_pylist()) == list(range(SEALS * 3))

    kept = log.kept()
    old = bronze.table()
    old.load_as_version(kept.start)
    assert offsets(bronze, old) == list(range(bronze.files(old)[-1].last + 1))
    on_disk = len(list(bronze.path.glob("date=*/*.parquet")))
    for path in bronze.path.glob("date=*/*.parquet"):
        os.utime(path, (1, 1))
    removed, _ = log.sweep(time.time())
    assert 0 < removed < on_disk
    assert offsets(bronze) == list(range(SEALS * 3))
    assert offsets(bronze, old)  # what a kept version speaks of is still there


def test_a_gap_or_a_large_file_ends_a_run(tmp_path, monkeypatch):
    bronze = EventsTable(tmp_path)
    monkeypatch.setattr(parquet_table, "FILES_MIN", 3)
    for number in (0, 1, 3, 4):
        sealed(bronze, number)
    assert [file.first for file in bronze.files()] == [0, 3, 9, 12]
    sealed(bronze, 5)
    assert [(file.first, file.last) for file in bronze.files()] == [(0, 2), (3, 5), (9, 17)]
    monkeypatch.setattr(parquet_table, "SMALL_BYTES", 1)
    for number in (6, 7, 8):
        sealed(bronze, number)
    assert len(bronze.files()) == 6


def test_the_day_may_change_within_a_segment(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk)
    midnight = START_US // DAY_US * DAY_US + DAY_US
    for n, at in enumerate((midnight - 2, midnight - 1, midnight, midnight + DAY_US)):
        log.commit([[put(f"e{n}", seq=n + 1)]], at)
    log.rotate()
    log.close()
    seal_all(disk, tmp_path)
    names = sorted(file.parent.name for file in (tmp_path / "lake" / "events").glob("date=*/*.parquet"))
    assert names == ["date=2025-10-09", "date=2025-10-10", "date=2025-10-11"]
    table = table_rows(tmp_path)
    assert table.column("id").to_pylist() == ["e0", "e1", "e2", "e3"]
    assert [str(day) for day in table.column("date").to_pylist()] == [
        "2025-10-09", "2025-10-09", "2025-10-10", "2025-10-11",
    ]  # fmt: skip
