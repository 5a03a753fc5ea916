"""A journal that forgets: the queue of the seed, with nothing kept beyond the process.

It still answers on a later turn, like every journal, so what runs on it runs on a disk too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.records import Fact
from penstock.journal.port import Committed, Outcome


class MemoryJournal:
    """Counts offsets and keeps no rows."""

    def __init__(self, soon: Callable[[Callable[[], None]], object], journal_id: str = "memory") -> None:
        self.id = journal_id
        self._soon = soon
        self._next = 0

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        first = self._next
        self._next += len(facts)
        self._soon(lambda: done(Committed(first)))

    def close(self) -> None:
        return None
