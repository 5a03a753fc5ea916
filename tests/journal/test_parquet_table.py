"""The Parquet table of sealed rows."""

from __future__ import annotations

from pathlib import Path

from penstock.journal.disk import RealDisk
from tests.journal.driven import table_rows
from tests.journal.histories import (
    DAY_US,
    START_US,
    put,
    reopened,
)
from tests.journal.test_seal import seal_all


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
