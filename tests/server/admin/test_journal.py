"""Journal reads on their own threads: the loop is not blocked, and the number of waiting reads is bounded."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal
from penstock.journal.reader import JournalError
from penstock.journal.segments import DamageError
from penstock.server.admin.journal import THREADS, WAITING_MAX, JournalReads, permit


def test_the_loop_goes_on_while_files_are_read_and_only_so_many_wait():
    async def go():
        reads, gate = JournalReads(None), threading.Event()

        def work():
            gate.wait()
            return {"n": 1}

        waiting = [asyncio.ensure_future(reads._read(work)) for _ in range(THREADS + WAITING_MAX)]
        await asyncio.sleep(0)  # the loop turns, though every thread is stuck
        refused = await reads._read(work)
        assert isinstance(refused, Refusal) and refused.code == "RateLimited"
        gate.set()
        async with asyncio.timeout(10):
            assert await asyncio.gather(*waiting) == [{"n": 1}] * (THREADS + WAITING_MAX)
        assert await reads._read(lambda: {"n": 2}) == {"n": 2}

    asyncio.run(go())


def test_a_read_whose_client_is_gone_is_cancelled_and_makes_room():
    async def go():
        reads, gate = JournalReads(None), threading.Event()
        waiting = [asyncio.ensure_future(reads._read(gate.wait)) for _ in range(THREADS + WAITING_MAX)]
        await asyncio.sleep(0)
        for read in waiting:
            read.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        gate.set()
        assert await reads._read(lambda: {"n": 1}) == {"n": 1}
        assert all(read.cancelled() for read in waiting)

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

        refusal = await JournalReads(None)._read(work)
        assert isinstance(refusal, Refusal) and refusal.code == code

    asyncio.run(go())


def test_only_administrators_read_the_journal():
    assert permit(OPERATOR, "it") is None
    anonymous, plain = permit(ANONYMOUS, "it"), permit(Principal("plain"), "it")
    assert anonymous is not None and anonymous.code == "Unauthorized"
    assert plain is not None and plain.code == "Forbidden"
