"""Data directories with a journal, as a server leaves them."""

from __future__ import annotations

from pathlib import Path

from penstock.journal.disk import RealDisk
from tests.journal.histories import START_US, publish, put, reopened


def write_journal(data: Path, rows: int) -> Path:
    """A data directory whose journal has so many rows."""
    disk = RealDisk(data / "journal")
    log, _ = reopened(disk)
    log.commit([[put(f"e{number}", seq=number + 1) for number in range(rows)]], START_US)
    publish(disk, log.position.offset)
    log.close()
    return data
