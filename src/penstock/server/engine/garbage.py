"""The cycle collector of a server: it runs rarely, visits few objects at a time, and leaves alone what is there at the start."""
# size: the settings of the collector for every process that serves clients

from __future__ import annotations

import gc

YOUNG_MAX, MIDDLE_MAX, OLD_AFTER = 10_000, 3, 250
"""New objects before a collection, its survivors that wait for the next kind, and collections of that kind before all is visited.

Messages create short-lived objects; with the default threshold of 700, the search for cycles takes 5% of the time. What survives is
visited once more with that of a few other collections, and then only with everything: a server that grows pauses for 50,000 objects, about
10 ms. It visits everything after ten million more objects than were freed: what an attacker leaves in cycles does not fill the memory."""
THRESHOLDS = (YOUNG_MAX, MIDDLE_MAX, OLD_AFTER)


class GarbageCollector:
    """Tunes the collector of this process, from `start` to `stop`."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None

    def start(self) -> None:
        """Objects that are alive now stay alive, so no collection visits them."""
        self._before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)

    def stop(self) -> None:
        if self._before is not None:
            gc.unfreeze()
            gc.set_threshold(*self._before)
            self._before = None
