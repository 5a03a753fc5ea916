"""The log of a Delta table: readable versions, pruned entries, and data files that no version needs."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.journal.delta_log import CHECKPOINT_EVERY, SWEEP_AGE_S, DeltaLog, newest_entry, table_names
from penstock.journal.lake_location import StoreError, parse_lake
from penstock.spark.lake.table import LakeTable
from tests.spark.journals import Written
from tests.spark.lakes import COUNTS, counts


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


def test_a_store_that_fails_does_not_pass_for_an_empty_log(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text("AWS_ENDPOINT_URL=http://127.0.0.1:1\nAWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b\n")
    credentials.chmod(0o600)
    lake = parse_lake("s3://nowhere/lake", str(credentials), tmp_path)
    with pytest.raises(StoreError, match="cannot be used"):
        newest_entry(lake / "alerts")


def test_commits_properties_and_checkpoints_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 1}), {})
    table.merge(counts({("a", 0): 2}), {})
    table.expire("9000d")
    table.log.checkpoint()
    entries = [f"{number:020d}.json" for number in range(4)]
    assert {*entries, f"{3:020d}.checkpoint.parquet", "_last_checkpoint", "_delta_log"} - {entries[2]} <= set(synced)
    assert synced.index("_delta_log") > synced.index(entries[0])
    synced.clear()
    log = DeltaLog(tmp_path / "counts")
    log.commit(4, [{"txn": {"appId": "a", "version": 1}}])
    assert len(synced) == 1 and synced[0].endswith(".tmp"), "an entry gets its name when it is durable"
    with pytest.raises(FileExistsError):
        log.commit(4, [])
    assert log.actions(4) == [{"txn": {"appId": "a", "version": 1}}] and not list(log.table.glob(".*.tmp"))
    synced.clear()
    events = Written(tmp_path / "data")
    events.add(3)
    events.seal()
    sealed = [f"{number:020d}.json" for number in range(2)]
    assert set(sealed) <= set(synced), "segments are removed only after that"
