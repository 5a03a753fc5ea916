"""The log of a Delta table: readable versions, pruned entries, and data files that no version needs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.journal.delta_log import CHECKPOINT_EVERY, SWEEP_AGE_S, DeltaLog, newest_entry, table_names


def written(folder: Path, versions: int, mode: str = "append") -> Path:
    table = folder / "notes"
    for number in range(versions):
        write_deltalake(table, pa.table({"n": [number]}), mode=mode)  # type: ignore[call-overload]
    return table


def test_without_a_checkpoint_every_version_can_be_read_and_none_is_pruned(tmp_path: Path) -> None:
    log = DeltaLog(written(tmp_path, 3))
    assert (log.kept(), sorted(log.entries()), log.checkpoints()) == (range(3), [0, 1, 2], {})
    assert log.shorten(kept_versions=0) == 0


def test_a_directory_without_a_log_has_no_versions(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path)
    assert (log.kept(), log.needs_checkpoint(), log.shorten(), log.sweep(0.0)) == (range(0), False, 0, (0, 0))
    assert newest_entry(tmp_path) == ""


def test_pruning_keeps_the_checkpoint_that_the_oldest_kept_version_needs(tmp_path: Path) -> None:
    table = written(tmp_path, 3)
    DeltaTable(str(table)).create_checkpoint()
    written(tmp_path, 2)
    log = DeltaLog(table)
    assert log.shorten(kept_versions=3) == 0, "the version 2 before the newest is kept"
    assert log.shorten(kept_versions=2) == 2
    assert log.kept() == range(2, 5)
    for version in log.kept():
        assert DeltaTable(str(table), version=version).to_pyarrow_table().num_rows == version + 1


def test_a_checkpoint_is_due_after_so_many_versions(tmp_path: Path) -> None:
    log = DeltaLog(tmp_path)
    log.path.mkdir()
    (log.path / f"{CHECKPOINT_EVERY - 1:020d}.json").touch()
    assert not log.needs_checkpoint()
    (log.path / f"{CHECKPOINT_EVERY:020d}.json").touch()
    assert log.needs_checkpoint()
    (log.path / f"{CHECKPOINT_EVERY:020d}.checkpoint.parquet").touch()
    assert not log.needs_checkpoint()


def test_the_files_and_the_time_of_commits_are_read_from_their_entries(tmp_path: Path) -> None:
    log = DeltaLog(written(tmp_path, 3))
    assert len(log.added_since(0)) == 2 and log.added_since(2) == set()
    first, last = log.commit_ms(0), log.commit_ms(2)
    assert first is not None and last is not None and first <= last
    assert log.commit_ms(9) is None


@pytest.mark.parametrize(("age_s", "swept"), [(SWEEP_AGE_S - 60, 0), (SWEEP_AGE_S + 60, 1)])
def test_an_old_file_that_no_version_refers_to_is_removed(tmp_path: Path, age_s: int, swept: int) -> None:
    table = written(tmp_path, 2)
    stray = table / "stray.parquet"
    stray.write_bytes(b"half")
    count, size = DeltaLog(table).sweep(stray.stat().st_mtime + age_s)
    assert (count, size) == (swept, 4 * swept)
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 2


def test_only_tables_with_a_plain_name_are_listed(tmp_path: Path) -> None:
    table = written(tmp_path, 2)
    (tmp_path / "empty").mkdir()
    table.rename(tmp_path / "_hidden")
    written(tmp_path, 1)
    assert table_names(tmp_path) == ["notes"]
    assert table_names(tmp_path / "missing") == []
    assert newest_entry(tmp_path / "_hidden") == f"{1:020d}.json"
