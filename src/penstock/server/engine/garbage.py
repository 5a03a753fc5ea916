"""The cycle collector of the server, in pieces that no client notices.

A full collection visits every tracked object: 0.3 s where 100,000 streams have a subscriber each. So what has survived two
collections is frozen, and visited no more. Frozen objects are freed as usual when nothing refers to them. Only those that
refer to one another in a cycle stay: the sessions of closed connections. After many of these, all objects are visited once.
That is the one pause that grows with what a server holds.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

THRESHOLDS = (10_000, 2, 10)
"""New objects before a collection, and collections of one generation before the next: 30,000 objects at most, about 10 ms."""
ENDED_MIN, ENDED_MAX, ENDED_A_SECOND = 250, 10_000, 25_000
"""Closed connections, about 8 KiB each, after which all objects are visited: more of them, the longer the last visit took."""
LOOK_S = 10.0


class GarbageCollector:
    """Tunes the collector of this process, from `start` to `stop`."""

    def __init__(self, ended: Callable[[], int]) -> None:
        self._ended = ended
        """How many connections have ended so far."""
        self._before = gc.get_threshold()
        self.full = 0
        """Collections of everything."""

    def start(self) -> None:
        """Objects that are alive now stay alive, so no collection visits them."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
            gc.unfreeze()
            gc.set_threshold(*self._before)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] > 0:
            gc.freeze()

    async def run(self) -> None:
        """Collect everything after enough connections have ended, until cancelled."""
        due = ENDED_MIN
        while True:
            await asyncio.sleep(LOOK_S)
            if (ended := self._ended()) >= due:
                took_s = self.collect()
                due = ended + min(max(int(took_s * ENDED_A_SECOND), ENDED_MIN), ENDED_MAX)

    def collect(self) -> float:
        """Visit all objects; returns the seconds that it took."""
        begun_s = time.perf_counter()
        gc.unfreeze()
        gc.collect()  # freezes what is left
        self.full += 1
        return time.perf_counter() - begun_s
