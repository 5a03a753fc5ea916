"""Reads of the journal on threads of their own: the loop goes on, and no more wait than the bound allows."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal
from penstock.journal.reader import JournalError
from penstock.journal.segments import DamageError
from penstock.server.http.journal_routes import THREADS, WAITING_MAX, History, permit


def test_the_loop_goes_on_while_files_are_read_and_only_so_many_wait():
    async def go():
        history, gate = History(None), threading.Event()
        answers: list[object] = []
        all_there = asyncio.Event()

        def work():
            gate.wait()
            return {"n": 1}

        def done(answer):
            answers.append(answer)
            if len(answers) == THREADS + WAITING_MAX + 1:
                all_there.set()

        for _ in range(THREADS + WAITING_MAX):
            assert history._read(work, done) is not None
        assert history._read(work, done) is None
        (refused,) = answers
        assert isinstance(refused, Refusal) and refused.code == "RateLimited"
        await asyncio.sleep(0)  # the loop turns, though every thread is stuck
        gate.set()
        async with asyncio.timeout(10):
            await all_there.wait()
        assert answers[1:] == [{"n": 1}] * (THREADS + WAITING_MAX)
        again: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        history._read(lambda: {"n": 2}, again.set_result)
        assert await again == {"n": 2}

    asyncio.run(go())


def test_a_read_that_nobody_waits_for_is_given_up_and_makes_room():
    async def go():
        history, gate = History(None), threading.Event()
        answers: list[object] = []
        cancels = [history._read(gate.wait, answers.append) for _ in range(THREADS + WAITING_MAX)]
        for cancel in cancels:
            cancel()
        gate.set()
        later: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        history._read(lambda: {"n": 1}, later.set_result)
        assert await later == {"n": 1} and answers == []

    asyncio.run(go())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DamageError("log-1.seg", 7, "it is broken"), "JournalDamaged"),
        (JournalError("rows 0 to 4 are no longer kept"), "RangeGone"),
        (ValueError("a bug"), "Internal"),
    ],
    ids=["damage", "gone", "bug"],
)
def test_a_read_that_fails_is_a_refusal(error, code):
    async def go():
        def work():
            raise error

        later: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        History(None)._read(work, later.set_result)
        refusal = await later
        assert isinstance(refusal, Refusal) and refusal.code == code

    asyncio.run(go())


def test_only_administrators_read_the_journal():
    assert permit(OPERATOR) is None
    anonymous, plain = permit(ANONYMOUS), permit(Principal("plain"))
    assert anonymous is not None and anonymous.code == "Unauthorized"
    assert plain is not None and plain.code == "Forbidden"
