"""The spool: a prefix of the log in a journal directory, which a restart and a take-over read."""

from contextlib import suppress

import pytest

from penstock.core.cluster.reader import LogEnd
from penstock.core.records import Entry
from penstock.core.rows import Row
from penstock.journal.columns import pack_facts
from penstock.journal.open_and_repair import live_name
from penstock.journal.replicated.spool import LOG_END, Spool, begin_again
from penstock.journal.seal import write_live
from penstock.journal.segments import KIND_LIVE, DamageError, Header, encode_packed
from penstock.testing.disk import LyingDisk, PowerLossError

JOURNAL = "ab" * 16


def frame(first: int, *ids: str, at_us: int = 5) -> bytes:
    rows = pack_facts([Entry("courier", "enqueue", "q", id=name) for name in ids])
    return encode_packed(first, at_us, len(ids), rows)


def opened(disk: LyingDisk) -> tuple[Spool, list[str | None]]:
    spool = Spool(disk, JOURNAL)
    return spool, [row.id for _, row in spool.rows() if row.door != "server"]


@pytest.fixture
def disk() -> LyingDisk:
    return LyingDisk(1)


def test_frames_are_kept_as_they_are_and_found_again(disk: LyingDisk) -> None:
    spool, rows = opened(disk)
    assert (rows, spool.offset) == ([], 0)
    assert spool.append(0, 2, frame(0, "a", "b"), None) is None
    assert (spool.offset, spool.recorded_us) == (2, 5)
    spool, rows = opened(disk.crash())
    assert (rows, spool.offset, spool.recorded_us) == (["a", "b"], 2, 5)


def test_a_frame_that_does_not_follow_is_refused(disk: LyingDisk) -> None:
    spool, _ = opened(disk)
    assert spool.append(7, 1, frame(7, "x"), None) == "row 7 of the log follows row -1"
    assert spool.append(0, 1, b"no frame", None) == "`log` is damaged: a commit holds no whole frame"
    assert spool.offset == 0


def test_a_disk_that_fails_says_why(disk: LyingDisk) -> None:
    spool, _ = opened(disk)
    disk.space = 0
    assert spool.append(0, 1, frame(0, "a"), 5) == "the disk is full"
    assert spool.offset == 0


def test_a_restart_reads_the_log_from_where_a_segment_ended(disk: LyingDisk) -> None:
    spool, _ = opened(disk)
    assert spool.log_end() == LogEnd()
    spool.append(0, 1, frame(0, "a"), 5)
    end = LogEnd(seq=3, epoch=2, number=1, offset=1, check=9, owner="n")
    spool.rotate(end)
    spool.append(1, 1, frame(1, "b"), 5)
    spool, rows = opened(disk.crash())
    assert (rows, spool.log_end()) == (["a", "b"], end)


def test_a_new_owner_reads_the_rows_again(disk: LyingDisk) -> None:
    spool, _ = opened(disk)
    spool.append(0, 1, frame(0, "a"), 5)
    again = spool.reopened()
    assert [row.id for _, row in again.rows()] == ["a"]
    assert again.append(1, 1, frame(1, "b"), 5) is None


def live_file(offset: int, *ids: str) -> bytes:
    disk = LyingDisk(2)
    rows = [Row(offset=offset - 1, event="enqueue", channel="q", id=name) for name in ids]
    write_live(disk, Header(JOURNAL, 0, 0, offset, KIND_LIVE), iter(rows), 9)
    return disk.read(live_name(offset))


def test_a_directory_behind_a_live_file_begins_with_it(disk: LyingDisk) -> None:
    spool, _ = opened(disk)
    spool.append(0, 2, frame(0, "a", "b"), 5)
    spool.close()
    end = LogEnd(seq=40, epoch=3, offset=30)
    begin_again(disk, spool.offset, live_file(30, "b", "z"), end)
    spool, rows = opened(disk)
    assert (rows, spool.offset, spool.log_end()) == (["b", "z"], 30, end)
    assert spool.append(30, 1, frame(30, "y"), 9) is None
    assert opened(disk.crash())[1] == ["b", "z", "y"]


def test_a_directory_that_has_more_keeps_its_rows(disk: LyingDisk) -> None:
    spool, _ = opened(disk)
    spool.append(0, 2, frame(0, "a", "b"), 5)
    spool.close()
    end = LogEnd(seq=2, epoch=1, offset=1)
    begin_again(disk, spool.offset, live_file(1, "a"), end)
    spool, rows = opened(disk)
    assert (rows, spool.offset, spool.log_end()) == (["a", "b"], 2, end)


@pytest.mark.parametrize("steps", range(24))
def test_a_crash_while_it_begins_again_is_repaired_by_the_next_attempt(steps: int) -> None:
    disk = LyingDisk(steps)
    spool, _ = opened(disk)
    spool.append(0, 2, frame(0, "a", "b"), 5)
    spool.close()
    end = LogEnd(seq=40, epoch=3, offset=30)
    disk.steps_left = steps
    with suppress(PowerLossError):
        begin_again(disk, 2, live_file(30, "z"), end)
    disk = disk.crash()
    spool, _ = opened(disk)
    assert spool.log_end() in (LogEnd(), end)
    spool.close()
    begin_again(disk, spool.offset, live_file(30, "z"), end)
    assert opened(disk)[1] == ["z"]


def test_a_damaged_place_is_named(disk: LyingDisk) -> None:
    spool, _ = opened(disk)
    disk.open(LOG_END).append(b"{")
    with pytest.raises(DamageError, match=r"log-end\.json"):
        spool.log_end()
