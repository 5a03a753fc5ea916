"""The lying disk keeps what a disk promises and breaks everything else, so that tests on it prove something."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from penstock.testing.disk import LyingDisk, LyingFile, PowerLossError

SEEDS = range(200)


def fates(story: Callable[[LyingDisk], object], name: str = "a") -> set[bytes | None]:
    """What a file may hold after a crash, over many seeds; None when it is not there."""
    found: set[bytes | None] = set()
    for seed in SEEDS:
        disk = LyingDisk(seed)
        story(disk)
        after = disk.crash()
        found.add(after.read(name) if name in after.names() else None)
    return found


def synced(disk: LyingDisk, name: str, data: bytes) -> LyingFile:
    file = disk.open(name)
    file.append(data)
    file.sync()
    disk.sync_names()
    return file


def test_what_was_synced_with_its_name_is_there() -> None:
    assert fates(lambda disk: synced(disk, "a", b"kept")) == {b"kept"}


def test_a_name_that_was_not_synced_may_go() -> None:
    def story(disk: LyingDisk) -> None:
        file = disk.open("a")
        file.append(b"kept")
        file.sync()

    assert fates(story) == {b"kept", None}


def test_bytes_that_were_not_synced_are_torn_lost_zero_or_junk() -> None:
    found = fates(lambda disk: synced(disk, "a", b"sure").append(b"maybe"))
    assert all(data is not None and data.startswith(b"sure") for data in found)
    tails = {data[4:] for data in found if data is not None}
    assert {b"", b"maybe", b"m", b"mayb"} <= tails
    assert any(tail and set(tail) == {0} for tail in tails), "a length without bytes"
    assert any(not b"maybe".startswith(tail) and any(tail) for tail in tails), "junk"
    assert max(len(tail) for tail in tails) == 5


def test_frames_may_reach_the_disk_in_any_order() -> None:
    def story(disk: LyingDisk) -> None:
        file = synced(disk, "a", b"")
        file.append(b"1" * 20)
        file.append(b"2" * 20)

    assert any(
        data is not None and data.endswith(b"2" * 20) and not data.startswith(b"1" * 20) for data in fates(story)
    )


def test_a_cut_that_was_not_synced_may_be_undone() -> None:
    assert fates(lambda disk: synced(disk, "a", b"abcd").truncate(1)) == {b"a", b"abcd"}


def test_a_rename_is_whole_or_not_at_all_and_may_overtake_another() -> None:
    def story(disk: LyingDisk) -> None:
        synced(disk, "a", b"old")
        synced(disk, "b", b"new")
        disk.replace("b", "a")
        synced_later = disk.open("c")
        synced_later.append(b"later")
        synced_later.sync()

    assert fates(story) == {b"old", b"new"}
    assert fates(story, "b") == {b"new", None}
    overtaken = False
    for seed in SEEDS:
        disk = LyingDisk(seed)
        story(disk)
        after = disk.crash()
        overtaken |= "c" in after.names() and "b" in after.names()
    assert overtaken


def test_a_removal_may_be_undone_until_names_are_synced() -> None:
    def story(disk: LyingDisk) -> None:
        synced(disk, "a", b"x")
        disk.remove("a")

    assert fates(story) == {b"x", None}

    def told(disk: LyingDisk) -> None:
        story(disk)
        disk.sync_names()

    assert fates(told) == {None}


def test_after_a_failed_sync_a_later_one_proves_nothing() -> None:
    def story(disk: LyingDisk) -> None:
        file = synced(disk, "a", b"sure")
        file.append(b"doubt")
        disk.eio = 1.0
        with pytest.raises(OSError, match="input/output error"):
            file.sync()
        disk.eio = 0.0
        file.append(b"!")
        file.sync()

    found = fates(story)
    assert b"suredoubt!" in found
    assert b"sure" + bytes(5) + b"!" in found
    assert all(data is not None and data[:4] == b"sure" and data[9:] == b"!" for data in found)


def test_a_lost_sync_says_nothing() -> None:
    def story(disk: LyingDisk) -> None:
        file = synced(disk, "a", b"")
        disk.lost_syncs = 1.0
        file.append(b"gone")
        file.sync()

    assert {b"", b"gone"} <= fates(story)


def test_a_full_disk_takes_a_part_and_then_refuses() -> None:
    parts = set()
    for seed in SEEDS:
        disk = LyingDisk(seed, space=20)
        disk.reserve("reserve", 10)
        file = disk.open("a")
        file.append(b"x" * 6)
        assert disk.free() == 4
        with pytest.raises(OSError, match="no space") as caught:
            file.append(b"y" * 8)
        assert caught.value.errno == errno.ENOSPC
        parts.add(disk.size("a") - 6)
        file.truncate(6)
        disk.remove("reserve")
        assert disk.free() == 14
        with pytest.raises(OSError, match="no space"):
            disk.reserve("reserve", 15)
    assert parts == {0, 1, 2, 3, 4}


def test_the_power_goes_once_and_for_all() -> None:
    disk = LyingDisk(1)
    disk.steps_left = 2
    file = disk.open("a")
    file.append(b"x")
    with pytest.raises(PowerLossError):
        file.sync()
    for call in (file.sync, disk.sync_names, lambda: disk.open("b"), lambda: disk.remove("a")):
        with pytest.raises(PowerLossError):
            call()


def test_equal_seeds_equal_lies() -> None:
    def run(seed: int) -> dict[str, bytes]:
        disk = LyingDisk(seed)
        for n in range(5):
            disk.open(f"f{n}").append(bytes(range(n, 40)))
        after = disk.crash()
        return {name: bytes(after.read(name)) for name in after.names()}

    assert [run(seed) for seed in SEEDS] == [run(seed) for seed in SEEDS]
    assert len({str(run(seed)) for seed in SEEDS}) > 100
