"""The outbox of one participant: bounded, with a policy at each bound.

While the peer reads, everything is handed on at the end of the turn. While it does not, newer telemetry replaces older, which is
counted; other messages are kept up to a bound, and beyond it the peer is disconnected. `put` is O(1), amortised.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

ENTRY_COST = 256
"""Overhead of an entry in bytes."""
COMPACT_MIN = 1_024
"""Dropped entries that are left standing before they are swept out."""


class DropPolicy(Protocol):
    """Where an entry came from, as far as an outbox cares."""

    sheds: bool
    """Whether the oldest may go when the peer does not read."""
    dropped: int


class Outbox:
    """What is on its way to one peer."""

    __slots__ = (
        "_queue",
        "_shed",
        "_stale",
        "_telemetry",
        "firm",
        "firm_max",
        "is_over",
        "lost",
        "owner",
        "stuck",
        "telemetry_max",
    )

    def __init__(self, owner: Any, *, firm_max: int, telemetry_max: int) -> None:
        self.owner = owner
        """Whose it is: opaque here."""
        self.firm_max = firm_max
        self.telemetry_max = telemetry_max
        self.stuck = False
        """The peer does not read: nothing leaves."""
        self.is_over = False
        """Too much is waiting that must not be dropped: the peer is to be disconnected."""
        self.firm = 0
        """Bytes that must not be lost."""
        self.lost: dict[DropPolicy, int] = {}
        """Messages dropped since the last report to the peer, by source."""
        self._queue: deque[list[Any]] = deque()
        self._shed: deque[list[Any]] = deque()
        self._telemetry = 0
        self._stale = 0

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def size(self) -> int:
        """Bytes that wait, with what it costs to keep them."""
        return self.firm + self._telemetry

    def put(self, data: bytes, source: DropPolicy | None = None, count: int = 1) -> None:
        """Add what should be written: `count` messages of one source, or of the gateway itself."""
        cost = len(data) + ENTRY_COST
        if source is None or not source.sheds:
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
        taken = [entry[0] for entry in self._queue if entry[0] is not None]
        self._queue.clear()
        self._shed.clear()
        self.firm = self._telemetry = self._stale = 0
        return taken

    def take_lost(self) -> dict[DropPolicy, int]:
        """What was dropped since this was last asked."""
        lost, self.lost = self.lost, {}
        return lost
