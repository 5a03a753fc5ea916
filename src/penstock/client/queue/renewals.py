"""Lease renewal: one timer per connection that extends each lease at half of its length.

Owns only the timer; holders own their deliveries. Arming is O(1); a tick visits every held delivery.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Protocol

from penstock.client.queue.delivery import Delivery, State

LEASE_GUESS_MS = 30_000
"""The longest lease to assume from `leaseExpiresAt` alone, because the clocks of two machines may differ."""
LEASE_LEAST_MS = 1_000
"""The shortest lease that a server grants; also the assumption when its clock is behind ours."""
TICK_LEAST_S = 0.02


class Keeper(Protocol):
    """A holder whose leases need renewal."""

    def _leases(self) -> Iterable[Delivery]: ...

    def _renew(self, delivery: Delivery) -> None: ...


class Renewals:
    """The renewal timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._keepers: dict[Keeper, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = float("inf")

    def watch(self, keeper: Keeper) -> None:
        self._keepers[keeper] = None

    def forget(self, keeper: Keeper) -> None:
        self._keepers.pop(keeper, None)

    def arm(self, renew_at: float) -> None:
        """Schedule a tick at `renew_at` or earlier."""
        if renew_at < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = renew_at
            self._timer = self._loop.call_at(renew_at, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._due = float("inf")
        self._keepers.clear()

    def _tick(self) -> None:
        self._timer = None
        self._due = float("inf")
        now = self._loop.time()
        earliest = float("inf")
        for keeper in list(self._keepers):
            for delivery in list(keeper._leases()):
                if delivery._state is State.HELD:
                    if delivery._renew_at <= now:
                        keeper._renew(delivery)
                    earliest = min(earliest, delivery._renew_at)
        if earliest != float("inf"):
            self.arm(max(earliest, now + TICK_LEAST_S))


def half_lease_s(lease_ms: int | None, expires_at_ms: int | None) -> float:
    """Half of a lease that starts now: from its requested length, or else from its end."""
    if lease_ms is None:
        if expires_at_ms is None:
            lease_ms = LEASE_LEAST_MS
        else:
            left_ms = expires_at_ms - int(time.time() * 1000)
            lease_ms = max(LEASE_LEAST_MS, min(LEASE_GUESS_MS, left_ms))
    return lease_ms / 2000
