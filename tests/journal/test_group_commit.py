"""The disk journal: grouped commits, ordered outcomes, a clean end, one writer per directory."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.records import Fact
from penstock.journal import group_commit
from penstock.journal.disk import RealDisk
from penstock.journal.group_commit import DiskJournal
from penstock.journal.log import Log, Sync
from penstock.journal.open_and_repair import Opened, read_identity, read_watermark, segments
from penstock.journal.port import Committed, Outcome, Refused
from penstock.journal.segments import Scan
from penstock.testing.disk import LyingDisk, LyingFile
from tests.journal.histories import JOURNAL, START_US, ack, kept, put, rebuilt

PATIENCE_S = 10.0


class SlowFile(LyingFile):
    """A file whose syncs wait for the test."""

    def sync(self) -> None:
        disk = self._disk
        assert isinstance(disk, SlowDisk)
        disk.syncs += 1
        disk.syncing.release()
        assert disk.may_sync.acquire(timeout=PATIENCE_S)
        super().sync()


class SlowDisk(LyingDisk):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.syncs = 0
        self.syncing = threading.Semaphore(0)
        self.may_sync = threading.Semaphore(0)
        self.is_slow = False

    def open(self, name: str) -> LyingFile:
        file = super().open(name)
        return SlowFile(self, file._inode) if self.is_slow and name.startswith("log-") else file


class OnceDisk(LyingDisk):
    """Fails one sync, and is well again."""

    def fails(self, operation: str) -> bool:
        return operation == "sync" and self.failures == 0 and super().fails(operation)


class JournalDriver:
    """A journal and the answers it gave, as a loop would get them."""

    def __init__(self, disk: LyingDisk | RealDisk, sync: Sync = "commit", linger_us: int = 0) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.answers: list[tuple[int, Outcome]] = []
        self.opened, _, self.rows = rebuilt(disk, sync=sync)
        self.log: Log = self.opened.log()
        self.journal = DiskJournal(self.opened, self.log, self.calls.put, linger_us=linger_us, wall_us=lambda: START_US)
        self.count = 0

    def append(self, *facts: Fact) -> None:
        number = self.count
        self.count += 1
        self.journal.append(0, 0, facts, lambda outcome: self.answers.append((number, outcome)))

    def wait(self, count: int) -> list[Outcome]:
        while len(self.answers) < count:
            self.calls.get(timeout=PATIENCE_S)()
        assert [number for number, _ in self.answers] == list(range(len(self.answers)))
        return [outcome for _, outcome in self.answers]

    def rotate(self) -> str | Refused | None:
        names: list[str | Refused | None] = []
        self.journal.rotate(names.append)
        while not names:
            self.calls.get(timeout=PATIENCE_S)()
        return names[0]


def frames(disk: LyingDisk | RealDisk) -> list[int]:
    """The rows of each frame."""
    found = []
    for segment in segments(disk):
        scan = Scan(disk.read(segment.name), segment.name, is_last=True)
        found += [frame.batch.num_rows for frame in scan.frames()]
    return found


@pytest.mark.promise("Journal", "commits are grouped and run off the event loop")
def test_what_waits_while_the_disk_syncs_shares_the_next_commit() -> None:
    disk = SlowDisk(1)
    driver = JournalDriver(disk)
    disk.is_slow = True
    driver.append(put("a"))
    assert disk.syncing.acquire(timeout=PATIENCE_S)  # the header of the first segment
    disk.may_sync.release()
    assert disk.syncing.acquire(timeout=PATIENCE_S)  # the first commit is under way
    for n in range(20):
        driver.append(put(f"b{n}"), ack(f"c{n}"))
    assert driver.calls.empty(), "nothing is answered before its sync"
    disk.may_sync.release(10)
    outcomes = driver.wait(21)
    assert outcomes == [kept(0), *(kept(1 + 2 * n) for n in range(20))]
    driver.journal.close()
    assert frames(disk) == [1, 40]
    assert disk.syncs == 3


def test_a_commit_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "GROUP_FACTS_MAX", 8)
    disk = SlowDisk(1)
    driver = JournalDriver(disk)
    disk.is_slow = True
    driver.append(put("a"))
    assert disk.syncing.acquire(timeout=PATIENCE_S)
    for n in range(10):
        driver.append(put(f"b{n}"), put(f"c{n}"), put(f"d{n}"))
    disk.may_sync.release(100)
    driver.wait(11)
    driver.journal.close()
    assert frames(disk) == [1, 6, 6, 6, 6, 6], "whole appends, within the bound"


def test_a_rotation_does_not_wait_for_a_quiet_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "GROUP_FACTS_MAX", 1)
    disk = SlowDisk(1)
    driver = JournalDriver(disk)
    disk.is_slow = True
    driver.append(put("a"))
    assert disk.syncing.acquire(timeout=PATIENCE_S)
    names: list[str | Refused | None] = []
    for n in range(5):
        driver.append(put(f"b{n}"))
    driver.journal.rotate(names.append)
    disk.may_sync.release(100)
    driver.wait(6)
    driver.journal.close()
    assert names == ["log-00000000000000000000.seg"]
    assert [segment.first for segment in segments(disk)] == [0, 1], "after the commit that was under way"


def test_a_rotated_segment_is_closed_at_once_and_an_empty_one_is_not_rotated() -> None:
    disk = LyingDisk(1)
    driver = JournalDriver(disk)
    assert driver.rotate() is None
    driver.append(put("a"))
    driver.wait(1)
    assert driver.rotate() == "log-00000000000000000000.seg"
    assert [(segment.first, segment.limit) for segment in segments(disk)] == [(0, 1), (1, None)]
    assert driver.rotate() is None
    driver.journal.close()


def test_closing_writes_what_waits_and_marks_a_clean_end(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    driver = JournalDriver(disk, linger_us=50_000)
    for n in range(30):
        driver.append(put(f"e{n}"))
    driver.journal.close()
    driver.wait(30)
    assert [row.id for row in rebuilt(disk)[2]] == [f"e{n}" for n in range(30)]
    identity = read_identity(disk)
    assert identity is not None and identity.is_clean
    assert "reserve" not in disk.names()
    assert read_watermark(disk) == (30, 0)
    disk.unlock()


@pytest.mark.promise("Journal", "`sync: commit`, `interval` and `off` behave as documented")
@pytest.mark.parametrize(("sync", "syncs"), [("commit", True), ("interval", False), ("off", False)])
def test_modes_differ_in_what_an_answer_means(sync: Sync, syncs: bool) -> None:
    disk = LyingDisk(1)
    driver = JournalDriver(disk, sync)
    driver.append(put("a"))
    driver.wait(1)
    driver.append(put("b"))
    driver.wait(2)
    lost = any(len(rebuilt(_copy(disk, seed).crash(), sync=sync)[2]) < 2 for seed in range(20))
    assert lost is not syncs
    driver.journal.close()


def _copy(disk: LyingDisk, seed: int) -> LyingDisk:
    """The same disk with another fate."""
    twin = LyingDisk(seed)
    twin._names = dict(disk._names)
    twin._durable_names = dict(disk._durable_names)
    twin._moves = list(disk._moves)
    return twin


def test_interval_syncs_by_itself_and_off_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "INTERVAL_S", 0.01)
    disk = SlowDisk(1)
    disk.is_slow = True
    disk.may_sync.release(100)
    driver = JournalDriver(disk, "interval")
    driver.append(put("a"))
    driver.wait(1)
    assert disk.syncing.acquire(timeout=PATIENCE_S)  # its header
    assert disk.syncing.acquire(timeout=PATIENCE_S)  # its row, without a request
    driver.journal.close()
    monkeypatch.setattr(group_commit, "INTERVAL_S", 0.0)
    disk = SlowDisk(2)
    disk.is_slow = True
    disk.may_sync.release(100)
    driver = JournalDriver(disk, "off")
    for n in range(50):
        driver.append(put(f"e{n}"))
        driver.wait(n + 1)
    assert disk.syncs == 1, "the header's"
    driver.journal.close()


def test_an_internal_error_leaves_no_caller_waiting() -> None:
    disk = LyingDisk(1)
    driver = JournalDriver(disk)
    driver.append(put("a"))
    driver.append("not a fact")  # type: ignore[arg-type]
    outcomes = driver.wait(2)
    assert isinstance(outcomes[1], Refused) and "the journal failed" in outcomes[1].reason
    driver.append(put("b"))
    assert isinstance(driver.wait(3)[2], Committed)
    driver.journal.close()


def test_a_watermark_that_cannot_be_written_stops_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk(1)
    driver = JournalDriver(disk)

    def refuse(name: str, data: bytes) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(disk, "overwrite", refuse)
    driver.append(put("a"))
    driver.append(put("b"))
    assert driver.wait(2) == [kept(0), kept(1)]
    driver.journal.close()


@pytest.mark.promise(
    "Journal", "on a full disk the server rejects envelopes, accepts settles, and recovers without help"
)
def test_a_full_disk_is_reported_and_the_journal_recovers() -> None:
    disk = LyingDisk(1)
    driver = JournalDriver(disk)
    driver.append(put("a"))
    driver.wait(1)
    disk.space = disk.space - disk.free() + 100
    driver.append(put("b", bytes(500)), ack("c"))
    assert driver.wait(2)[1] == kept(1, "the disk is full")
    assert driver.journal.trouble == "the disk is full"
    disk.space = 1 << 40
    driver.append(put("d"))
    assert driver.wait(3)[2] == kept(2)
    assert driver.journal.trouble is None
    driver.journal.close()
    assert [row.id for row in rebuilt(disk)[2]] == ["a", "c", "d"]


def test_a_rotation_whose_close_fails_is_answered_and_the_journal_goes_on() -> None:
    disk = LyingDisk(1)
    driver = JournalDriver(disk)
    driver.append(put("a"))
    driver.wait(1)
    disk.failing, disk.eio = ("close",), 1.0
    assert driver.rotate() == Refused("the disk reports an error")
    assert driver.journal.trouble == "the disk reports an error"
    disk.eio = 0.0
    driver.append(put("b"))
    assert driver.wait(2)[1] == kept(1) and driver.journal.trouble is None
    assert driver.rotate() == "log-00000000000000000001.seg"
    driver.journal.close()
    assert [row.id for row in rebuilt(disk)[2]] == ["a", "b"]


@pytest.mark.parametrize("part", ["rotate", "check", "sync"])
def test_an_error_in_any_part_of_a_turn_is_the_trouble_and_does_not_end_the_thread(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(group_commit, "INTERVAL_S", 0.01)
    driver = JournalDriver(LyingDisk(1), "interval")
    failed = threading.Event()

    def fail() -> None:
        driver.log.unsynced = False
        failed.set()
        raise ValueError(part)

    with monkeypatch.context() as patch:
        patch.setattr(driver.log, part, fail)
        driver.append(put("a"))
        driver.wait(1)
        match part:
            case "rotate":
                assert driver.rotate() == Refused("ValueError('rotate')")
            case "check":
                driver.journal.check()
        assert failed.wait(PATIENCE_S)
    driver.append(put("b"))
    assert driver.wait(2)[1] == kept(1)
    driver.journal.close()


def test_a_thread_that_ended_is_reported_and_nothing_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk(1)
    driver = JournalDriver(disk)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    disk.steps_left = 0  # an error that no code may handle
    driver.append(put("a"))
    driver.journal._thread.join(PATIENCE_S)
    assert driver.journal.trouble is not None and "has ended" in driver.journal.trouble
    refused = driver.rotate()
    assert isinstance(refused, Refused) and refused.reason == driver.journal.trouble
    driver.answers.clear()
    driver.journal.append(0, 0, [put("b")], lambda outcome: driver.answers.append((0, outcome)))
    assert driver.wait(1) == [refused]


def test_an_end_with_a_failing_disk_is_no_clean_end() -> None:
    disk = OnceDisk(1)
    driver = JournalDriver(disk, "interval")
    driver.append(put("a"))
    driver.wait(1)
    disk.eio = 1.0
    driver.journal.close()
    assert disk.failures == 1
    identity = read_identity(disk)
    assert identity is not None and not identity.is_clean
    assert Opened(disk, fresh_id=JOURNAL, sync="commit").identity.epoch == 1


@pytest.mark.promise("Journal", "a directory has one writer")
def test_one_writer_a_directory(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    assert disk.lock()
    assert not RealDisk(tmp_path).lock()
    code = (
        "import sys, pathlib; from penstock.journal.disk import RealDisk; "
        "sys.exit(0 if RealDisk(pathlib.Path(sys.argv[1])).lock() else 7)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, check=False, timeout=30).returncode == 7
    disk.unlock()
    assert subprocess.run(command, check=False, timeout=30).returncode == 0
    assert disk.lock(), "a lock ends with its process"
    disk.unlock()


def test_a_batch_whose_outcome_is_not_handled_keeps_no_other_from_its_own() -> None:
    disk = SlowDisk(1)
    disk.is_slow = True
    disk.may_sync.release(1_000)
    driver = JournalDriver(disk)

    def fail(outcome: Outcome) -> None:
        raise RuntimeError("broken")

    with driver.journal._wake:  # so that all go into one commit
        driver.journal.append(0, 0, [put("1")], fail)
        driver.append(put("2"))
    with pytest.raises(RuntimeError):
        driver.calls.get(timeout=PATIENCE_S)()
    assert [number for number, _ in driver.answers] == [0]
    driver.journal.close()
