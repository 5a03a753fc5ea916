"""A delivery: its verbs on the wire, and what ends its lease."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.errors import LeaseLost
from tests.client.queue.test_subscription import subscribed
from tests.client.scripted_peer import peer, run


def test_the_other_verbs_say_what_they_mean():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=100)
            for seq in (1, 2, 3):
                line.deliver(seq)
            one, two, three = [await anext(subscription) for _ in range(3)]
            working = asyncio.ensure_future(one.nack(delay_ms=50, reason="busy"))
            frame = await line.read("nack")
            assert (frame["id"], frame["leaseId"], frame["delayMs"], frame["reason"]) == (
                "m1",
                "lease-1-1",
                50,
                "busy",
            )
            line.ok(frame)
            await working
            working = asyncio.ensure_future(two.release())
            line.ok(await line.read("release"))
            await working
            working = asyncio.ensure_future(three.extend(60_000))
            frame = await line.read("extend")
            assert frame["ms"] == 60_000
            line.ok(frame, id="m3", leaseExpiresAt=123)
            assert await working == 123
            working = asyncio.ensure_future(three.term("bad"))
            frame = await line.read("term")
            assert frame["reason"] == "bad"
            line.ok(frame)
            await working
            await client.close()

    run(go())


def test_an_expired_lease_is_lost_and_its_place_is_granted_again():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=1)
            line.deliver(1)
            delivery = await anext(subscription)
            line.say({"type": "expired", "id": "m1", "stream": "jobs", "subId": "s1", "leaseId": "lease-1-1"})
            assert (await line.read("grant"))["n"] == 1
            with pytest.raises(LeaseLost, match="m1"):
                await delivery.ack()
            await client.close()

    run(go())


def test_a_second_delivery_of_an_envelope_ends_the_first():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=10)
            line.deliver(1)
            first = await anext(subscription)
            line.deliver(1, attempt=2)
            second = await anext(subscription)
            assert second.attempt == 2 and first.is_lost
            with pytest.raises(LeaseLost):
                await first.ack()
            acking = asyncio.ensure_future(second.ack())
            assert (await line.read("ack"))["leaseId"] == "lease-1-2"
            acking.cancel()
            await client.close()

    run(go())
