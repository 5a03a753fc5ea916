"""Lease renewal: an unsettled delivery keeps its lease until the server rejects an extension."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock.core.errors import LeaseLost
from tests.client.queue.test_client import message
from tests.client.queue.test_subscription import subscribed
from tests.client.scripted_peer import peer, run, until


def test_an_unsettled_delivery_is_extended_until_it_is_settled():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=2, lease_ms=1000)
            line.deliver(1)
            delivery = await anext(subscription)
            for _ in range(2):
                frame = await line.read("extend")
                assert (frame["id"], frame["leaseId"], frame["ms"]) == ("m1", "lease-1-1", 1000)
                line.ok(frame, id="m1", leaseExpiresAt=1)
            acking = asyncio.ensure_future(delivery.ack())
            line.ok(await line.read("ack"))
            await acking
            assert not subscription._held
            await client.close()

    run(go())


def test_a_refused_extension_loses_the_lease_before_the_ack():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=2, lease_ms=1000)
            line.deliver(1)
            delivery = await anext(subscription)
            line.refuse(await line.read("extend"), "LeaseExpired")
            await until(lambda: delivery.is_lost)
            with pytest.raises(LeaseLost):
                await delivery.ack()
            await client.close()

    run(go())


@pytest.mark.promise("SDK and command line", "`penstock.connect` handles credit, reconnection and lease renewal")
def test_a_held_delivery_outlives_its_lease_many_times(server, stream):
    async def go():
        async with penstock.connect(server.control) as client:
            await client.enqueue(stream, message(1))
            async with client.subscribe(stream, credit=1, lease_ms=1000) as deliveries:
                delivery = await anext(deliveries)
                assert await client.pull(stream, wait_ms=2500) == []
                await delivery.ack()

    run(go())
