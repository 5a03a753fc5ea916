"""Batches of sends: frames of one turn, order, bounds, and errors at the end of the block."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock.client.queue import batch
from tests.client.control.test_connection import linked
from tests.client.scripted_peer import peer, run


def job(number):
    return {"id": f"m{number}", "ts": "2026-01-01T00:00:00Z", "type": "t", "payload": number}


@pytest.mark.promise(
    "SDK and command line",
    "a `client.batch()` sends without waiting for each answer, and its end waits until all is durable",
)
def test_envelopes_of_one_stream_travel_together_and_the_block_waits_for_all():
    async def go():
        async with peer() as server:
            client, line = await linked(server)

            async def use():
                async with client.batch() as sends:
                    for number in range(3):
                        await sends.enqueue("jobs", job(number))
                    await sends.enqueue("other", job(9))
                    await sends.send("sam", "hello")

            using = asyncio.ensure_future(use())
            one, two, three = [await line.read() for _ in range(3)]
            assert [env["id"] for env in one["env"]] == ["m0", "m1", "m2"]
            assert [env["id"] for env in two["env"]] == ["m9"] and two["to"] == "other"
            assert (three["type"], three["to"]) == ("send", "sam")
            line.ok(one, ids=["m0", "m1", "m2"], seqs=[1, 2, 3])
            line.ok(two, ids=["m9"], seqs=[1])
            assert not using.done()
            line.ok(three, id="x", seq=1, to="agents/sam/inbox")
            await using
            await client.close()

    run(go())


def test_an_error_is_raised_by_the_end_of_the_block_but_not_over_another_one():
    async def go():
        async with peer() as server:
            client, line = await linked(server)

            async def use(error=None):
                async with client.batch() as sends:
                    await sends.enqueue("jobs", job(1))
                    if error is not None:
                        raise error

            for given, wanted in ((None, penstock.StreamFull), (ValueError("mine"), ValueError)):
                using = asyncio.ensure_future(use(given))
                line.refuse(await line.read("enqueue"), "StreamFull")
                with pytest.raises(wanted):
                    await using
            with pytest.raises(penstock.InvalidRequest):
                async with client.batch() as sends:
                    await sends.enqueue("", job(1))
            await client.close()

    run(go())


def test_frames_and_requests_under_way_are_bounded(monkeypatch):
    monkeypatch.setattr(batch, "BATCH_MAX", 2)
    monkeypatch.setattr(batch, "BATCH_BYTES", 500)
    monkeypatch.setattr(batch, "UNDER_WAY_MAX", 2)

    async def go():
        async with peer() as server:
            client, line = await linked(server)
            handed = []

            async def use():
                async with client.batch() as sends:
                    for number in range(5):
                        await sends.enqueue("jobs", job(number))
                        handed.append(number)
                    await sends.enqueue("jobs", job("x" * 600))

            using = asyncio.ensure_future(use())
            sizes, first = [], [await line.read(), await line.read()]
            assert len(handed) < 5, "the third frame waits for an answer"
            for frame in first:
                sizes.append(len(frame["env"]))
                line.ok(frame, ids=[], seqs=[])
            while sum(sizes) < 6:
                frame = await line.read("enqueue")
                sizes.append(len(frame["env"]))
                line.ok(frame, ids=[], seqs=[])
            await using
            assert sizes == [2, 2, 1, 1]
            await client.close()

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "a `client.batch()` sends without waiting for each answer, and its end waits until all is durable",
)
def test_a_real_server_stores_a_batch_in_order_also_without_async(server, stream):
    with penstock.connect_sync(server.control) as client:
        with client.batch() as sends:
            for number in range(300):
                sends.enqueue(stream, job(f"{stream}-{number}"))
        assert client.stats(stream).depth == 300
        first = [row.payload for row in client.peek(stream, max=100)]
        assert first == [f"{stream}-{number}" for number in range(100)]
