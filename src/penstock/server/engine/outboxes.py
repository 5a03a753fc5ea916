"""One bound over what all readers of a process have not read, and one over what all senders have sent: beyond it, peers are cut off.

Readers are connections that do not read, participants that poll, and large HTTP answers. Their sizes are noted at the end of a
turn. A peer may read without an event, so a size is an estimate from above: all are measured again before a reader is cut off.
Bytes that readers share count for each of them.
A party is a token, or an address without one. The party that holds most loses its largest reader, so many small readers do not make
another party's the largest. Unauthenticated parties go before tokens, because they may come from many addresses.

The same ledger bounds what peers have sent and what waits: bodies, messages and lines. Its holders are senders then, and what is noted is exact.
"""
# size: one ledger.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.transports.transport import UnreadBytes


@dataclass(slots=True, eq=False)
class Outboxes:
    """The readers that hold something."""

    _limit: Callable[[], int]
    _soon: Callable[[Callable[[], None]], object]
    _log: Callable[..., None]
    _role: str = "reader"
    _readers: dict[UnreadBytes, None] = field(default_factory=dict)
    is_due: bool = False
    """More is held than the bound allows, and readers are about to be cut off."""
    total: int = 0
    """Bytes that all of them hold."""
    cut: int = 0
    """Readers cut off."""

    def note(self, reader: UnreadBytes, size: int) -> None:
        """A reader holds this much now; 0 when it is gone."""
        self.total += size - reader.unread_bytes
        reader.unread_bytes = size
        if size:
            self._readers[reader] = None
        else:
            self._readers.pop(reader, None)
        if self.total > self._limit() and not self.is_due:
            self.is_due = True
            self._soon(self._enforce)

    def slow(self, size: int) -> dict[str, int]:
        """The readers that hold more than this, or whose deliveries pause, by name, the largest first."""
        slow = [reader for reader in self._readers if reader.unread_bytes > size or reader.is_paused]
        held = {reader.reader_name: reader.unread_bytes for reader in slow}
        return dict(sorted(held.items(), key=lambda one: -one[1]))

    def _enforce(self) -> None:
        try:
            for reader in list(self._readers):
                self.note(reader, reader.unread())
            limit = self._limit()
            while self.total > limit:
                self._cut_largest(limit)
        finally:
            self.is_due = False

    def _cut_largest(self, limit: int) -> None:
        held: Counter[tuple[bool, str]] = Counter()
        for reader in self._readers:
            held[reader.party] += reader.unread_bytes
        party = max(held, key=lambda one: (one[0], held[one]))
        largest = max((one for one in self._readers if one.party == party), key=lambda one: one.unread_bytes)
        size = largest.unread_bytes
        self.cut += 1
        who = {self._role: largest.reader_name}
        self._log(f"{self._role}.cut", **who, bytes=size, party=held[party], total=self.total, limit=limit)
        self.note(largest, 0)
        largest.cut(size)
