"""Deadlines on one heap, for everything in a machine that waits.

A timer is (deadline, ticket, subject) and is never removed: it is stale when its subject carries another ticket. Stale timers are
skipped at the top and swept when they outnumber the rest. Arming is O(log n), in practice O(1); disarming is free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar


class Subject(Protocol):
    """Whatever a timer is for."""

    ticket: int


S = TypeVar("S", bound=Subject)

SWEEP_MIN = 4096
"""Below this many timers a sweep is not worth its bookkeeping; as many stale ones are skipped in one call: about 6 ms."""


@dataclass(slots=True, eq=False)
class Timers(Generic[S]):
    """The deadlines of one machine."""

    heap: list[tuple[int, int, S]] = field(default_factory=list)
    ticket: int = 0
    """The newest ticket. The hot path of the queue counts it up and pushes by itself."""
    _sweep_at: int = SWEEP_MIN

    def arm(self, deadline_us: int, subject: S) -> None:
        """Wake `subject` at `deadline_us`; whatever it waited for before is forgotten."""
        self.ticket = ticket = self.ticket + 1
        subject.ticket = ticket
        heappush(self.heap, (deadline_us, ticket, subject))
        self.sweep()

    def sweep(self) -> None:
        """Drop stale timers once they may be the majority. Amortised O(1) a timer."""
        heap = self.heap
        if len(heap) < self._sweep_at:
            return
        heap[:] = [timer for timer in heap if timer[2].ticket == timer[1]]
        heapify(heap)
        self._sweep_at = max(SWEEP_MIN, 2 * len(heap))

    def is_quiet_until(self, us: int) -> bool:
        """Whether nothing can be due before `us`. Stale timers stay where they are: a sweep is cheaper than popping them."""
        return bool(self.heap) and self.heap[0][0] >= us

    def next_deadline(self) -> int | None:
        """The earliest deadline that is not stale; after `SWEEP_MIN` stale ones the next, whatever it is."""
        heap = self.heap
        for _ in range(SWEEP_MIN):
            if not heap:
                return None
            deadline_us, ticket, subject = heap[0]
            if subject.ticket == ticket:
                return deadline_us
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_us: int) -> S | None:
        """The next subject whose time has come, if it follows fewer than `SWEEP_MIN` stale timers; it gets another ticket, or none."""
        heap = self.heap
        for _ in range(SWEEP_MIN):
            if not heap or heap[0][0] > now_us:
                return None
            _, ticket, subject = heappop(heap)
            if subject.ticket == ticket:
                return subject
        return None
