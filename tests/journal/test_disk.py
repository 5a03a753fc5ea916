"""A real directory as a disk: appends, names, the lock of the writer, and reserved space."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.journal.disk import RealDisk


def test_a_file_grows_at_its_end_and_can_be_cut_back(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "journal")
    file = disk.open("a.log")
    file.append(b"one")
    file.append(b"two")
    file.truncate(4)
    file.append(b"!")
    file.sync()
    file.close()
    assert (disk.read("a.log"), disk.read("a.log", 3), disk.size("a.log")) == (b"onet!", b"t!", 5)


def test_opening_a_file_again_keeps_its_bytes(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    for part in (b"a", b"b"):
        file = disk.open("log")
        file.append(part)
        file.close()
    assert disk.read("log") == b"ab"


def test_names_are_sorted_files_and_a_rename_replaces(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    (tmp_path / "folder").mkdir()
    disk.overwrite("b", b"new")
    disk.overwrite("a", b"old")
    assert disk.names() == ["a", "b"]
    disk.replace("b", "a")
    disk.sync_names()
    assert (disk.names(), disk.read("a")) == (["a"], b"new")
    disk.remove("a")
    disk.remove("a")
    assert disk.names() == []
    disk.unlock()


def test_overwriting_replaces_the_first_bytes_in_place(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.overwrite("watermark", b"12345678")
    disk.overwrite("watermark", b"abcd")
    assert disk.read("watermark") == b"abcd5678"
    disk.unlock()


@pytest.mark.promise("Journal", "a directory has one writer")
def test_a_directory_is_locked_for_one_writer_until_it_unlocks(tmp_path: Path) -> None:
    first, second = RealDisk(tmp_path), RealDisk(tmp_path)
    assert first.lock()
    assert not second.lock()
    assert second.lock("another")
    second.unlock()
    first.unlock()
    assert second.lock()
    second.unlock()


def test_reserved_space_is_allocated_and_too_much_is_an_error(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    disk.reserve("reserve", 4096)
    assert disk.size("reserve") == 4096
    with pytest.raises(OSError):
        disk.reserve("reserve", 1 << 62)


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "journal")
    disk.open("log").close()
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "journal" / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("way", ["open", "lock", "overwrite", "reserve"])
def test_a_planted_link_is_not_written_through(way: str, tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "journal")
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (disk.directory / "name").symlink_to(victim)
    write = {"overwrite": lambda: disk.overwrite("name", b"theirs"), "reserve": lambda: disk.reserve("name", 4096)}
    with pytest.raises(OSError, match="symbolic links"):
        write.get(way, lambda: getattr(disk, way)("name"))()
    assert victim.read_bytes() == b"mine"
