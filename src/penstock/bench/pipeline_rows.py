"""The history that the pipeline's bench reads: a journal of so many rows, made by the journal's own writer and sealed.

No server is needed, and the same count gives the same rows but for their times. Half of them are envelopes of 300 bytes
over two dozen streams and inboxes, in conversations of six; the other half settle them a moment later.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.bench.processes import BenchError
from penstock.core.clock import Now
from penstock.core.queue.channel import Channel
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
TALK = 6
"""Envelopes of a conversation."""
COMMIT_ROWS = 256
RATE = 2_000
"""Journal rows a second, by their times: a busy minute has 120,000 of them."""
SEGMENT_BYTES = 64 * 1024 * 1024
"""As large as a server lets a segment grow."""
DEPTH = 1_000_000
FILLER = "the quick brown fox jumps over the lazy dog, then writes a report about it. " * 3

Progress = Callable[[int], None]
"""Called with the rows that are there."""


def make_history(place: Path, rows: int, progress: Progress | None = None) -> Path:
    """Fill a data directory with sealed rows; returns it."""
    opened = Opened(RealDisk(place / "journal"), fresh_id=os.urandom(16).hex(), sync="off")
    for found in (opened.live_rows(), opened.tail_rows()):
        for _ in found:
            raise BenchError(f"`{place}` is not empty")
    log = opened.log()
    maker = _Maker(log, time.time_ns() // 1000 - rows * 1_000_000 // RATE)
    while log.position.offset < rows:
        maker.commit(min(COMMIT_ROWS, rows - log.position.offset))
        if log.size >= SEGMENT_BYTES:
            log.rotate()
            _seal(place)
            if progress is not None:
                progress(log.position.offset)
    log.rotate()
    opened.publish()
    log.close()
    opened.end()
    _seal(place)
    sealed = sum(file.rows for file in EventsTable(place / "lake").files())
    if sealed != rows:
        raise BenchError(f"{rows} rows were written and {sealed} are sealed")
    return place


class _Maker:
    """Makes commits: new envelopes, and settles of those of the commit before."""

    def __init__(self, log: Log, start_us: int) -> None:
        policy = Policy(max_depth=DEPTH)
        names = [f"work/{number}" for number in range(STREAMS)]
        names += [f"agents/agent-{number}/inbox" for number in range(INBOXES)]
        self._channels = [Channel(name, policy) for name in names]
        self._seqs = [0] * len(names)
        self._log = log
        self._now_us = start_us
        self._made = 0
        self._unsettled: list[Record] = []

    def commit(self, count: int) -> None:
        facts: list[Fact] = []
        for record in self._unsettled[: count // 2]:
            peer = f"agent-{record.seq % INBOXES}"
            facts.append(Settle("ack", record, peer, 1, record.arrived_wall_us + 900))
        left = self._unsettled[len(facts) :]
        fresh = [self._record() for _ in range(count - len(facts))]
        facts += fresh
        outcome = self._log.commit([facts], self._now_us)[0]
        if not isinstance(outcome, Committed):
            raise BenchError(f"the journal refused rows: {outcome}")
        first = outcome.first_offset + len(facts) - len(fresh)
        for number, record in enumerate(fresh):
            record.offset, record.arrived_wall_us = first + number, self._now_us
        self._unsettled = left + fresh
        self._now_us += count * 1_000_000 // RATE

    def _record(self) -> Record:
        number = self._made
        self._made += 1
        # Neighbours of a conversation go to different streams, as questions and answers do.
        index = (number * 7 + number // TALK) % len(self._channels)
        channel, talk = self._channels[index], f"talk-{number // TALK}"
        self._seqs[index] += 1
        sender, kind = f"agent-{number % INBOXES}", ("task.run", "task.done", "note")[number % 3]
        head = (
            f'{{"id":"e-{number}","ts":"2026-01-01T00:00:00Z","to":"{channel.name}","type":"{kind}","from":"{sender}",'
            f'"corr":"{talk}","payload":{{"step":{number % TALK},"cost":{number % 97},"text":"'
        )
        # Text that repeats, and a digest that does not: bodies compress neither away nor not at all.
        text = hashlib.sha256(head.encode()).hexdigest() + FILLER
        body = (head + text)[: BODY_BYTES - 3] + '"}}'
        record = Record(f"e-{number}", kind, body.encode(), sender, talk)
        record.channel, record.seq = channel, self._seqs[index]
        return record


class _NoState:
    """Stands for the queue machine while sealing: no server opens this journal, so its live file may be empty."""

    def snapshot(self, _now: Now) -> Iterator[Row]:
        return iter(())

    def resume(self, _now: Now, _row: Row) -> None:
        """Nothing is kept."""

    def restore(self, _now: Now, _row: Row) -> None:
        """Nothing is kept."""

    def wake(self, _now: Now) -> None:
        """Nothing is due."""


def _seal(place: Path) -> None:
    sealer = Sealer(
        RealDisk(place / "journal"),
        place / "lake",
        _NoState,
        retention=Retention(0, 0, 0, 0),
    )
    sealer.seal(time.time_ns() // 1000)
