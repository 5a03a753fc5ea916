"""Sealed history over a day: a seal each minute leaves few files and a short log, and every row in place."""

from __future__ import annotations

import os
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.rows import Row
from penstock.journal import merge_small_files
from penstock.journal.columns import encode_rows, fitted
from penstock.journal.delta_log import CHECKPOINT_EVERY, KEPT_VERSIONS, DeltaLog
from penstock.journal.parquet_table import FILE_SCHEMA, EventsTable

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
    first = SEALS // 2 - merge_small_files.FILES_MIN - 5
    for number in range(first, SEALS // 2 + 5):
        sealed(bronze, number)
    dates = Counter(file.path[:15] for file in bronze.files())
    assert len(dates) == 2 and max(dates.values()) <= merge_small_files.FILES_MIN
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
            assert max(dates.values()) <= merge_small_files.FILES_MIN
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
    monkeypatch.setattr(merge_small_files, "FILES_MIN", 3)
    for number in (0, 1, 3, 4):
        sealed(bronze, number)
    assert [file.first for file in bronze.files()] == [0, 3, 9, 12]
    sealed(bronze, 5)
    assert [(file.first, file.last) for file in bronze.files()] == [(0, 2), (3, 5), (9, 17)]
    monkeypatch.setattr(merge_small_files, "SMALL_BYTES", 1)
    for number in (6, 7, 8):
        sealed(bronze, number)
    assert len(bronze.files()) == 6
