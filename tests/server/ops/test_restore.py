"""Restores: every byte is compared, a new epoch begins, and a damaged backup leaves nothing behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from penstock.cli import main
from penstock.core.errors import PenstockError
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import read_identity, read_watermark
from penstock.journal.reader import JournalReader
from penstock.server.ops.backup import backup
from penstock.server.ops.backup_format import MANIFEST, BackupManifest
from penstock.server.ops.restore import restore


@pytest.mark.promise("Operations", "a restore keeps every row and starts an epoch that readers notice")
def test_a_restored_journal_begins_an_epoch_that_readers_notice(quiet, tmp_path):
    main(["backup", str(tmp_path / "copy"), "--data", str(quiet)])
    main(["restore", str(tmp_path / "copy"), "--data", str(tmp_path / "data")])
    old, new = (read_identity(RealDisk(path / "journal")) for path in (quiet, tmp_path / "data"))
    assert new.id == old.id and new.epoch == old.epoch + 1
    assert read_watermark(RealDisk(tmp_path / "data/journal"))[1] == new.epoch


def damaged(copy: Path, how: str) -> None:
    manifest = msgspec.json.decode((copy / MANIFEST).read_bytes(), type=BackupManifest)
    segment = copy / next(name for name in manifest.files if name.startswith("journal/log-"))
    data = segment.read_bytes()
    match how:
        case "flipped":
            segment.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
        case "short":
            segment.write_bytes(data[:-5])
        case "long":
            segment.write_bytes(data + b"x")
        case "missing":
            segment.unlink()
        case "outside":
            manifest.files["../escaped"] = next(iter(manifest.files.values()))
            (copy / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        case "secret":
            manifest.files["run/operator.token"] = next(iter(manifest.files.values()))
            (copy / "run").mkdir()
            (copy / "run/operator.token").write_text("x")
            (copy / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        case "less":
            del manifest.files[segment.relative_to(copy).as_posix()]
            (copy / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        case "unfinished":
            (copy / MANIFEST).unlink()


@pytest.mark.promise("Operations", "a damaged backup is rejected and leaves nothing behind")
@pytest.mark.parametrize("how", ["flipped", "short", "long", "missing", "outside", "secret", "less", "unfinished"])
def test_a_damaged_backup_is_not_restored_and_leaves_nothing_behind(how, quiet, tmp_path, capsys):
    copy, data = tmp_path / "copy", tmp_path / "data"
    main(["backup", str(copy), "--data", str(quiet)])
    damaged(copy, how)
    assert main(["restore", str(copy), "--data", str(data)]) == 1
    assert "hint: " in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


@pytest.mark.promise("Operations", "a restore keeps every row and starts an epoch that readers notice")
def test_envelopes_survive_the_way_through_a_backup_byte_for_byte(quiet, tmp_path):
    main(["backup", str(tmp_path / "copy"), "--data", str(quiet)])
    main(["restore", str(tmp_path / "copy"), "--data", str(tmp_path / "data")])

    def rows(data):
        reader = JournalReader(data)
        bounds = reader.bounds()
        return [batch.drop_columns(["epoch"]).to_pylist() for batch in reader.batches(bounds.first, bounds.end)]

    assert rows(tmp_path / "data") == rows(quiet)
    assert any(row["id"] == "d" for part in rows(quiet) for row in part)


def test_a_manifest_of_another_journal_is_rejected(quiet, tmp_path):
    manifest = backup(quiet, tmp_path / "copy", "t")
    manifest.journal = "cd" * 16
    (tmp_path / "copy" / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(PenstockError, match="another journal"):
        restore(tmp_path / "copy", tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_journal_that_was_damaged_before_its_backup_is_rejected(quiet, tmp_path):
    """Every digest matches, but the rows are not those that the watermark promises."""
    data = Path(shutil.copytree(quiet, tmp_path / "data"))
    [segment] = (data / "journal").glob("log-*.seg")
    os.truncate(segment, segment.stat().st_size - 5)
    backup(data, tmp_path / "copy", "t")
    with pytest.raises(PenstockError, match="journal of the backup is damaged") as caught:
        restore(tmp_path / "copy", tmp_path / "restored")
    assert caught.value.code == "JournalDamaged"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data"]


def test_progress_reaches_the_size_of_the_backup(quiet, tmp_path):
    total = sum(file.bytes for file in backup(quiet, tmp_path / "copy", "t").files.values())
    seen = []
    restore(tmp_path / "copy", tmp_path / "data", lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen) and seen[-1] == (total, total)
    assert (tmp_path / "data/journal").stat().st_mode & 0o777 == 0o700
