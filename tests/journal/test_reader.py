"""Reading next to a writer and a sealer: committed rows, each once and in order, the same every time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pytest

import penstock.journal.reader
from penstock.core.limits import Limits
from penstock.core.rows import Row
from penstock.journal.disk import RealDisk
from penstock.journal.group_commit import DiskJournal
from penstock.journal.parquet_table import FILE_SCHEMA, EventsTable
from penstock.journal.port import Committed, Outcome
from penstock.journal.reader import JournalError, JournalReader, RangeGoneError
from penstock.journal.sealed_reader import SealedRows
from penstock.server.config.sections import StreamsSection
from penstock.server.journal.seal_process import SealTask
from tests.journal.histories import FOREVER, JOURNAL, START_US, publish, put, rebuilt, reopened, sealer
from tests.server_process import environment
from tests.tiers import first_of

PATIENCE_S = 30.0
SEALS = first_of((1, 3), 1)


class Producer(threading.Thread):
    """Appends numbered envelopes, a few at a time, until it is stopped."""

    def __init__(self, disk: RealDisk) -> None:
        super().__init__(daemon=True)
        opened, _, _ = rebuilt(disk)
        self.journal = DiskJournal(opened, opened.log(), lambda call: call(), linger_us=0, wall_us=lambda: START_US)
        self.acknowledged = 0
        """Rows that were promised."""
        self.proposed = 0
        self.is_over = threading.Event()
        self.may_go_on = threading.Semaphore(0)

    def run(self) -> None:
        dice = Random(5)
        while not self.is_over.is_set():
            count = dice.randint(1, 6)
            facts = [put(f"e{self.proposed + n}", seq=self.proposed + n + 1) for n in range(count)]
            self.proposed += count
            self.journal.append(0, 0, facts, lambda outcome, count=count: self.answer(outcome, count))
            self.may_go_on.acquire(timeout=PATIENCE_S)

    def answer(self, outcome: Outcome, count: int) -> None:
        assert isinstance(outcome, Committed)
        assert outcome.first_offset == self.acknowledged
        self.acknowledged += count
        self.may_go_on.release()

    def rotate(self) -> None:
        rotated = threading.Event()
        self.journal.rotate(lambda _: rotated.set())
        assert rotated.wait(PATIENCE_S)

    def stop(self) -> None:
        self.is_over.set()
        self.join(PATIENCE_S)
        self.journal.close()


def start_sealer(data: Path) -> subprocess.Popen[bytes]:
    """The process that the server starts."""
    task = SealTask(str(data), StreamsSection(), Limits(), FOREVER, wants_live=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.server.journal.seal_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(task))
    process.stdin.close()
    process.stdin = None
    return process


def read(data: Path, first: int, end: int) -> list[tuple[int, str]]:
    table = pa.Table.from_batches(
        JournalReader(data).batches(first, end, ["offset", "id"]),
        pa.schema([FILE_SCHEMA.field("offset"), FILE_SCHEMA.field("id")]),
    )
    return list(zip(table.column("offset").to_pylist(), table.column("id").to_pylist(), strict=True))


@pytest.mark.promise("Journal", "9: a range read twice is the same, next to a writer and a sealer")
@pytest.mark.parametrize("seals", SEALS)
def test_a_reader_between_a_writer_and_a_sealer_sees_every_row_once(tmp_path: Path, seals: int) -> None:
    producer = Producer(RealDisk(tmp_path / "journal"))
    producer.start()
    dice = Random(3)
    reads = 0
    try:
        while producer.acknowledged < 50:
            assert producer.is_alive()
        for _ in range(seals):
            producer.rotate()
            process = start_sealer(tmp_path)
            is_over = False
            while not is_over:
                is_over = process.poll() is not None
                promised = producer.acknowledged
                first = dice.choice((0, dice.randint(0, promised), max(promised - 40, 0)))
                end = dice.choice((promised, promised + 1_000_000, dice.randint(first, promised)))
                rows = read(tmp_path, first, end)
                proposed = producer.proposed
                assert rows == [(n, f"e{n}") for n in range(first, first + len(rows))]
                assert len(rows) >= min(end, promised) - first, "what was acknowledged can be read"
                assert first + len(rows) <= min(end, proposed), "and nothing that was not written"
                again = read(tmp_path, first, first + len(rows))
                assert again == rows
                reads += 1
            output, errors = process.communicate()
            assert process.returncode == 0, errors.decode()
            assert msgspec.json.decode(output)["sealed_rows"] > 0
    finally:
        producer.stop()
    assert reads > 5 * seals
    end = producer.acknowledged
    assert read(tmp_path, 0, end) == [(n, f"e{n}") for n in range(end)]


def test_two_sealers_at_once_do_what_one_does(tmp_path: Path) -> None:
    """The sealer of a server that was killed may still be at work when the next server starts another."""
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk)
    for n in range(40):
        log.commit([[put(f"e{n}", seq=n + 1)]], START_US)
        if n % 10 == 9:
            log.rotate()
    log.close()
    publish(disk, 40)
    processes = [start_sealer(tmp_path) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors.decode()
    assert read(tmp_path, 0, 100) == [(n, f"e{n}") for n in range(40)]
    _, live, tail = rebuilt(disk)
    assert tail == [] and sum(row.event == "enqueue" for row in live) == 40


# The moments of a race, one by one


EXPECTED = [(n, f"e{n}") for n in range(10)]


@pytest.mark.parametrize("moment", ["segments", "settled_watermark", "fitted"])
@pytest.mark.parametrize("turn", range(4))
def test_the_sealer_may_come_at_any_moment_of_a_read(
    sealed: Path, monkeypatch: pytest.MonkeyPatch, moment: str, turn: int
) -> None:
    original = getattr(penstock.journal.reader, moment)
    calls = 0

    def interrupted(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == turn + 1:
            monkeypatch.setattr(penstock.journal.reader, moment, original)
            sealer(sealed).seal(START_US + 99, wants_live=True)
        return original(*args, **options)

    monkeypatch.setattr(penstock.journal.reader, moment, interrupted)
    assert read(sealed, 0, 10) == EXPECTED
    monkeypatch.setattr(penstock.journal.reader, moment, original)
    assert read(sealed, 0, 10) == EXPECTED
    assert read(sealed, 2, 8) == EXPECTED[2:8]


@pytest.mark.parametrize(
    ("owner", "name", "turn", "is_in_time"),
    [
        (EventsTable, "files", 1, False),
        (EventsTable, "sealed_end", 1, False),
        (SealedRows, "parts", 1, False),
        (SealedRows, "view", 2, True),  # the sealed rows have been read by then
    ],
)
def test_retention_in_the_middle_of_a_read_is_named_and_skips_nothing(
    sealed: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, turn: int, is_in_time: bool
) -> None:
    sealer(sealed).seal(START_US + 99, wants_live=True)
    original = getattr(owner, name)
    calls = 0

    def interrupted(self: object, *args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == turn:
            monkeypatch.setattr(owner, name, original)
            bronze = EventsTable(sealed / "lake")
            bronze.remove(bronze.files()[:1], 1)
        return original(self, *args)

    monkeypatch.setattr(owner, name, interrupted)
    if is_in_time:
        assert read(sealed, 0, 10) == EXPECTED
    with pytest.raises(RangeGoneError, match="rows 0 to 3 are no longer kept; the oldest is 4"):
        read(sealed, 0, 10)
    assert calls == turn
    assert read(sealed, 4, 10) == EXPECTED[4:]


# What can be asked


@pytest.mark.promise("Journal", "9: a range read twice is the same, next to a writer and a sealer")
def test_only_committed_rows_are_seen(sealed: Path) -> None:
    publish(RealDisk(sealed / "journal"), 8)
    assert read(sealed, 0, 1_000) == EXPECTED[:8]
    assert read(sealed, 8, 10) == []
    assert JournalReader(sealed).bounds().end == 8


def test_ranges_columns_and_bounds(sealed: Path) -> None:
    for _ in range(2):
        for first in range(11):
            for end in range(first, 12):
                assert read(sealed, first, end) == EXPECTED[first:end]
        sealer(sealed).seal(START_US + 99, wants_live=True)
    bounds = JournalReader(sealed).bounds()
    assert (bounds.journal, bounds.first, bounds.sealed_end, bounds.end) == (JOURNAL, 0, 7, 10)
    (batch, *_) = JournalReader(sealed).batches(0, 10)
    assert batch.schema.names == FILE_SCHEMA.names
    assert batch.schema.names[3:] == [name.replace("size", "bytes") for name in Row.__struct_fields__[3:]]
    with pytest.raises(JournalError, match="there is no column `nonsense`; columns: journal, shard"):
        list(JournalReader(sealed).batches(0, 1, ["nonsense"]))


def test_what_is_no_journal_says_so(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal in"):
        JournalReader(tmp_path)
    (tmp_path / "journal").mkdir()
    with pytest.raises(JournalError, match="holds no journal yet"):
        JournalReader(tmp_path).bounds()


def test_a_watermark_that_stays_broken_is_named(sealed: Path) -> None:
    (sealed / "journal" / "watermark").write_bytes(b"x" * 16)
    with pytest.raises(JournalError, match="has no watermark"):
        JournalReader(sealed).bounds()


def offsets(reader: JournalReader, first: int, end: int) -> list[int]:
    batches = reader.batches(first, end, ["offset"])
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def test_who_follows_the_journal_reads_only_what_is_new(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = JournalReader(sealed)
    starts: list[tuple[int, int]] = []
    original = os.pread

    def watched(fd: int, size: int, position: int) -> bytes:
        if size == penstock.journal.reader.LOOKUP_BYTES:
            starts.append((os.fstat(fd).st_ino, position))
        return original(fd, size, position)

    monkeypatch.setattr(os, "pread", watched)
    assert [row for first in range(10) for row in offsets(reader, first, first + 1)] == list(range(10))
    assert len(starts) == len(set(starts)) == 10, "each frame was looked for once, where the last one ended"
    assert offsets(reader, 0, 10) == list(range(10))


def test_many_small_commits_and_files_come_as_few_batches(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk)
    for n in range(60):
        log.commit([[put(f"e{n}")]], START_US + n)
        if n in (9, 19, 29):
            log.rotate()
            publish(disk, n + 1)
            sealer(tmp_path).seal(START_US + n, wants_live=True)
    log.close()
    publish(disk, 60)
    assert len(EventsTable(tmp_path / "lake").files()) == 3
    (batch,) = JournalReader(tmp_path).batches(0, 60)
    assert batch.schema.equals(FILE_SCHEMA) and batch.num_rows == 60
