"""A journal on a simulated disk: slow, full, failing, or lost in the middle of a write.

It keeps the contract of the port (every append is answered later, in order) and nothing beyond it. Its rows survive a crash of the
server. Of the unanswered appends, a crash keeps an arbitrary prefix, because a disk may have completed a write before it was
acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

import msgspec

from penstock.core.records import Fact, is_fresh
from penstock.core.rows import Row, row_of
from penstock.journal.port import Committed, Outcome, Refused
from penstock.testing.clock import Clock

Mood = Literal["well", "slow", "full", "failing"]
"""`slow` stalls, `full` accepts settles but no new records, `failing` rejects whole appends."""

_DELAYS_US: dict[Mood, tuple[int, int]] = {
    "well": (100, 3_000),
    "slow": (20_000, 600_000),
    "full": (100, 3_000),
    "failing": (100, 20_000),
}


class _Write(msgspec.Struct, eq=False):
    """An unanswered append."""

    rows: list[tuple[Row, bool]]
    done: Callable[[Outcome], None]


class SimJournal(msgspec.Struct, eq=False):
    """`journal.port.Journal` on a simulated disk.

    Set `mood` to change how the disk behaves from now on. `rows` are the durable rows.
    """

    _clock: Clock
    _dice: Random
    _kept: Callable[[list[Row]], None]
    _refused: Callable[[list[Row]], None]
    mood: Mood = "well"
    rows: list[Row] = []
    id: str = "simulated"
    _writes: deque[_Write] = msgspec.field(default_factory=deque)
    _due_us: int = 0
    _generation: int = 0

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        """Accept the rows of the facts, and answer later."""
        self._writes.append(_Write([(row_of(fact), is_fresh(fact)) for fact in facts], done))
        low, high = _DELAYS_US[self.mood]
        # Appends are answered in order, like the writes of one disk.
        self._due_us = max(self._due_us, self._clock.us + self._dice.randint(low, high))
        generation = self._generation
        self._clock.at(self._due_us, lambda: self._answer(generation))

    def close(self) -> None:
        return None

    def crash(self) -> None:
        """The server crashed: no append is answered, and an arbitrary prefix of them is durable."""
        self._generation += 1
        kept = self._dice.randint(0, len(self._writes))
        for _ in range(kept):
            self._keep(self._writes.popleft().rows)
        self._writes.clear()
        self._due_us = 0

    def _answer(self, generation: int) -> None:
        if generation != self._generation:
            return
        write = self._writes.popleft()
        first = len(self.rows)
        outcome: Outcome
        if self.mood == "failing" and self._dice.random() < 0.5:
            outcome = Refused("the disk failed")
            self._refused([row for row, _ in write.rows])
        elif self.mood == "full" and any(fresh for _, fresh in write.rows):
            self._refused([row for row, fresh in write.rows if fresh])
            at = self._keep([(row, fresh) for row, fresh in write.rows if not fresh])
            outcome = Committed(first, "the disk is full", at)
        else:
            outcome = Committed(first, recorded_us=self._keep(write.rows))
        write.done(outcome)

    def _keep(self, rows: list[tuple[Row, bool]]) -> int:
        """Make rows durable, and return their `recorded_at`. It never decreases, whatever the wall clock does."""
        at = max(self._clock.now().wall_us, self.rows[-1].recorded_at if self.rows else 0)
        first = len(self.rows)
        begun = {(row.channel, row.seq) for row, _ in rows if row.event == "enqueue"}
        kept = [
            msgspec.structs.replace(
                row,
                journal=self.id,
                offset=first + index,
                recorded_at=at,
                ref_at=at if row.ref_offset == -1 and (row.channel, row.seq) in begun else row.ref_at,
            )
            for index, (row, _) in enumerate(rows)
        ]
        self.rows += kept
        self._kept(kept)
        return at
