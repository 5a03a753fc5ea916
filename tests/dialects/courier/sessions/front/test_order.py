"""Chunks of answers: in order, collected where several cells answer, and cut off behind a lost cell."""

from __future__ import annotations

import pytest

from penstock.core.limits import Limits
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.front.order import FrontAnswers
from tests.dialects.courier.talking import Broker


def opened(limits: Limits | None = None) -> tuple[FrontAnswers, list[bytes]]:
    broker = Broker(limits=limits) if limits else Broker()
    session = broker.control(ANONYMOUS).session
    session.out.clear()
    return FrontAnswers(broker.runtime, session), session.out


def test_answers_of_a_later_chunk_wait_for_the_mark_of_an_earlier_one() -> None:
    answers, out = opened()
    first, second = answers.begin(), answers.begin()
    first.waiting = second.waiting = 1
    answers.arrived(second, 2, b"b")
    answers.arrived(first, 1, b"a")
    answers.add(b"own")
    assert out == [b"a"]
    answers.marked(second)
    assert out == [b"a"]
    answers.marked(first)
    assert out == [b"a", b"b", b"own"]
    assert len(answers) == 0


def test_a_chunk_with_a_finish_is_one_answer() -> None:
    answers, out = opened()
    chunk = answers.begin(lambda parts: b"+".join(data for _, data in parts))
    chunk.waiting = 2
    answers.arrived(chunk, 1, b"a")
    answers.marked(chunk)
    answers.arrived(chunk, 2, b"b")
    assert out == []
    answers.marked(chunk)
    assert out == [b"a+b"]


@pytest.mark.parametrize("is_unordered", [False, True])
def test_a_finish_may_ask_another_cell_first(is_unordered: bool) -> None:
    answers, out = opened()
    answers.is_unordered = is_unordered
    asked: list[int] = []

    def finish(parts: list[tuple[int, bytes]]) -> bytes | None:
        if not asked:
            asked.append(1)
            chunk.waiting += 1
            return None
        return b"done"

    chunk = answers.begin(finish)
    chunk.waiting = 1
    answers.marked(chunk)
    assert (out, len(answers)) == ([], 1)
    answers.marked(chunk)
    assert (out, len(answers)) == ([b"done"], 0)


def test_behind_a_chunk_that_is_cut_nothing_is_answered() -> None:
    answers, out = opened()
    first, lost, last = answers.begin(), answers.begin(), answers.begin()
    for chunk in (first, lost, last):
        chunk.waiting = 1
    answers.arrived(lost, 2, b"half")
    answers.arrived(last, 1, b"never")
    answers.cut(lost)
    assert out == []
    answers.marked(first)
    assert out == [b"half"]
    assert len(answers) == 0
    answers.arrived(last, 1, b"late")
    answers.marked(last)
    assert out == [b"half"]


def test_what_waits_is_bounded_by_its_bytes() -> None:
    answers, _ = opened(Limits(outbox_hard_max=100))
    first, second = answers.begin(), answers.begin()
    first.waiting = second.waiting = 1
    answers.arrived(second, 1, b"x" * 101)
    assert answers.session.closing == (1008, "SlowConsumer")


def test_a_held_cell_stops_the_input() -> None:
    answers, _ = opened(Limits(answers_max=10))
    answers.held_legs = 1
    assert len(answers) > 10
