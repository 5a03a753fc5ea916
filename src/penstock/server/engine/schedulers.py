"""Schedulers for the runtime: a real event loop, and one that is run by hand."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.steps import Steps, Survey, T
from penstock.server.engine.connections import Scheduler


def real_now() -> Now:
    """The clocks of the system."""
    return Now(time.monotonic_ns() // 1000, time.time_ns() // 1000)


TURN_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Seconds: the buckets of `penstock_loop_turn_seconds`. No input may make a turn longer than 0.05."""
BEAT_S = 0.01
"""How often the loop is asked how late it is: a longer turn is seen, shortened by at most this."""


class TurnTimes:
    """How long turns of the loop take, by the delay of a timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due_s = 0.0
        self.counts = [0] * (len(TURN_BOUNDS) + 1)
        """Turns by bucket; the last one has no bound."""
        self.total_s = 0.0
        self.longest_s = 0.0
        self._cpu_s = 0.0
        self.longest_cpu_s = 0.0
        """CPU time of this thread in the turn that took most, at most `BEAT_S` too much: on a busy machine a turn waits for others too."""

    def start(self) -> None:
        self._cpu_s = time.thread_time()
        self._due_s = self._loop.time() + BEAT_S
        self._loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        late_s = max(self._loop.time() - self._due_s, 0.0)
        self.counts[bisect_left(TURN_BOUNDS, late_s)] += 1
        self.total_s += late_s
        self.longest_s = max(self.longest_s, late_s)
        if late_s > self.longest_cpu_s:
            self.longest_cpu_s = max(self.longest_cpu_s, min(late_s, time.thread_time() - self._cpu_s))
        self.start()


class LoopScheduler:
    """An asyncio loop and the machine's clocks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.turns = TurnTimes(loop)

    now = staticmethod(real_now)

    def soon(self, call: Callable[[], None]) -> object:
        return self._loop.call_soon(call)

    def at(self, us: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        delay_us = us - time.monotonic_ns() // 1000
        return self._loop.call_later(max(delay_us, 0) / 1_000_000, call)


class HandTimer(msgspec.Struct, eq=False):
    """A scheduled call of a `HandScheduler`; a cancelled one stays in the heap and is skipped."""

    call: Callable[[], None] | None

    def cancel(self) -> None:
        self.call = None


class HandScheduler:
    """Runs turns on demand, on a given clock."""

    def __init__(self, clock: Callable[[], Now]) -> None:
        self._clock = clock
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, HandTimer]] = []
        self._count = 0

    def now(self) -> Now:
        return self._clock()

    def soon(self, call: Callable[[], None]) -> object:
        self._soon.append(call)
        return None

    def at(self, us: int, call: Callable[[], None]) -> HandTimer:
        self._count += 1
        timer = HandTimer(call)
        heappush(self._timers, (us, self._count, timer))
        return timer

    def run(self) -> None:
        """Run everything that is due."""
        while True:
            while self._soon:
                self._soon.popleft()()
            if not self._timers or self._timers[0][0] > self._clock().us:
                return
            call = heappop(self._timers)[2].call
            if call is not None:
                call()


Ended = Callable[[Exception | None], None]
"""Is called when a survey has ended, with the exception if it failed."""


REST_AFTER_US, REST_RATIO, REST_MAX_US = 1_000, 8, 200_000
"""While small inputs come, steps that took longer than the first give them the loop for `REST_RATIO` times as long, at most the last.

So all surveys together have a ninth of a busy loop, and an idle one to themselves."""


class SurveyQueue:
    """Runs surveys by turns, one step of one of them a turn. Each belongs to a connection, so their number is bounded."""

    def __init__(
        self,
        scheduler: Scheduler,
        apply: Callable[[Now], None],
        is_behind: Callable[[], bool] = lambda: False,
        inputs: Callable[[], int] = lambda: 0,
    ) -> None:
        self._scheduler = scheduler
        self._is_behind = is_behind  # then steps wait for the backlog of earlier ones
        self._apply = apply
        """Carries out what a step asked for, before anything else happens."""
        self._inputs = inputs
        """How many small inputs were handled: while it grows, there are others to give the loop to."""
        self._seen = 0
        self._spent_us = 0
        """What the steps since the last rest took."""
        self._rest_until_us = 0
        self._waiting: deque[tuple[Survey, Ended, Callable[[], None]]] = deque()

    def add(self, survey: Survey, done: Ended, stepped: Callable[[], None] = lambda: None) -> None:
        """Run a survey, then call `done`, with the exception if it failed; `stepped` after each step before."""
        self._waiting.append((survey, done, stepped))
        if len(self._waiting) > 1:
            return
        if self._scheduler.now().us < self._rest_until_us:
            self._scheduler.at(self._rest_until_us, self._step)
        else:
            self._step()

    def _step(self) -> None:
        if self._is_behind():
            self._scheduler.soon(self._step)
            return
        survey, done, stepped = self._waiting[0]
        now = self._scheduler.now()
        error = None
        try:
            is_over = survey.step(now)
            self._apply(now)
        except Exception as failure:  # it must not stop the others
            is_over, error = True, failure
        if is_over:
            self._waiting.popleft()
        else:
            self._waiting.rotate(-1)
            stepped()
        end_us = self._scheduler.now().us
        self._rest(end_us, end_us - now.us)
        if self._waiting:
            if end_us < self._rest_until_us:
                self._scheduler.at(self._rest_until_us, self._step)
            else:
                self._scheduler.soon(self._step)
        if is_over:
            done(error)

    def _rest(self, now_us: int, spent_us: int) -> None:
        """Give the loop to others, once the steps took long enough and there are others."""
        self._spent_us += spent_us
        if self._spent_us > REST_AFTER_US:
            seen, self._seen = self._seen, self._inputs()
            if seen != self._seen:
                self._rest_until_us = now_us + min(REST_RATIO * self._spent_us, REST_MAX_US)
            self._spent_us = 0


RunSurvey = Callable[[Survey, Ended], None]
"""Runs a survey, then calls back: `Runtime.survey`."""


async def completed(run: RunSurvey, survey: Survey) -> None:
    """Wait for a survey that a request asked for, one step a turn."""
    ended: asyncio.Queue[Exception | None] = asyncio.Queue()
    run(survey, ended.put_nowait)
    if (error := await ended.get()) is not None:
        raise error


async def checked(run: RunSurvey, work: Generator[None, Any, T]) -> T:
    """The same for work that only looks at something: it ends with the request, so that what it looks at leaves the memory."""
    steps = Steps(work)
    try:
        await completed(run, steps)
    except asyncio.CancelledError:
        steps.end()
        raise
    return steps.result


async def in_steps(run: RunSurvey, work: Generator[None, Any, T]) -> T:
    """Do work that a request asked for, one step a turn."""
    steps = Steps(work)
    await completed(run, steps)
    return steps.result
