"""The outbox of one participant: bounded, with a policy at each bound.

While the peer reads, everything is handed on at the end of the turn. While it does not, newer telemetry replaces older, which is
counted; messages of a source that waits are kept, and beyond a bound the source is full; all others are kept up to a bound, and beyond it
the peer is disconnected. `put` is O(1), amortised.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

ENTRY_COST = 256
"""Overhead of an entry in bytes."""
WAIT_ALL = 4
"""How many times `wait_max` may wait of all sources together before each of them is full."""
COMPACT_MIN = 1_024
"""Dropped entries that are left standing before they are swept out."""


class DropPolicy(Protocol):
    """Where an entry came from, as far as an outbox cares."""

    sheds: bool
    """Whether the oldest may go when the peer does not read."""
    waits: bool
    """Whether it stops instead when the peer does not read."""
    full: dict[Outbox, None]
    """Outboxes in which too much of it waits."""
    dropped: int


@dataclass(slots=True, eq=False)
class Outbox:
    """What is on its way to one peer."""

    owner: Any
    """Whose it is: opaque here."""
    firm_max: int
    telemetry_max: int
    wait_max: int
    """Bytes of one source that wait before it is full."""
    stuck: bool = False
    """The peer does not read: nothing leaves."""
    is_over: bool = False
    """Too much is waiting that must not be dropped: the peer is to be disconnected."""
    firm: int = 0
    """Bytes that must not be lost."""
    waits: int = 0
    """Bytes of sources that wait."""
    waiting: dict[DropPolicy, int] = field(default_factory=dict)
    """The same by source."""
    lost: dict[Any, int] = field(default_factory=dict)
    """Messages dropped since the last report to the peer, by source."""
    _queue: deque[list[Any]] = field(default_factory=deque)
    _shed: deque[list[Any]] = field(default_factory=deque)
    _telemetry: int = 0
    _stale: int = 0

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def size(self) -> int:
        """Bytes that wait, with what it costs to keep them."""
        return self.firm + self._telemetry + self.waits

    def put(self, data: bytes, source: DropPolicy | None = None, count: int = 1) -> None:
        """Add what should be written: `count` messages of one source, or of the gateway itself."""
        cost = len(data) + ENTRY_COST
        if source is None or not source.sheds:
            if source is not None and source.waits:
                self._wait(data, source, count, cost)
                return
            self._queue.append([data, None, count])
            self.firm += cost
            if self.stuck and self.firm > self.firm_max:
                self.is_over = True
            return
        entry = [data, source, count]
        self._queue.append(entry)
        self._shed.append(entry)
        self._telemetry += cost
        if self.stuck and self._telemetry > self.telemetry_max:
            self._drop()

    def _wait(self, data: bytes, source: DropPolicy, count: int, cost: int) -> None:
        self._queue.append([data, source, count])
        waiting = self.waiting[source] = self.waiting.get(source, 0) + cost
        self.waits += cost
        if self.stuck and (waiting > self.wait_max or self.waits > WAIT_ALL * self.wait_max):
            source.full[self] = None

    def withdraw(self, source: DropPolicy) -> int:
        """Drop everything of a source that waits; returns how many messages that is."""
        count: int = sum(entry[2] for entry in self._queue if entry[1] is source)
        self._queue = deque(entry for entry in self._queue if entry[1] is not source)
        self.waits -= self.waiting.pop(source, 0)
        source.full.pop(self, None)
        source.dropped += count
        return count

    def _drop(self) -> None:
        """Let the oldest telemetry go until the rest fits; the newest always stays."""
        shed = self._shed
        while self._telemetry > self.telemetry_max and len(shed) > 1:
            entry = shed.popleft()
            data, source, count = entry
            self._telemetry -= len(data) + ENTRY_COST
            entry[0] = None
            self._stale += 1
            source.dropped += count
            self.lost[source] = self.lost.get(source, 0) + count
        if self._stale > COMPACT_MIN and self._stale * 2 > len(self._queue):
            self._queue = deque(entry for entry in self._queue if entry[0] is not None)
            self._stale = 0

    def take(self) -> list[bytes]:
        """Everything there is to write, in order."""
        queue = self._queue
        taken = [entry[0] for entry in queue]
        if self._stale:
            taken = [data for data in taken if data is not None]
            self._stale = 0
        queue.clear()
        self._shed.clear()
        self.firm = self._telemetry = 0
        if self.waits:
            for source in self.waiting:
                source.full.pop(self, None)
            self.waiting.clear()
            self.waits = 0
        return taken

    def take_lost(self) -> dict[Any, int]:
        """What was dropped since this was last asked."""
        lost, self.lost = self.lost, {}
        return lost
