"""Simulated time: events run in order, the wall clock may step back, and a crash ends a life."""

from __future__ import annotations

from penstock.testing.clock import START_US, Clock, Life


def test_events_run_by_time_and_then_in_the_order_of_scheduling():
    clock, ran = Clock(), []
    clock.after(20, lambda: ran.append("late"))
    clock.after(10, lambda: ran.append("first"))
    clock.after(10, lambda: ran.append("second"))
    while clock.step():
        pass
    assert ran == ["first", "second", "late"]
    assert clock.us == START_US + 20


def test_a_cancelled_event_is_skipped():
    clock, ran = Clock(), []
    clock.after(5, lambda: ran.append(1)).cancel()
    assert clock.next_us() is None
    assert not clock.step()
    assert ran == []


def test_a_time_that_is_past_is_the_next_event_and_never_runs_inside_the_call():
    clock, ran = Clock(), []
    clock.at(0, lambda: ran.append(1))
    assert ran == []
    assert clock.step()
    assert (ran, clock.us) == ([1], START_US)


def test_the_wall_clock_steps_without_the_monotonic_one():
    clock = Clock()
    before = clock.now()
    clock.step_wall(-1_000)
    assert clock.now().wall_us == before.wall_us - 1_000
    assert clock.us == START_US


def test_events_of_a_life_that_is_over_never_run():
    clock, ran = Clock(), []
    life = Life(clock)
    life.soon(lambda: ran.append("soon"))
    life.at(START_US + 10, lambda: ran.append("late"))
    clock.step()
    life.over = True
    assert clock.step()
    assert ran == ["soon"]
