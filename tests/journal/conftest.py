"""A small journal, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.journal.disk import RealDisk
from tests.journal.histories import START_US, publish, put, reopened


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """Ten rows in two segments and a tail, not sealed yet."""
    log, _ = reopened(RealDisk(tmp_path / "journal"))
    disk = RealDisk(tmp_path / "journal")
    for n in range(10):
        log.commit([[put(f"e{n}", seq=n + 1)]], START_US + n)
        if n in (3, 6):
            log.rotate()
    log.close()
    publish(disk, 10)
    return tmp_path
