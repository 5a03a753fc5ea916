"""The journal port: what a runtime may know of a journal, and the journal that keeps nothing.

An adapter answers every append in the order of the calls and always on a later turn of the loop, so that no caller can rely on an
immediate answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock.core.records import Fact


class Committed(msgspec.Struct, frozen=True):
    """The facts are durable, densely from `first_offset`, in the order given."""

    first_offset: int
    refused: str | None = None
    """Why the fresh facts were left out (`records.is_fresh`): settles still have room when records do not."""
    recorded_us: int | None = None
    """The `recorded_at` of their rows."""


class Refused(msgspec.Struct, frozen=True):
    """Nothing was committed. It could return only if the disk fails again while the write is undone, and then crashes."""

    reason: str


Outcome = Committed | Refused


class Journal(Protocol):
    """An append-only history per shard, written by one owner at a time."""

    id: str

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        """Make facts durable together, in the caller's order."""

    def close(self) -> None:
        """Write what is pending and close."""


class MemoryJournal:
    """Counts offsets and keeps no rows: `--data none`."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self.id = "memory"
        self._soon = soon
        self._next = 0

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        first = self._next
        self._next += len(facts)
        self._soon(lambda: done(Committed(first)))

    def close(self) -> None:
        return None
