"""Deadlines: earliest first, stale ones skipped, and the heap stays small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.deadline_heap import SWEEP_MIN, Timers


class Subject:
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.ticket = 0


def test_an_empty_heap_has_no_deadline() -> None:
    timers: Timers[Subject] = Timers()
    assert timers.next_deadline() is None
    assert timers.pop_due(10**18) is None


@pytest.mark.promise("Delivery", "every lease has an id, and every delivery its `attempt`")
def test_due_subjects_come_by_deadline_then_by_arming() -> None:
    timers: Timers[Subject] = Timers()
    for name, deadline in [("late", 30), ("tie 1", 20), ("tie 2", 20), ("early", 10)]:
        timers.arm(deadline, Subject(name))
    popped = []
    while (subject := timers.pop_due(20)) is not None:
        popped.append(subject.name)
        subject.ticket = 0
    assert popped == ["early", "tie 1", "tie 2"]
    assert timers.next_deadline() == 30


def test_a_deadline_is_due_at_its_very_microsecond() -> None:
    timers: Timers[Subject] = Timers()
    subject = Subject()
    timers.arm(10, subject)
    assert timers.pop_due(9) is None
    assert timers.pop_due(10) is subject


def test_arming_again_replaces_the_deadline() -> None:
    timers: Timers[Subject] = Timers()
    subject = Subject()
    timers.arm(10, subject)
    timers.arm(50, subject)
    assert timers.next_deadline() == 50
    assert timers.pop_due(49) is None
    assert timers.pop_due(50) is subject
    assert timers.pop_due(50) is None


def test_a_subject_without_its_ticket_is_passed_over() -> None:
    timers: Timers[Subject] = Timers()
    subject = Subject()
    timers.arm(10, subject)
    subject.ticket = 0
    assert timers.next_deadline() is None


def test_stale_timers_are_swept() -> None:
    timers: Timers[Subject] = Timers()
    subject = Subject()
    for n in range(4 * SWEEP_MIN):
        timers.arm(n, subject)
        timers.sweep()
        assert len(timers.heap) <= SWEEP_MIN
    assert timers.next_deadline() == 4 * SWEEP_MIN - 1


def test_a_sweep_keeps_all_that_is_live() -> None:
    timers: Timers[Subject] = Timers()
    kept = [Subject(str(n)) for n in range(SWEEP_MIN)]
    for n, subject in enumerate(kept):
        timers.arm(SWEEP_MIN - n, subject)
        timers.arm(SWEEP_MIN - n, Subject())
        timers.heap[-1][2].ticket = timers.heap[-1][2].ticket
    timers.sweep()
    popped = 0
    while (subject := timers.pop_due(10**9)) is not None:
        popped += 1
        subject.ticket = 0
    assert popped == 2 * SWEEP_MIN


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100)), max_size=60))
def test_only_the_latest_arming_of_each_subject_counts(arms: list[tuple[int, int]]) -> None:
    timers: Timers[Subject] = Timers()
    subjects = [Subject(str(n)) for n in range(6)]
    expected: dict[str, int] = {}
    for index, deadline in arms:
        timers.arm(deadline, subjects[index])
        expected[str(index)] = deadline
    assert timers.next_deadline() == min(expected.values(), default=None)
    popped: dict[str, int] = {}
    for moment in range(101):
        while (subject := timers.pop_due(moment)) is not None:
            assert subject.name not in popped
            popped[subject.name] = moment
            subject.ticket = 0
    assert popped == expected


def test_one_call_skips_a_bounded_number_of_stale_timers() -> None:
    timers: Timers[Subject] = Timers()
    subjects = [Subject() for _ in range(3 * SWEEP_MIN)]
    for deadline, subject in enumerate(subjects):
        timers.arm(deadline, subject)
    for subject in subjects[:-1]:
        subject.ticket = 0
    calls = 0
    while (due := timers.next_deadline()) != len(subjects) - 1:
        calls += 1
        assert due == calls * SWEEP_MIN, "not beyond the bound, and not later than the first that is live"
    for subject in subjects[:-1]:
        timers.arm(0, subject)
        subject.ticket = 0
    assert timers.pop_due(len(subjects)) is None, "the rest comes with the next call"
    found = [timers.pop_due(len(subjects)) for _ in range(4)]
    assert subjects[-1] in found
