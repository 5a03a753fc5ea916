"""Windows, leases and settling of a subscription, at the level of frames, including faults."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client import LeaseLost
from penstock.core.errors import PenstockError
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
            assert [d.state.value for d in deliveries] == ["settled", "lost", "settled"]
            await client.close()

    run(go())


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
            assert not list(subscription.held())
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


def test_after_a_cut_the_subscription_goes_on_and_old_deliveries_are_lost():
    async def go():
        async with peer() as server:
            client, line, subscription, before = await subscribed(server, credit=3, lease_ms=5000)
            line.deliver(1)
            line.deliver(2)
            held = await anext(subscription)
            settling = asyncio.ensure_future((await anext(subscription)).ack())
            await line.read("ack")
            line.raw(b'{"type":"deliver","env":{"id":"m3"')
            await line.cut()
            line = await server.accept()
            after = await line.agree()
            assert {**after, "reqId": 0} == {**before, "reqId": 0}
            with pytest.raises(LeaseLost, match="lost before"):
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


def test_a_pulled_lease_survives_a_cut_and_its_ack_is_repeated():
    async def go():
        async with peer() as server:
            client, line = await linked(server)
            pulling = asyncio.ensure_future(client.pull("jobs", max=1, lease_ms=60_000))
            frame = await line.read("pull")
            row = {
                "deliver": {"id": "m1", "type": "t", "payload": 1},
                "stream": "jobs",
                "seq": 1,
                "attempt": 1,
                "leaseId": "L",
                "leaseExpiresAt": 0,
            }
            line.ok(frame, deliveries=[row])
            [delivery] = await pulling
            acking = asyncio.ensure_future(delivery.ack())
            first = await line.read("settle")
            assert (first["id"], first["op"], first["leaseId"]) == ("m1", "ack", "L")
            await line.cut()
            line = await server.accept()
            line.ok(await line.read("settle"), id="m1", op="ack", settled=True)
            await acking
            assert delivery.is_settled
            await client.close()

    run(go())
