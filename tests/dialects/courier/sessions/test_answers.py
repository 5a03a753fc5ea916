"""Answers of a connection: in request order, and not before what they say is durable."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.answers import Answers
from tests.dialects.courier.talking import Broker

FULL = Refusal("JournalUnavailable", "the disk is full")


def render(refusal: Refusal | None) -> bytes:
    return b"durable" if refusal is None else refusal.code.encode()


def opened() -> tuple[Broker, Answers, list[Any]]:
    broker = Broker()
    session = broker.control(ANONYMOUS).session
    answers = Answers(broker.runtime, session)
    session.out.clear()
    return broker, answers, session.out


def test_an_answer_goes_at_once_when_none_waits() -> None:
    _, answers, out = opened()
    answers.add(b"a")
    assert (out, len(answers)) == ([b"a"], 0)


def test_an_answer_waits_for_its_commit_and_later_ones_wait_behind_it() -> None:
    broker, answers, out = opened()
    gate = broker.runtime.finished + 1
    answers.after(gate, render)
    answers.add(b"b")
    assert (out, len(answers)) == ([], 2)
    assert not answers.finished(gate, None, None)
    assert out == [b"durable", b"b"]


def test_an_answer_whose_commit_is_finished_already_goes_at_once() -> None:
    broker, answers, out = opened()
    answers.after(broker.runtime.finished, render)
    assert out == [b"durable"]


def test_a_rejected_commit_turns_its_answers_into_the_refusal() -> None:
    broker, answers, out = opened()
    gate = broker.runtime.finished + 1
    answers.after(gate, render, fresh=True)
    answers.after(gate, render)
    answers.after(gate + 1, render)
    assert answers.finished(gate, FULL, None)
    assert out == [b"JournalUnavailable", b"durable"], "only new records were rejected"
    assert not answers.finished(gate + 1, FULL, FULL)
    assert out[2:] == [b"JournalUnavailable"]


def test_a_slot_keeps_its_place_until_it_is_filled() -> None:
    _, answers, out = opened()
    first, second = answers.slot(), answers.slot()
    answers.add(b"c")
    answers.fill(second, b"b")
    assert out == []
    answers.fill(first, b"a")
    assert out == [b"a", b"b", b"c"]


def test_a_slot_that_is_filled_with_nothing_is_left_out() -> None:
    _, answers, out = opened()
    slot = answers.slot()
    answers.add(b"b")
    answers.fill(slot, b"")
    assert (out, len(answers)) == ([b"b"], 0)
