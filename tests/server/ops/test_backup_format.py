"""Backups as directories and tar files: complete or absent, never overwritten, verified by digest."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import msgspec
import pytest

from penstock.core.errors import PenstockError
from penstock.server.ops.backup_format import (
    FORMAT,
    MANIFEST,
    BackupFile,
    BackupManifest,
    BackupReader,
    BackupWriter,
    DigestReader,
    open_target,
    tar_mode,
)

NAMES = ["copy", "copy.tar", "copy.tar.gz", "copy.tgz"]


def write(target: Path, files: dict[str, bytes]) -> BackupWriter:
    writer = BackupWriter(open_target(target))
    for name, data in files.items():
        writer.data(name, data)
    writer.finish(BackupManifest("1", "journal", 1, 2, "now", writer.files))
    return writer


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read_back_with_its_digest(tmp_path: Path, name: str) -> None:
    files = {"a/b.bin": b"x" * 3_000_000, "empty": b""}
    written = write(tmp_path / name, files)
    assert written.bytes == 3_000_000
    reader = BackupReader(tmp_path / name)
    found = {path: (file.read(), entry.sha256) for path, entry, file in reader.files()}
    reader.close()
    assert found == {path: (data, hashlib.sha256(data).hexdigest()) for path, data in files.items()}
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", NAMES)
def test_an_unfinished_backup_keeps_its_part_name_and_abandon_removes_it(tmp_path: Path, name: str) -> None:
    target = open_target(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.part"]
    with pytest.raises(PenstockError, match="already exists"):
        open_target(tmp_path / name)
    target.abandon()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_existing_path_is_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(PenstockError, match="already exists"):
        open_target(tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"


def test_an_empty_directory_may_become_a_backup(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    write(tmp_path / "copy", {"a": b"1"})
    assert (tmp_path / "copy" / "a").read_bytes() == b"1"


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../b", "a//b", "a\0b"])
def test_a_manifest_cannot_name_files_outside_the_backup(tmp_path: Path, name: str) -> None:
    manifest = BackupManifest("1", "journal", 1, 2, "now", {name: BackupFile(1, "0" * 64)})
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(PenstockError, match="the backup names"):
        list(BackupReader(tmp_path).files())


def test_a_missing_file_and_a_newer_format_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "copy", {"a": b"1"})
    (tmp_path / "copy" / "a").unlink()
    with pytest.raises(PenstockError, match="is missing from the backup"):
        list(BackupReader(tmp_path / "copy").files())
    manifest = BackupManifest("9", "journal", 1, 2, "now", {}, format=FORMAT + 1)
    (tmp_path / "copy" / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(PenstockError, match=f"format {FORMAT + 1}"):
        BackupReader(tmp_path / "copy")


@pytest.mark.parametrize("data", [b"", b"no json", b"{}"])
def test_something_else_is_no_backup(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    (tmp_path / MANIFEST).write_bytes(data)
    for path in (tmp_path, tmp_path / "file", tmp_path / "nothing"):
        with pytest.raises(PenstockError, match="not a complete backup"):
            BackupReader(path)


def test_a_file_that_shrinks_during_the_copy_is_an_error() -> None:
    with pytest.raises(OSError, match="shorter"):
        DigestReader(io.BytesIO(b"abc"), 4).read()


def test_a_growing_file_is_copied_to_the_size_it_had() -> None:
    reader = DigestReader(io.BytesIO(b"abcdef"), 3)
    assert (reader.read(2), reader.read(), reader.read()) == (b"ab", b"c", b"")
    assert reader.digest.hexdigest() == hashlib.sha256(b"abc").hexdigest()


def test_the_ending_of_the_name_decides_the_format(tmp_path: Path) -> None:
    assert [tar_mode(tmp_path / name) for name in NAMES] == [None, "w", "w:gz", "w:gz"]
