"""Windows, leases and settling of a subscription, at the level of frames, including faults."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.errors import LeaseLost, PenstockError
from tests.client.control.test_connection import linked
from tests.client.scripted_peer import peer, run, until


async def subscribed(server, **options):
    client, line = await linked(server)
    subscription = client.subscribe("jobs", **options)
    _, frame = await asyncio.gather(subscription.open(), line.agree())
    return client, line, subscription, frame


def test_subscribe_asks_for_the_window_and_iterating_opens_it():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            taking = asyncio.ensure_future(anext(client.subscribe("jobs", credit=5, lease_ms=9000, batch=4)))
            frame = await line.agree()
            assert (frame["stream"], frame["credit"], frame["leaseMs"], frame["batch"]) == (
                "jobs",
                5,
                9000,
                4,
            )
            line.deliver(1)
            delivery = await taking
            assert (delivery.id, delivery.seq, delivery.attempt) == ("m1", 1, 1)
            assert (delivery.lease_id, delivery.stream, delivery.payload) == ("lease-1-1", "jobs", 1)
            assert delivery.body.startswith(b'{"id":"m1"')
            await client.close()

    run(go())


def test_after_a_cut_the_subscription_goes_on_and_old_deliveries_are_lost():
    async def go():
        async with peer() as server:
            client, line, subscription, before = await subscribed(server, credit=3, lease_ms=5000)
            line.deliver(1)
            line.deliver(2)
            held = await anext(subscription)
            settling = asyncio.ensure_future((await anext(subscription)).ack(confirm=True))
            await line.read("ack")
            line.raw(b'{"type":"deliver","env":{"id":"m3"')
            await line.cut()
            line = await server.accept()
            after = await line.agree()
            assert {**after, "reqId": 0} == {**before, "reqId": 0}
            with pytest.raises(LeaseLost, match="connection that held the lease was lost"):
                await settling
            with pytest.raises(LeaseLost):
                await held.ack()
            line.deliver(1, attempt=2)
            again = await anext(subscription)
            assert again.attempt == 2
            await client.close()

    run(go())


def test_a_refused_subscription_raises_from_the_iteration():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            taking = asyncio.ensure_future(anext(client.subscribe("jobs")))
            line.refuse(await line.read("subscribe"), "Forbidden")
            with pytest.raises(PenstockError) as caught:
                await taking
            assert caught.value.code == "Forbidden"
            await client.close()

    run(go())


def test_an_evicted_subscription_starts_anew():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server)
            line.say({"type": "error", "reqId": "req", "code": "SlowConsumer", "detail": "x", "ref": "s1"})
            await line.agree()
            line.deliver(1)
            assert (await anext(subscription)).seq == 1
            await client.close()

    run(go())


def test_closing_unsubscribes_and_ends_the_iteration():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server)
            line.deliver(1)
            delivery = await anext(subscription)
            waiting = asyncio.ensure_future(subscription.next_batch())
            closing = asyncio.ensure_future(subscription.close())
            frame = await line.read("unsubscribe")
            assert frame["subId"] == "s1"
            line.ok(frame, subId="s1")
            await closing
            assert await waiting == []
            with pytest.raises(LeaseLost):
                await delivery.ack()
            await client.close()

    run(go())


def test_a_cancelled_taker_leaves_the_delivery_to_the_next():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server)
            takers = [asyncio.ensure_future(anext(subscription)) for _ in range(2)]
            await until(lambda: len(subscription._takers) == 2)
            subscription._wake(1)
            takers[0].cancel()
            line.deliver(1)
            assert (await takers[1]).seq == 1
            await client.close()

    run(go())


@pytest.mark.parametrize("credit", [0, -1, 100_001])
def test_credit_that_no_server_takes_is_refused_here(credit):
    async def go():
        async with peer() as server:
            client, _ = await linked(server)
            with pytest.raises(PenstockError) as caught:
                client.subscribe("jobs", credit=credit)
            assert caught.value.code == "InvalidCredit"
            await client.close()

    run(go())
