"""Writes ticks and gauges into the history, so that time windows over it close.

While rows are written, a tick follows every 30 s, at full and half minutes of the wall clock. The full minute also writes a gauge of
each stream that changed, a few a turn. When the minute of the last row is closed and gauged, nothing wakes up any more.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.clock import Now
from penstock.core.queue.channel import Channel
from penstock.core.queue.machine import QueueMachine
from penstock.server.engine.connections import Scheduler

TICK_US = 30_000_000
MINUTE_US = 2 * TICK_US
GAUGES_A_TURN = 200
"""Channels that are gauged in one turn at the full minute: a few milliseconds of work."""


class MinuteTicker:
    """The clock of one runtime's history."""

    def __init__(self, machine: QueueMachine, scheduler: Scheduler, schedule: Callable[[], None]) -> None:
        self._machine = machine
        self._scheduler = scheduler
        self._schedule = schedule
        """Have what was noted written at the end of this turn."""
        self._is_expected = False
        self._open_until_us = 0
        """Wall time from which the minute of the newest row counts as over for readers of the history."""

    def expect(self, now: Now) -> None:
        """Rows were written."""
        self._open_until_us = now.wall_us // MINUTE_US * MINUTE_US + MINUTE_US + TICK_US
        self._expect_after(now, now.wall_us)

    def last(self) -> None:
        """The server stops: close the running minute as far as it got."""
        now = self._scheduler.now()
        self._machine.tick(now, now.wall_us // MINUTE_US * MINUTE_US)
        self._schedule()

    def _expect_after(self, now: Now, wall_us: int) -> None:
        """Tick at the next full or half minute after `wall_us`."""
        if not self._is_expected:
            self._is_expected = True
            due_us = (wall_us // TICK_US + 1) * TICK_US
            self._scheduler.at(now.us + due_us - now.wall_us, self._tick)

    def _tick(self) -> None:
        self._is_expected = False
        now = self._scheduler.now()
        # The nearest one: the wall's clock and the timers' drift apart a little between two beats.
        due_us = (now.wall_us + TICK_US // 2) // TICK_US * TICK_US
        self._machine.tick(now)
        self._schedule()
        if due_us % MINUTE_US == 0:
            self._close_minute(due_us, list(self._machine.channels.values()))
        else:
            self._next(now, due_us)

    def _close_minute(self, due_us: int, channels: list[Channel], first: int = 0) -> None:
        """Gauge every changed channel, a bounded number per turn."""
        now = self._scheduler.now()
        end = first + GAUGES_A_TURN
        self._machine.close_minute(now, due_us - MINUTE_US, channels[first:end])
        self._schedule()
        if end < len(channels):
            self._scheduler.soon(lambda: self._close_minute(due_us, channels, end))
        else:
            self._next(now, due_us)

    def _next(self, now: Now, due_us: int) -> None:
        if due_us < self._open_until_us or not self._machine.is_gauged():
            self._expect_after(now, max(due_us, now.wall_us))
