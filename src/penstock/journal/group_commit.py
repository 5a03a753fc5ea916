"""The disk journal: writes and syncs on a thread of its own, many appends in one commit.

The caller packs its rows: their facts are in its cache, and the thread then needs little of the interpreter's lock. Appends queue up; the
thread takes all that wait, commits them in one frame, and returns the outcomes to the loop in order. When it is idle an append is
committed at once. Under load a group forms by itself while the disk syncs; `linger_us` makes it larger.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TypeVar

from penstock.core.health import JOURNAL_ENDED
from penstock.core.records import Fact
from penstock.journal.columns import Packed, pack_facts
from penstock.journal.log import Log
from penstock.journal.open_and_repair import Opened
from penstock.journal.port import Outcome, Refused

GROUP_FACTS_MAX = 4096
"""Facts in one frame, so that a commit does not take long; an append that has more is a frame of its own."""
PACKED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of packed rows that wait. Beyond it facts wait as they are, in memory that they have anyway, and the thread packs them."""
INTERVAL_S = 1.0
"""How often `sync: interval` syncs."""

T = TypeVar("T")
Done = Callable[[Outcome], None]
Rotated = Callable[[str | Refused | None], None]


class DiskJournal:
    """A journal in a directory."""

    def __init__(
        self,
        opened: Opened,
        log: Log,
        soon: Callable[[Callable[[], None]], object],
        *,
        linger_us: int,
        wall_us: Callable[[], int],
    ) -> None:
        """`soon` must be safe to call from another thread."""
        self.id = opened.identity.id
        self._opened = opened
        self._log = log
        self._soon = soon
        self._linger_s = linger_us / 1_000_000
        self._wall_us = wall_us
        self._syncs_by_time = opened.sync == "interval"
        self._queue: deque[tuple[Sequence[Fact], Packed | None, Done]] = deque()
        self._packed_in = self._packed_out = 0
        """Bytes that were packed for the thread, and that it took; each is changed by one thread."""
        self._wake = threading.Condition()
        self._rotations: deque[Rotated] = deque()
        self._is_check_due = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """Why new records are refused, while they are."""
        return self._log.trouble if self._thread.is_alive() or self._is_closing else JOURNAL_ENDED

    @property
    def space(self) -> tuple[int | None, int]:
        """Bytes that are free for new records, None when unknown, and bytes that are allocated for settles on a full disk."""
        return self._log.space

    @property
    def next_offset(self) -> int:
        return self._log.position.offset

    @property
    def segment_size(self) -> int:
        """Bytes in the newest segment."""
        return self._log.size

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Done) -> None:
        packed: Packed | None = None
        if self._packed_in - self._packed_out < PACKED_BYTES_MAX:
            with suppress(Exception):  # facts that cannot be packed are refused by the thread
                packed = pack_facts(facts)
                self._packed_in += _size(packed)
        self._put(self._queue, (facts, packed, done), done)

    def rotate(self, done: Rotated) -> None:
        """End the newest segment, in turn with the appends; `done` gets its name, None when it is empty, or why the next did not begin."""
        self._put(self._rotations, done, done)

    def _put(self, queue: deque[T], item: T, done: Callable[[Refused], None]) -> None:
        if not self._thread.is_alive():
            self._soon(lambda: done(Refused(JOURNAL_ENDED)))
            return
        with self._wake:
            queue.append(item)
            self._wake.notify()

    def check(self) -> None:
        """Have the thread look at the disk; `trouble` then says how it is."""
        with self._wake:
            self._is_check_due = True
            self._wake.notify()

    def _run(self) -> None:
        busy_until = 0.0
        synced_at = time.monotonic()
        while self._wait():
            try:
                # Right after a commit, wait a little so that a group forms; when idle, commit at once.
                if self._queue and self._linger_s and (rest := busy_until - time.monotonic()) > 0:
                    time.sleep(rest)
                groups: list[Sequence[Fact]] = []
                packed: list[Packed | None] = []
                dones: list[Done] = []
                count = 0
                while self._queue and (not groups or count + len(self._queue[0][0]) <= GROUP_FACTS_MAX):
                    facts, rows, done = self._queue.popleft()
                    groups.append(facts)
                    packed.append(rows)
                    dones.append(done)
                    count += len(facts)
                if groups:
                    self._packed_out += sum(map(_size, filter(None, packed)))
                    self._commit(groups, packed, dones)
                    busy_until = time.monotonic() + self._linger_s
                if self._rotations:  # between two commits, however many wait
                    self._rotate(self._rotations.popleft())
                if self._is_check_due:
                    self._is_check_due = False
                    self._log.check()
                if self._log.unsynced and self._syncs_by_time and time.monotonic() - synced_at >= INTERVAL_S:
                    self._log.sync()
                    synced_at = time.monotonic()
            except Exception as error:  # the thread goes on, so that no caller waits forever
                self._log.fail(error)

    def _wait(self) -> bool:
        """Wait for work; False when the journal closes."""
        with self._wake:
            while not self._queue and not self._rotations and not self._is_check_due:
                if self._is_closing:
                    return False
                if not self._wake.wait(INTERVAL_S if self._log.unsynced and self._syncs_by_time else None):
                    return True  # time to sync
        return True

    def _commit(self, groups: list[Sequence[Fact]], packed: list[Packed | None], dones: list[Done]) -> None:
        outcomes: list[Outcome]
        try:
            outcomes = self._log.commit(groups, self._wall_us(), packed)
        except Exception as error:
            # A bug must not leave producers waiting forever.
            outcomes = [Refused(f"the journal failed: {error!r}") for _ in groups]
        with suppress(Exception):  # readers in other processes see these rows with the next commit
            self._opened.publish()

        def report() -> None:
            with ExitStack() as stack:  # it calls all of them, the last one first, even if one fails
                for done, outcome in zip(reversed(dones), reversed(outcomes), strict=True):
                    stack.callback(done, outcome)

        self._soon(report)

    def _rotate(self, done: Rotated) -> None:
        outcome: str | Refused | None
        try:
            outcome = self._log.rotate()
            if self._log.is_closed and self._log.trouble is not None:
                outcome = Refused(self._log.trouble)
        except Exception as error:
            self._log.fail(error)
            outcome = Refused(repr(error))
        self._soon(lambda: done(outcome))

    def close(self) -> None:
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        self._thread.join()
        try:
            if self._log.close() is None:
                self._opened.end()
        except OSError:
            pass  # the run counts as not cleanly ended, which is always safe


def _size(packed: Packed) -> int:
    return sum(map(len, packed))
