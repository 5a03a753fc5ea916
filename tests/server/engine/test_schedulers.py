"""Schedulers: the order of calls and timers on a clock run by hand, and surveys in steps."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator

import pytest

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.journal.port import MemoryJournal
from penstock.server.engine.machines import make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import (
    BEAT_S,
    REST_RATIO,
    TURN_BOUNDS,
    HandScheduler,
    LoopScheduler,
    SurveyQueue,
    TurnTimes,
    checked,
    in_steps,
)
from tests.core.driving import counting_entropy


class Clock:
    """A clock that the test moves."""

    us = 0

    def __call__(self) -> Now:
        return Now(self.us, self.us)


class Survey:
    """Work of so many steps."""

    def __init__(self, name: str, steps: int, seen: list[str]) -> None:
        self.name = name
        self.left = steps
        self.seen = seen

    def step(self, now: Now) -> bool:
        self.seen.append(self.name)
        self.left -= 1
        return not self.left


def noting(seen: list[str], text: str) -> Callable[[], None]:
    return lambda: seen.append(text)


def ending(seen: list[str], name: str) -> Callable[[Exception | None], None]:
    return lambda error: seen.append(name if error is None else f"{name}: {error}")


def test_calls_run_in_order_before_due_timers() -> None:
    seen: list[str] = []
    scheduler = HandScheduler(Clock())
    scheduler.at(0, noting(seen, "timer"))
    scheduler.soon(noting(seen, "first"))
    scheduler.soon(lambda: scheduler.soon(noting(seen, "second")))
    assert seen == []
    scheduler.run()
    assert seen == ["first", "second", "timer"]


def test_timers_run_when_the_clock_reaches_them_earliest_first() -> None:
    seen: list[str] = []
    clock = Clock()
    scheduler = HandScheduler(clock)
    for us, name in ((30, "c"), (10, "a"), (10, "b")):
        scheduler.at(us, noting(seen, name))
    clock.us = 9
    scheduler.run()
    assert seen == []
    clock.us = 10
    scheduler.run()
    assert seen == ["a", "b"]
    clock.us = 30
    scheduler.run()
    assert seen == ["a", "b", "c"]


def test_a_cancelled_timer_does_not_run() -> None:
    seen: list[str] = []
    scheduler = HandScheduler(Clock())
    scheduler.at(0, noting(seen, "a")).cancel()
    scheduler.at(0, noting(seen, "b"))
    scheduler.run()
    assert seen == ["b"]


def test_surveys_take_turns_and_one_step_a_turn() -> None:
    seen: list[str] = []
    scheduler = HandScheduler(Clock())
    surveys = SurveyQueue(scheduler, lambda now: None)
    surveys.add(Survey("a", 3, seen), ending(seen, "a done"))
    surveys.add(Survey("b", 1, seen), ending(seen, "b done"))
    assert seen == ["a"], "the first step needs no turn of its own"
    scheduler.run()
    assert seen == ["a", "a", "b", "b done", "a", "a done"]


class Timed(Survey):
    """Steps that take time."""

    def __init__(self, steps: int, seen: list[str], clock: Clock, step_us: int) -> None:
        super().__init__("step", steps, seen)
        self._clock = clock
        self._step_us = step_us

    def step(self, now: Now) -> bool:
        self._clock.us += self._step_us
        return super().step(now)


@pytest.mark.parametrize(("step_us", "steps"), [(2_000, 1), (100, 11)])
def test_after_long_work_other_input_has_the_loop_for_longer(step_us: int, steps: int) -> None:
    seen: list[str] = []
    clock = Clock()
    scheduler = HandScheduler(clock)
    surveys = SurveyQueue(scheduler, lambda now: None, inputs=iter(range(1, 9)).__next__)
    surveys.add(Timed(steps, seen, clock, step_us), ending(seen, "first"))
    scheduler.run()
    assert seen == ["step"] * steps + ["first"]
    surveys.add(Survey("second", 1, seen), ending(seen, "done"))
    clock.us += step_us * steps * REST_RATIO - 1
    scheduler.run()
    assert seen[-1] == "first"
    clock.us += 1
    scheduler.run()
    assert seen[-2:] == ["second", "done"]


def test_an_idle_loop_gives_all_of_its_time_to_a_survey() -> None:
    seen: list[str] = []
    clock = Clock()
    scheduler = HandScheduler(clock)
    SurveyQueue(scheduler, lambda now: None).add(Timed(3, seen, clock, 10_000), ending(seen, "done"))
    scheduler.run()
    assert (clock.us, seen) == (30_000, ["step", "step", "step", "done"])


def test_a_survey_that_fails_stops_no_other_and_effects_follow_each_step() -> None:
    class Broken:
        def step(self, now: Now) -> bool:
            raise RuntimeError("broken")

    seen: list[str] = []
    scheduler = HandScheduler(Clock())
    surveys = SurveyQueue(scheduler, lambda now: seen.append("applied"))
    surveys.add(Survey("a", 2, seen), ending(seen, "a done"))
    surveys.add(Broken(), ending(seen, "the other"))
    scheduler.run()
    assert seen == ["a", "applied", "a", "applied", "a done", "the other: broken"]


def test_a_survey_that_is_done_at_once_leaves_the_queue_empty() -> None:
    seen: list[str] = []
    scheduler = HandScheduler(Clock())
    surveys = SurveyQueue(scheduler, lambda now: None)
    for name in ("a", "b"):
        surveys.add(Survey(name, 1, seen), ending(seen, f"{name} done"))
    assert seen == ["a", "a done", "b", "b done"]


def test_on_a_loop_a_timer_in_the_past_runs_on_the_next_turn() -> None:
    async def go() -> None:
        scheduler = LoopScheduler(asyncio.get_running_loop())
        done = asyncio.Event()
        scheduler.at(scheduler.now().us - 1_000_000, done.set)
        assert not done.is_set()
        async with asyncio.timeout(5):
            await done.wait()

    asyncio.run(go())


@pytest.mark.promise("Operations", "the server measures how long each turn of its loop takes")
def test_what_holds_the_loop_shows_in_its_turns() -> None:
    async def go() -> None:
        loop = asyncio.get_running_loop()
        turns = TurnTimes(loop)
        turns.start()
        until = loop.time() + 0.06 + BEAT_S
        while loop.time() < until:  # work that does not return to the loop
            pass
        beats = asyncio.Event()
        loop.call_later(BEAT_S * 3, beats.set)
        await beats.wait()
        assert turns.longest_s >= 0.06
        assert sum(turns.counts[TURN_BOUNDS.index(0.05) + 1 :]) >= 1
        assert turns.total_s >= turns.longest_s

    asyncio.run(go())


def test_work_in_steps_that_fails_hands_its_exception_to_who_waits() -> None:
    def work() -> Generator[None, None, int]:
        yield
        raise RuntimeError("broken")

    async def go() -> None:
        scheduler = LoopScheduler(asyncio.get_running_loop())
        machine = make_machine(Limits(), lambda name: Policy(), counting_entropy())
        journal = MemoryJournal(scheduler.soon)
        runtime = Runtime(machine, journal, scheduler, authenticate=lambda _: None, version="t")
        async with asyncio.timeout(10):
            with pytest.raises(RuntimeError, match="broken"):
                await in_steps(runtime.survey, work())

    asyncio.run(go())


class Body:
    """Stands for megabytes."""


def test_checks_end_with_the_request_that_asked_for_them() -> None:
    """A busy loop comes to a survey late: meanwhile what it looks at must not fill the memory."""
    body = Body()
    watched, steps = weakref.ref(body), list[int]()

    def work(body: Body) -> Generator[None, None, Body]:
        for number in range(100):
            steps.append(number)
            yield
        return body

    async def go(body: Body) -> None:
        clock = Clock()
        scheduler = HandScheduler(clock)
        queue = SurveyQueue(scheduler, lambda now: None)
        task = asyncio.ensure_future(checked(queue.add, work(body)))
        await asyncio.sleep(0)
        assert queue._waiting and len(steps) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del body, task
        scheduler.run()
        assert not queue._waiting and len(steps) == 1

    asyncio.run(go(body))
    del body
    assert watched() is None
