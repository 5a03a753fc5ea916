"""Keeps the relay's resident memory under a bound: return free memory, then disconnect all peers, then end the process.

Messages that wait inside libzmq have a bound by count, not by bytes: of publishers that send faster than the relay reads, of subscribers
that do not read. Disconnecting a peer drops them. Publishers and readers reconnect, register, send again and resume on their own. The
server restarts a relay that ends, with its registrations.
"""
# size: one decision; the sockets are closed in `service.py`

from __future__ import annotations

import sys
from typing import Literal, TypeAlias

from penstock.server.engine.process_memory import resident_bytes, return_free_memory

CALM_US = 5_000_000
"""How long the memory must stay under the bound after a reopening; otherwise the process ends."""

FREE_MAX = 128 * 1024 * 1024
"""Resident memory above that of held messages; above it the relay returns free memory after each compaction, about 10 ms."""

Step: TypeAlias = Literal["continue", "reopen", "end"]


class MemoryGuard:
    """Decides what to do about the resident memory of this process."""

    def __init__(self, resident_max: int = sys.maxsize) -> None:
        self._max = resident_max
        self._until_us = 0
        """A bound that is passed before this time ends the process."""
        self.resident = 0
        self.reopened = 0

    def check(self, now_us: int) -> Step:
        """What to do now. Below the bound it costs about 10 us."""
        self.resident = resident_bytes()
        if self.resident <= self._max:
            return "continue"
        return_free_memory()
        self.resident = resident_bytes()
        if self.resident <= self._max:
            return "continue"
        if now_us < self._until_us:
            return "end"
        self._until_us = now_us + CALM_US
        self.reopened += 1
        return "reopen"
