"""Unanswered requests: their numbers, their bounds, and the effect of a lost connection."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import Raw

from penstock.client.control import pending
from penstock.client.control.pending import FRAME_MAX, SENDS_MAX, PendingRequests
from penstock.core.errors import PenstockError, Refusal

LOST = PenstockError(Refusal("Unreachable", "lost"))


def run(work):
    async def go():
        loop = asyncio.get_running_loop()
        requests = PendingRequests(loop, lambda: PenstockError(Refusal("Timeout", "late")))

        def add(body=b'{"type":"ping"', *, repeat=False, timeout_s=30.0):
            future = loop.create_future()
            return requests.add(body, future, repeat=repeat, timeout_s=timeout_s)

        try:
            await work(requests, add)
        finally:
            requests.fail_all(LOST)

    asyncio.run(go())


def test_a_request_gets_a_number_and_its_own_result():
    async def go(requests, add):
        first, second = add(), add()
        assert first.line == b'{"type":"ping","reqId":"1"}\n'
        assert requests.answered("2", Raw(b"{}"))
        assert second.future.result() == Raw(b"{}")
        assert not first.future.done()
        first.future.cancel()

    run(go)


def test_an_unknown_number_is_reported():
    async def go(requests, add):
        assert not requests.answered("7", Raw(b"{}"))
        assert not requests.refused("7", LOST)

    run(go)


def test_a_request_that_is_too_large_fails_at_once():
    async def go(requests, add):
        with pytest.raises(PenstockError) as caught:
            await add(b"x" * FRAME_MAX).future
        assert caught.value.code == "TooLarge"
        assert requests.waiting() == []

    run(go)


def test_a_lost_connection_fails_what_was_sent_and_may_not_be_repeated():
    async def go(requests, add):
        sent, repeated, unsent, worn = add(), add(repeat=True), add(), add(repeat=True)
        sent.sends = repeated.sends = 1
        worn.sends = SENDS_MAX
        requests.disconnected(LOST)
        assert requests.waiting() == [repeated, unsent]
        for failed in (sent, worn):
            assert failed.future.exception() is LOST
        for kept in (repeated, unsent):
            kept.future.cancel()

    run(go)


def test_a_timed_out_request_fails_and_frees_its_place(monkeypatch):
    monkeypatch.setattr(pending, "SWEEP_S", 0.001)

    async def go(requests, add):
        with pytest.raises(PenstockError, match="late"):
            await add(timeout_s=0.0).future
        assert requests.waiting() == []

    run(go)


def test_callers_wait_at_the_bound_and_go_on_in_order(monkeypatch):
    monkeypatch.setattr(pending, "REQUESTS_MAX", 1)

    async def go(requests, add):
        first = add()
        order = []

        async def caller(name):
            await requests.room()
            order.append(name)
            add().future.cancel()

        callers = [asyncio.ensure_future(caller(name)) for name in "ab"]
        await asyncio.sleep(0)
        assert requests.is_full()
        requests.answered("1", Raw(b"{}"))
        await callers[0]
        assert order == ["a"]
        requests.answered("2", Raw(b"{}"))
        await callers[1]
        assert order == ["a", "b"]
        assert first.future.done()

    run(go)
