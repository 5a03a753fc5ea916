"""Settles without a confirmation and a real server that is killed: nothing is lost, and what was confirmed does not return."""

from __future__ import annotations

import asyncio

import pytest

import penstock

COUNT = 300
STREAM = "jobs"


@pytest.mark.promise(
    "Delivery", "after a crash between an ack and its flush the envelope is delivered again; a confirmed ack is final"
)
def test_a_kill_between_ack_and_flush_loses_no_envelope_and_returns_no_confirmed_one(start_server):
    server = start_server()

    async def work() -> tuple[set[str], set[str], set[str]]:
        async with penstock.connect(server.control, reconnect=False) as client:
            await client.enqueue(STREAM, [{"id": f"m{n}", "type": "t", "payload": n} for n in range(COUNT)])
            jobs = await client.subscribe(STREAM, credit=COUNT).open()
            taken = [await anext(jobs) for _ in range(COUNT)]
            for delivery in taken[:100]:
                await delivery.ack()
            await jobs.flush()
            for delivery in taken[100:200]:
                await delivery.ack()
                await asyncio.sleep(0)  # each on its way, unconfirmed
            for delivery in taken[200:250]:
                await delivery.ack()
            server.kill()  # before the turn in which these leave
            with pytest.raises(penstock.LeaseLost):
                await jobs.flush()
            assert jobs.lost >= 50 and all(delivery.is_lost for delivery in taken[200:])
            settled = {delivery.id for delivery in taken if delivery.is_settled}
            return settled, {d.id for d in taken[:200]}, {d.id for d in taken[200:]}

    settled, sent, never_sent = asyncio.run(work())
    with penstock.connect_sync(start_server().control) as client:
        again = {delivery.id for delivery in client.pull(STREAM, max=COUNT, renew=False)}
    assert len(settled) >= 100
    assert never_sent <= again, "an ack that did not arrive settles nothing"
    assert not settled & again, "a confirmed ack is final"
    assert again | sent == {f"m{n}" for n in range(COUNT)}, "every envelope was settled or came again"
