"""Acks: single, grouped by turn, as an array, and one by one after a rejected array."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.errors import LeaseLost, PenstockError
from tests.client.queue.test_subscription import subscribed
from tests.client.scripted_peer import peer, run


def test_a_single_ack_names_its_lease_and_grants_again():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=1)
            line.deliver(1)
            delivery = await anext(subscription)
            acking = asyncio.ensure_future(delivery.ack())
            ack, grant = await line.read("ack"), await line.read("grant")
            assert (ack["id"], ack["leaseId"], ack["subId"]) == ("m1", "lease-1-1", "s1")
            assert grant["n"] == 1
            assert not acking.done()
            line.ok(ack, id="m1")
            await acking
            assert delivery.is_settled
            with pytest.raises(PenstockError, match="settled before"):
                await delivery.ack()
            await client.close()

    run(go())


def test_acks_of_one_turn_travel_together_and_credit_comes_back_at_half_the_window():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=4)
            for seq in (1, 2, 3, 4):
                line.deliver(seq)
            deliveries = [await anext(subscription) for _ in range(4)]
            acking = asyncio.gather(*(delivery.ack() for delivery in deliveries))
            ack, grant = await line.read("ack"), await line.read("grant")
            assert ack["id"] == ["m1", "m2", "m3", "m4"] and grant["n"] == 4
            line.ok(ack, id=ack["id"])
            await acking
            line.deliver(5)
            fifth = await anext(subscription)
            acking = asyncio.ensure_future(fifth.ack())
            line.ok(await line.read("ack"))
            await acking
            asking = asyncio.ensure_future(client.ping())
            line.ok(await line.read("ping"))  # and not a grant: 3 of 4 are still outstanding
            await asking
            await client.close()

    run(go())


def test_batches_arrive_as_arrays_and_are_acked_as_one():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=8, batch=4)
            env = [{"id": f"m{n}", "type": "t", "payload": n} for n in (1, 2, 3)]
            line.say(
                {
                    "type": "deliver",
                    "env": env,
                    "stream": "jobs",
                    "subId": "s1",
                    "seq": [1, 2, 3],
                    "attempt": [1, 1, 2],
                    "leaseId": ["a", "b", "c"],
                    "leaseExpiresAt": 0,
                }
            )
            batch = await subscription.next_batch()
            assert [(d.id, d.seq, d.attempt, d.lease_id) for d in batch] == [
                ("m1", 1, 1, "a"),
                ("m2", 2, 1, "b"),
                ("m3", 3, 2, "c"),
            ]
            acking = asyncio.ensure_future(subscription.ack(batch))
            line.ok(await line.read("ack"))
            await acking
            assert all(delivery.is_settled for delivery in batch)
            await client.close()

    run(go())


def test_a_refused_array_is_asked_for_one_by_one():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=100)
            for seq in (1, 2, 3):
                line.deliver(seq)
            deliveries = [await anext(subscription) for _ in range(3)]
            acking = asyncio.ensure_future(subscription.ack(deliveries))
            line.refuse(await line.read("ack"), "LeaseExpired")
            line.refuse(await line.read("ack"), "AlreadyAcked")
            line.refuse(await line.read("ack"), "LeaseExpired")
            line.ok(await line.read("ack"))
            with pytest.raises(LeaseLost):
                await acking
            assert [d._state.value for d in deliveries] == ["settled", "lost", "settled"]
            await client.close()

    run(go())
