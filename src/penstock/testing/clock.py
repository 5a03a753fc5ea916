"""Simulated time: one heap of events for the network, the disk and the runtime.

Events of the same instant run in the order in which they were scheduled, so equal seeds give equal runs. The wall clock is a separate
offset that may step back, as real ones do. `Life` is the scheduler of one run of the server: a crash ends it, and its pending events
never run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from penstock.core.clock import Now
from penstock.server.engine.schedulers import HandTimer

START_US = 1_000_000
"""Not zero, to find code that treats zero as no time."""
START_WALL_US = 1_767_225_600_000_000
"""1 January 2026, so that times in a trace are readable."""


class Clock:
    """The monotonic and the wall clock, and the scheduled events.

    >>> clock = Clock()
    >>> clock.after(5_000, lambda: print("five milliseconds later"))  # doctest: +ELLIPSIS
    HandTimer(...)
    >>> clock.step()
    five milliseconds later
    True
    """

    def __init__(self) -> None:
        self.us = START_US
        self.wall_offset_us = START_WALL_US - START_US
        self._heap: list[tuple[int, int, HandTimer]] = []
        self._count = 0

    def now(self) -> Now:
        return Now(self.us, self.us + self.wall_offset_us)

    def at(self, us: int, call: Callable[[], None]) -> HandTimer:
        """Call at `us` of the monotonic clock; if that is past, as the next event."""
        self._count += 1
        event = HandTimer(call)
        heappush(self._heap, (max(us, self.us), self._count, event))
        return event

    def after(self, delay_us: int, call: Callable[[], None]) -> HandTimer:
        return self.at(self.us + delay_us, call)

    def step_wall(self, us: int) -> None:
        """Set the wall clock forward or back, as a correction does."""
        self.wall_offset_us += us

    def next_us(self) -> int | None:
        """The time of the next event, or None."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def step(self) -> bool:
        """Run the next event; false when there is none."""
        due_us = self.next_us()
        if due_us is None:
            return False
        event = heappop(self._heap)[2]
        self.us = due_us
        call = event.call
        assert call is not None
        call()
        return True


class Life:
    """The scheduler of one run of the server, from its start to its crash."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.over = False

    def now(self) -> Now:
        return self._clock.now()

    def soon(self, call: Callable[[], None]) -> object:
        return self._clock.after(0, self._while_alive(call))

    def at(self, us: int, call: Callable[[], None]) -> HandTimer:
        return self._clock.at(us, self._while_alive(call))

    def _while_alive(self, call: Callable[[], None]) -> Callable[[], None]:
        def alive() -> None:
            if not self.over:
                call()

        return alive
