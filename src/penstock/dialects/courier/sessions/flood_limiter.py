"""The limit on messages a second from one peer, shared by all sessions.

Rate limits apply to enqueues only: rejecting an ack would cause a duplicate delivery. A peer that floods is disconnected instead. Cost:
one comparison a message.
"""

# size: one small rule that every session shares

from __future__ import annotations

from penstock.core.clock import Now
from penstock.core.errors import Refusal

SECOND_US = 1_000_000


class FloodLimiter:
    """Counts the messages of a peer in the current second."""

    __slots__ = ("_count", "_limit", "_second")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._second = 0
        self._count = 0

    def flood(self, now: Now) -> Refusal | None:
        """Count one message; a refusal if there were too many this second."""
        second = now.us // SECOND_US
        if second != self._second:
            self._second = second
            self._count = 0
        self._count += 1
        if self._count <= self._limit:
            return None
        return Refusal("RateLimited", f"more than {self._limit} messages a second")
