"""The index of a segment: entering it near a row, and noticing that it was replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import WATERMARK, encode_watermark, segments
from penstock.journal.reader import JournalReader, Mark
from tests.journal.histories import JOURNAL, START_US, publish, put, reopened


def test_a_segment_is_entered_near_the_row_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.journal.segments.READ_BYTES", 4_000)
    monkeypatch.setattr("penstock.journal.segments.STEP_BYTES", 4_000)
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk)
    for n in range(200):
        log.commit([[put(f"e{n}-{part}", b"x" * 50) for part in range(3)]], START_US + n)
    log.close()
    publish(disk, 600)
    reader = JournalReader(tmp_path)
    everything = pa.Table.from_batches(reader.batches(0, 600))
    assert everything.column("offset").to_pylist() == list(range(600))
    read = 0
    original = os.pread

    def watched(fd: int, size: int, position: int) -> bytes:
        nonlocal read
        data = original(fd, size, position)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", watched)
    size = (tmp_path / "journal" / segments(disk)[0].name).stat().st_size
    for first in (0, 1, 299, 300, 301, 598, 599):
        before = read
        part = pa.Table.from_batches(reader.batches(first, first + 1))
        assert part.equals(everything.slice(first, 1))
        assert read - before < size // 10


def test_a_segment_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    """As after a crash without syncs: the same name and place, other rows, a new epoch."""
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk, sync="off")
    log.commit([[put("old-1"), put("old-2")]], START_US)
    publish(disk, 2)
    reader = JournalReader(tmp_path)
    names = ["offset", "id", "epoch"]
    assert [b.to_pydict()["id"] for b in reader.batches(0, 9, names)] == [["old-1", "old-2"]]
    (segment,) = segments(disk)
    disk.open(segment.name).truncate(100)  # what the disk had kept of it
    log, _ = reopened(disk, sync="off")
    log.commit([[put("new-1"), put("new-2"), put("new-3")]], START_US)
    log.close()
    disk.overwrite(WATERMARK, encode_watermark(3, 1))
    disk.unlock()
    (batch,) = reader.batches(0, 9, names)
    assert batch.to_pydict() == {
        "offset": [0, 1, 2],
        "id": ["new-1", "new-2", "new-3"],
        "epoch": [1, 1, 1],
    }
    assert reader.mark() == Mark(JOURNAL, 1, 3)
