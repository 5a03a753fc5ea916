"""Live files of a shard in the store that every node reads, and the purge of the log behind them.

The order is what matters: a live file is stored, and only then the log is purged up to its place. A file that may not be stored purges
nothing. The newest two are kept, so that a node that has just asked for one finds it.
"""
# size: an order of two steps

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.core.cluster.reader import LogEnd
from penstock.core.cluster.stream_space import purge_point
from penstock.journal.replicated.shard_log import LiveStore, ShardLog, StoredLive

KEPT_FILES = 2


class LiveFiles:
    """What the owner of a shard stores, and how far it purges."""

    def __init__(self, log: ShardLog, store: LiveStore, readers: Callable[[], Iterable[int]] = tuple) -> None:
        """`readers` has the offset of each named reader."""
        self._log = log
        self._store = store
        self._readers = readers
        self._stored: list[LogEnd] = []
        self.purged = 0
        """The last message that was purged."""
        self.failures = 0

    def offer(self, name: str, end: LogEnd, data: bytes | memoryview) -> None:
        """Store the state at this end of the log, then purge."""

        def stored(is_stored: bool) -> None:
            if not is_stored:
                self.failures += 1
                return
            self._stored = [*self._stored[1 - KEPT_FILES :], end]
            self._purge()

        self._store.put(StoredLive(name, end), data, stored)

    def _purge(self) -> None:
        through = purge_point(self._stored, self._readers())
        if through <= self.purged:
            return

        def forgotten(is_done: bool) -> None:
            if is_done:
                self.purged = max(self.purged, through)
                self._store.remove_before(self._stored[0].offset)

        self._log.forget(through, forgotten)
