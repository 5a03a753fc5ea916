"""What every journal adapter must do: one suite, run once for each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from penstock.core.channels import Channel
from penstock.core.policy import Policy
from penstock.core.records import Fact, Record, Settle
from penstock.journal.memory import MemoryJournal
from penstock.journal.port import Committed, Journal, Outcome

Soon = Callable[[Callable[[], None]], object]


class Turns:
    """A loop whose turns a test takes one by one."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()

    def soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def run(self) -> None:
        while self._calls:
            self._calls.popleft()()


def memory(soon: Soon) -> Journal:
    return MemoryJournal(soon)


@pytest.fixture(params=[memory], ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Callable[[Soon], Journal]:
    adapter: Callable[[Soon], Journal] = request.param
    return adapter


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


def test_it_has_a_name(make: Callable[[Soon], Journal]) -> None:
    assert make(Turns().soon).id


def test_an_append_is_answered_on_a_later_turn(make: Callable[[Soon], Journal]) -> None:
    turns = Turns()
    journal = make(turns.soon)
    outcomes: list[Outcome] = []
    journal.append(0, 0, facts(2), outcomes.append)
    assert outcomes == []
    turns.run()
    assert len(outcomes) == 1


def test_answers_come_once_each_and_in_order(make: Callable[[Soon], Journal]) -> None:
    turns = Turns()
    journal = make(turns.soon)
    answered: list[int] = []
    for n in range(10):
        journal.append(0, 0, facts(1), lambda _, n=n: answered.append(n))
    turns.run()
    assert answered == list(range(10))


def test_offsets_are_dense_over_facts_of_every_kind(make: Callable[[Soon], Journal]) -> None:
    turns = Turns()
    journal = make(turns.soon)
    outcomes: list[Outcome] = []
    for count in (3, 1, 0, 5, 0, 2):
        journal.append(0, 0, facts(count), outcomes.append)
    turns.run()
    first = first_offsets(outcomes)
    assert [offset - first[0] for offset in first] == [0, 3, 4, 4, 9, 9]


def test_an_append_inside_an_answer_is_answered_later_too(make: Callable[[Soon], Journal]) -> None:
    turns = Turns()
    journal = make(turns.soon)
    events: list[str] = []

    def first(outcome: Outcome) -> None:
        journal.append(0, 0, facts(1), lambda _: events.append("second answered"))
        events.append("first answered")

    journal.append(0, 0, facts(1), first)
    turns.run()
    assert events == ["first answered", "second answered"]


def test_the_facts_it_was_given_are_not_its_to_change(make: Callable[[Soon], Journal]) -> None:
    turns = Turns()
    journal = make(turns.soon)
    given = facts(4)
    kept = list(given)
    journal.append(0, 0, given, lambda _: None)
    turns.run()
    assert given == kept


def test_it_may_be_read_pruned_and_closed(make: Callable[[Soon], Journal]) -> None:
    turns = Turns()
    journal = make(turns.soon)
    assert list(journal.read(0, 0)) == []
    assert list(journal.live(0)) == []
    journal.append(0, 0, facts(3), lambda _: None)
    turns.run()
    journal.retain(0, 1)
    offsets = [row.offset for row in journal.read(0, 0)]
    assert offsets == sorted(offsets)
    journal.close()
