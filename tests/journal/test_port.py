"""The contract of journal adapters: one suite, run for each adapter."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.records import Fact, Record, Settle
from penstock.journal.disk import RealDisk
from penstock.journal.group_commit import DiskJournal
from penstock.journal.port import Committed, Journal, MemoryJournal, Outcome
from tests.journal.histories import START_US, rebuilt

PATIENCE_S = 10.0
Soon = Callable[[Callable[[], None]], object]


class Turns:
    """A loop whose turns a test takes one by one; calls may come from any thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def soon(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Take turns until the condition holds."""
        while not condition():
            self._calls.get(timeout=PATIENCE_S)()


Make = Callable[[Soon], Journal]


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    made: list[Journal] = []

    def memory(soon: Soon) -> Journal:
        return MemoryJournal(soon)

    def disk(soon: Soon) -> Journal:
        opened, _, _ = rebuilt(RealDisk(tmp_path / f"journal-{len(made)}"))
        return DiskJournal(opened, opened.log(), soon, linger_us=0, wall_us=lambda: START_US)

    def one(soon: Soon) -> Journal:
        made.append((memory if request.param == "memory" else disk)(soon))
        return made[-1]

    yield one
    for journal in made:
        journal.close()


def facts(count: int, start: int = 1) -> list[Fact]:
    channel = Channel("a", Policy())
    found: list[Fact] = []
    for seq in range(start, start + count):
        record = Record(f"e{seq}", "note", b'{"n":%d}' % seq, channel=channel, seq=seq)
        found.append(record if seq % 2 else Settle("ack", record, "peer", 1, 0))
    return found


def first_offsets(outcomes: list[Outcome]) -> list[int]:
    assert all(isinstance(outcome, Committed) and outcome.refused is None for outcome in outcomes)
    return [outcome.first_offset for outcome in outcomes if isinstance(outcome, Committed)]


def test_it_has_a_name(make: Make) -> None:
    assert make(Turns().soon).id


@pytest.mark.promise("Foundations", "the journal port answers on a later turn, in order")
def test_an_append_is_answered_on_a_later_turn(make: Make) -> None:
    turns = Turns()
    journal = make(turns.soon)
    outcomes: list[Outcome] = []
    journal.append(0, 0, facts(2), outcomes.append)
    assert outcomes == []
    turns.run_until(lambda: len(outcomes) == 1)


@pytest.mark.promise("Foundations", "the journal port answers on a later turn, in order")
def test_answers_come_once_each_and_in_order(make: Make) -> None:
    turns = Turns()
    journal = make(turns.soon)
    answered: list[int] = []
    for n in range(100):
        journal.append(0, 0, facts(1), lambda _, n=n: answered.append(n))
    turns.run_until(lambda: len(answered) >= 100)
    journal.close()
    assert answered == list(range(100))


@pytest.mark.promise("Journal", "offsets are dense, in the order of appends")
def test_offsets_are_dense_over_facts_of_every_kind(make: Make) -> None:
    turns = Turns()
    journal = make(turns.soon)
    outcomes: list[Outcome] = []
    for count in (3, 1, 0, 5, 0, 2):
        journal.append(0, 0, facts(count), outcomes.append)
    turns.run_until(lambda: len(outcomes) == 6)
    first = first_offsets(outcomes)
    assert [offset - first[0] for offset in first] == [0, 3, 4, 4, 9, 9]


def test_an_append_inside_an_answer_is_answered_later_too(make: Make) -> None:
    turns = Turns()
    journal = make(turns.soon)
    events: list[str] = []

    def first(outcome: Outcome) -> None:
        journal.append(0, 0, facts(1), lambda _: events.append("second answered"))
        events.append("first answered")

    journal.append(0, 0, facts(1), first)
    turns.run_until(lambda: len(events) == 2)
    assert events == ["first answered", "second answered"]


def test_the_facts_it_was_given_are_not_its_to_change(make: Make) -> None:
    turns = Turns()
    journal = make(turns.soon)
    given = facts(4)
    kept = list(given)
    outcomes: list[Outcome] = []
    journal.append(0, 0, given, outcomes.append)
    turns.run_until(lambda: bool(outcomes))
    assert given == kept


def test_closing_answers_what_was_pending(make: Make) -> None:
    turns = Turns()
    journal = make(turns.soon)
    outcomes: list[Outcome] = []
    for _ in range(5):
        journal.append(0, 0, facts(2), outcomes.append)
    journal.close()
    turns.run_until(lambda: len(outcomes) == 5)
    assert first_offsets(outcomes) == [0, 2, 4, 6, 8]
