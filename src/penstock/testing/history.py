"""A data directory with a long history, made without a server, to test tables and queries on many rows.

    from penstock.testing import make_history

    make_history(Path("trial"), 1_000_000)
    # then: penstock pipeline run --once --data trial

The journal's own code writes and seals the rows, so readers see what a server would have written.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from penstock.core.clock import Now
from penstock.core.queue.channel import Channel
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.records import Fact, Record, Settle
from penstock.core.rows import Row
from penstock.journal.disk import RealDisk
from penstock.journal.log import Log
from penstock.journal.open_and_repair import Opened
from penstock.journal.parquet_table import EventsTable
from penstock.journal.port import Committed
from penstock.journal.retention import Retention
from penstock.journal.seal import Sealer

BODY_BYTES = 300
STREAMS, INBOXES = 16, 8
TALK = 6  # envelopes of a conversation
COMMIT_ROWS = 256
RATE = 2_000  # journal rows a second, by their times: a busy minute has 120,000 of them
SEGMENT_BYTES = 64 * 1024 * 1024  # as large as a server lets a segment grow
DEPTH = 100_000_000
FILLER = "the quick brown fox jumps over the lazy dog, then writes a report about it. " * 3


T = TypeVar("T")


def open_journal(folder: Path, write: Callable[[Log], T], sync: Literal["commit", "off"] = "off") -> T:
    """Open a new journal in a data directory, write to it, and leave it ready to be sealed."""
    opened = _open_new(folder, sync)
    log = opened.log()
    done = write(log)
    log.rotate()
    opened.publish()
    log.close()
    opened.end()
    return done


def _open_new(folder: Path, sync: Literal["commit", "off"]) -> Opened:
    opened = Opened(RealDisk(folder / "journal"), fresh_id=os.urandom(16).hex(), sync=sync)
    if any(True for rows in (opened.live_rows(), opened.tail_rows()) for _ in rows):
        raise ValueError(f"`{folder}` already has a journal")
    return opened


class NoState:
    """Replaces the queue machine of a sealer when no server opens the journal: its live file may be empty."""

    def snapshot(self, _now: Now) -> Iterator[Row]:
        return iter(())

    def resume(self, _now: Now, _row: Row) -> None:
        """Nothing is kept."""

    restore = resume

    def wake(self, _now: Now) -> None:
        """Nothing is due."""


def seal(folder: Path, make_state: Callable[[], NoState | QueueMachine] = NoState) -> int:
    """Seal every complete segment; returns the rows that are sealed in all."""
    disk = RealDisk(folder / "journal")
    Sealer(disk, folder / "lake", make_state, retention=Retention(0, 0, 0, 0)).seal(time.time_ns() // 1000)
    return sum(file.rows for file in EventsTable(folder / "lake").files())


def make_history(folder: Path, rows: int) -> Path:
    """Fill a new data directory with sealed rows and return it.

    About half of the rows are envelopes of conversations between agents; the others ack them.
    """

    with growing_history(folder, rows) as history:
        history.grow(rows)
    return folder


@contextmanager
def growing_history(folder: Path, rows: int, rate: int = RATE) -> Iterator[GrowingHistory]:
    """A new journal that grows as the caller asks, while others read it: up to about so many rows, the last of them now."""
    opened = _open_new(folder, "off")
    log = opened.log()
    yield GrowingHistory(folder, opened, log, time.time_ns() // 1000 - rows * 1_000_000 // rate, rate)
    log.close()
    opened.end()


class GrowingHistory:
    """Makes commits: new envelopes, and settles of those of the commit before."""

    def __init__(self, folder: Path, opened: Opened, log: Log, start_us: int, rate: int) -> None:
        self._folder, self._opened, self._rate = folder, opened, rate
        names = [f"work/{number}" for number in range(STREAMS)]
        names += [f"agents/agent-{number}/inbox" for number in range(INBOXES)]
        self._channels = [Channel(name, Policy(max_depth=DEPTH)) for name in names]
        self._seqs = [0] * len(names)
        self._log, self._now_us = log, start_us
        self._made = 0
        self._unsettled: list[Record] = []

    @property
    def end(self) -> int:
        """How many rows there are."""
        return self._log.position.offset

    def grow(self, rows: int) -> None:
        """Write and seal rows until there are so many."""
        while (left := rows - self._log.position.offset) > 0:
            self.commit(min(COMMIT_ROWS, left))
            if self._log.size >= SEGMENT_BYTES or left <= COMMIT_ROWS:
                self._log.rotate()
                self._opened.publish()
                sealed = seal(self._folder)
        if sealed != rows:
            raise RuntimeError(f"{rows} rows were written and {sealed} are sealed")

    def commit(self, count: int, talk: int | None = None) -> int:
        """Write one commit, which a reader sees at once; returns the end of the journal.

        With a number `talk`, the first envelope continues that conversation, however old it is.
        """
        settled = self._unsettled[: count // 2]
        fresh = [self._record(talk if number == 0 else None) for number in range(count - len(settled))]
        facts: list[Fact] = [
            Settle("ack", one, f"agent-{one.seq % INBOXES}", 1, one.recorded_us + 900) for one in settled
        ]
        outcome = self._log.commit([[*facts, *fresh]], self._now_us)[0]
        if not isinstance(outcome, Committed):
            raise RuntimeError(f"the journal refused rows: {outcome}")
        for number, record in enumerate(fresh, outcome.first_offset + len(settled)):
            record.offset, record.recorded_us = number, self._now_us
        self._unsettled = self._unsettled[len(settled) :] + fresh
        self._now_us += count * 1_000_000 // self._rate
        self._opened.publish()
        return self.end

    def _record(self, talk_number: int | None = None) -> Record:
        number = self._made
        self._made += 1
        # Consecutive envelopes of a conversation go to different streams, as questions and answers do.
        index = (number * 7 + number // TALK) % len(self._channels)
        channel, talk = self._channels[index], f"talk-{number // TALK if talk_number is None else talk_number}"
        self._seqs[index] += 1
        sender, kind = f"agent-{number % INBOXES}", ("task.run", "task.done", "note")[number % 3]
        head = (
            f'{{"id":"e-{number}","ts":"2026-01-01T00:00:00Z","to":"{channel.name}","type":"{kind}","from":"{sender}",'
            f'"corr":"{talk}","payload":{{"step":{number % TALK},"cost":{number % 97},"text":"'
        )
        # Text that repeats and a digest that does not: bodies compress, but not to nothing.
        text = hashlib.sha256(head.encode()).hexdigest() + FILLER
        body = (head + text)[: BODY_BYTES - 3] + '"}}'
        record = Record(f"e-{number}", kind, body.encode(), sender, talk)
        record.channel, record.seq = channel, self._seqs[index]
        return record
