"""The figures of tables: their size, and their progress by their own transactions."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock.ipc.pipeline import FILLED_TABLES, PipelineStatus
from penstock.journal import lake_figures
from penstock.journal.lake_figures import LakeFigures
from penstock.journal.lake_location import open_delta
from tests.cli.journals import write_journal
from tests.journal.histories import JOURNAL, START_US

ROWS = 4
NOW_US = START_US + 60_000_000


def fill(data: Path, name: str, end: int, journal: str = JOURNAL, rows: int = 2) -> None:
    """A commit to a table, as the pipeline writes it."""
    progress = CommitProperties(app_transactions=[Transaction(f"{journal}/0", end)])
    write_deltalake(
        str(data / "lake" / name), pa.table({"n": list(range(rows))}), mode="append", commit_properties=progress
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    found = write_journal(tmp_path, ROWS)
    fill(found, "envelopes", 1)
    fill(found, "envelopes", 3)
    fill(found, "mine", ROWS)
    fill(found, "gaps", 0)
    write_deltalake(str(found / "lake" / "foreign"), pa.table({"n": [1]}))
    return found


def test_each_table_has_its_size_and_its_lag(data: Path) -> None:
    found = LakeFigures(data).read({JOURNAL: ROWS}, NOW_US)
    assert list(found) == ["envelopes", "mine"], "no other program's table, and none without progress"
    envelopes = found["envelopes"]
    assert (envelopes.rows, envelopes.files, envelopes.version, envelopes.ends) == (4, 2, 1, {JOURNAL: 3})
    assert envelopes.bytes == sum(file.stat().st_size for file in (data / "lake" / "envelopes").glob("*.parquet"))
    assert (envelopes.lag_rows, found["mine"].lag_rows, found["mine"].lag_seconds) == (1, 0, 0.0)
    assert 0 < envelopes.lag_seconds <= 60, "the age of row 3"
    status = PipelineStatus("off")
    status.show(found)
    assert status.stored == 0, "the other built-in tables are not made yet"
    status.show(dict.fromkeys(FILLED_TABLES, envelopes) | found)
    assert status.stored == 3, "built-in tables only"


def test_progress_in_several_journals_adds_up(data: Path) -> None:
    fill(data, "envelopes", 7, "other")
    found = LakeFigures(data).read({JOURNAL: ROWS, "other": 10}, NOW_US)
    assert (found["envelopes"].ends, found["envelopes"].lag_rows) == ({JOURNAL: 3, "other": 7}, 1 + 3)
    assert found["mine"].lag_rows == 10


def test_a_table_is_read_again_only_after_a_commit(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_table(path: Path) -> DeltaTable:
        opened.append(path.name)
        return open_delta(path)

    figures = LakeFigures(data)
    figures.read({JOURNAL: ROWS}, NOW_US)
    monkeypatch.setattr(lake_figures, "open_delta", open_table)
    fill(data, "mine", ROWS + 1)
    assert figures.read({JOURNAL: ROWS + 2}, NOW_US)["envelopes"].lag_rows == 3
    assert "envelopes" not in opened and "mine" in opened


def test_a_table_that_cannot_be_opened_is_left_out(data: Path) -> None:
    for entry in (data / "lake" / "envelopes" / "_delta_log").iterdir():
        entry.write_text("{")
    assert list(LakeFigures(data).read({JOURNAL: ROWS}, NOW_US)) == ["mine"]
