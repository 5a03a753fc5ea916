"""Pulled leases: they survive a lost connection, and their settles are repeated."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock.core.errors import LeaseLost
from tests.client.control.test_connection import linked
from tests.client.queue.test_client import message
from tests.client.scripted_peer import peer, run

ROW = {
    "deliver": {"id": "m1", "type": "t", "payload": 1},
    "stream": "jobs",
    "seq": 1,
    "attempt": 1,
    "leaseId": "L",
    "leaseExpiresAt": 0,
}


def test_a_pulled_lease_survives_a_cut_and_its_ack_is_repeated():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            pulling = asyncio.ensure_future(client.pull("jobs", max=1, lease_ms=60_000))
            frame = await line.read("pull")
            line.ok(frame, deliveries=[ROW])
            [delivery] = await pulling
            acking = asyncio.ensure_future(delivery.ack(confirm=True))
            first = await line.read("settle")
            assert (first["id"], first["op"], first["leaseId"]) == ("m1", "ack", "L")
            await line.cut()
            line = await server.accept()
            line.ok(await line.read("settle"), id="m1", op="ack", settled=True)
            await acking
            assert delivery.is_settled
            await client.close()

    run(go())


def test_a_lease_that_was_not_kept_is_lost_to_the_next_taker(server, stream):
    async def go():
        async with penstock.connect(server.control) as client:
            await client.enqueue(stream, message(1))
            [first] = await client.pull(stream, lease_ms=1000, renew=False)
            [second] = await client.pull(stream, wait_ms=5000)
            assert second.attempt == 2
            with pytest.raises(LeaseLost):
                await first.ack(confirm=True)
            await second.ack()

    run(go())


def test_settle_by_id_from_another_client(server, stream):
    async def go():
        async with penstock.connect(server.control) as taker:
            await taker.enqueue(stream, message(1))
            [delivery] = await taker.pull(stream, renew=False)
        async with penstock.connect(server.control) as other:
            settled = await other.settle(delivery.id, "extend", lease_id=delivery.lease_id, ms=30_000)
            assert settled.lease_expires_at
            assert (await other.settle(delivery.id, lease_id=delivery.lease_id)).settled

    run(go())


@pytest.mark.parametrize("backoff", [False, True])
def test_a_nack_by_id_backs_off_when_it_should(server, stream, backoff):
    with penstock.connect_sync(server.control) as client:
        client.enqueue(stream, message(1))
        [delivery] = client.pull(stream, renew=False)
        client.settle(delivery.id, "nack", lease_id=delivery.lease_id, backoff=backoff)
        found = client.stats(stream)
        assert (found.depth, found.delayed) == ((0, 1) if backoff else (1, 0))


def test_a_renewal_whose_answer_is_cancelled_changes_nothing():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            pulling = asyncio.ensure_future(client.pull("jobs", max=1, lease_ms=60_000))
            line.ok(await line.read("pull"), deliveries=[ROW | {"leaseExpiresAt": 5}])
            [delivery] = await pulling
            answer = asyncio.get_running_loop().create_future()
            answer.cancel()
            client._pulled._renewed(delivery, answer)
            assert (delivery.lease_expires_at_ms, delivery.is_lost) == (5, False)
            await client.close()

    run(go())
