"""Lease renewal: an unsettled delivery keeps its lease until the server rejects an extension."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import penstock
from penstock.core.errors import LeaseLost, PenstockError
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


@pytest.mark.parametrize("result", [{}, {"id": None}, None, [1], {"id": "m1", "leaseExpiresAt": "soon"}])
def test_an_answer_without_the_end_of_the_lease_raises_in_no_callback_and_renewal_goes_on(result, caplog):
    raised = []

    async def go():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=2, lease_ms=1000)
            line.deliver(1)
            delivery = await anext(subscription)
            before = delivery.lease_expires_at_ms
            frame = await line.read("extend")
            line.say({"type": "ok", "reqId": frame["reqId"], "result": result})
            line.ok(await line.read("extend"), id="m1", leaseExpiresAt=7)
            await until(lambda: delivery.lease_expires_at_ms == 7)
            assert before != 7 and not delivery.is_lost
            extending = asyncio.ensure_future(delivery.extend(60_000))
            while (frame := await line.read("extend"))["ms"] != 60_000:  # a renewal on a busy machine
                line.ok(frame, leaseExpiresAt=7)
            line.say({"type": "ok", "reqId": frame["reqId"], "result": result})
            with pytest.raises(PenstockError, match="does not say when the lease ends"):
                await extending
            assert delivery.lease_expires_at_ms == 7
            await client.close()

    run(go())
    assert not raised
    assert "does not say when the lease ends" in caplog.text


def test_a_delivery_whose_envelope_has_no_id_does_not_stop_the_renewal_of_others(caplog):
    raised = []

    async def go():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=2, lease_ms=1000)
            line.deliver(1, id=None)
            line.deliver(2)
            bad, good = await anext(subscription), await anext(subscription)
            for _ in range(2):
                frame = await line.read("extend")
                assert frame["id"] == good.id
                line.ok(frame, id="m2", leaseExpiresAt=1)
            with pytest.raises(msgspec.ValidationError):
                assert bad.id
            await client.close()

    run(go())
    assert not raised
    assert "its envelope has no id" in caplog.text


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
