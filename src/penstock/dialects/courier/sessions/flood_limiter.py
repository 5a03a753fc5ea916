"""How fast one peer may speak: the flood gate of every session.

Settles and credit are never limited by rate, because refusing an ack makes a duplicate; a peer that floods is
closed instead. One comparison a message.
"""

from __future__ import annotations

from penstock.core.clock import Now
from penstock.core.errors import Refusal

SECOND_US = 1_000_000


class FloodLimiter:
    """Counts a peer's messages in the running second."""

    __slots__ = ("_count", "_limit", "_second")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._second = 0
        self._count = 0

    def flood(self, now: Now) -> Refusal | None:
        """Count one message; a refusal when there were too many."""
        second = now.us // SECOND_US
        if second != self._second:
            self._second = second
            self._count = 0
        self._count += 1
        if self._count <= self._limit:
            return None
        return Refusal("RateLimited", f"more than {self._limit} messages a second")
