"""The types of the SDK as a type checker sees them; this file is checked with the package and never run."""

from __future__ import annotations

from typing import Any, assert_type

import msgspec

import penstock
import penstock.testing


async def queue() -> None:
    async with penstock.connect("tcp://localhost:9787", agent="sam") as client:
        assert_type(client, penstock.Client)
        assert_type(await client.send("jen", {"text": "hello"}), penstock.Sent)
        assert_type(await client.enqueue("jobs", [{"type": "job", "payload": 1}]), penstock.Receipt)
        answer = await client.ask("jen", "how many?", timeout=5)
        assert_type(answer, penstock.Delivery)
        assert_type(answer.payload, Any)
        assert_type(await client.pull("jobs", max=10), list[penstock.Delivery])
        async with client.inbox() as inbox:
            assert_type(inbox, penstock.Subscription)
            async for delivery in inbox:
                assert_type(delivery, penstock.Delivery)
                assert_type(delivery.sender, str | None)
                assert_type(await delivery.extend(), int)
                assert_type(await delivery.reply("seven"), penstock.Sent)
            async for batch in inbox.batches():
                assert_type(batch, list[penstock.Delivery])
        await client.subscribe("jobs").work(handle, concurrency=4)
        async with client.inbox(type=Job) as jobs:
            assert_type(jobs, penstock.Subscription[Job])
            async for job in jobs:
                assert_type(job.payload.n, int)
        [pulled] = await client.pull("jobs", type=Job)
        assert_type(pulled.payload, Job)
        await client.subscribe("jobs", type=Job).work(handle_job)
        await client.subscribe("jobs", type=str).work(handle_job)  # type: ignore[arg-type]
        assert_type(await client.stats("jobs"), penstock.Stats)
        assert_type(await client.where("id"), list[penstock.Place])
        assert_type(await client.peek("jobs"), list[penstock.PeekedRow])
        assert_type((await client.explain("jobs")).reasons[0].code, str)
        async for change in client.live("inflight"):
            assert_type(change, penstock.Change)
    assert_type(await penstock.connect(), penstock.Client)


class Job(msgspec.Struct):
    n: int


async def handle_job(delivery: penstock.Delivery[Job]) -> None:
    assert_type(delivery.payload.n, int)


async def handle(delivery: penstock.Delivery) -> None:
    try:
        await delivery.ack()
    except penstock.LeaseLost as error:
        assert_type(error.code, str)


def queue_without_async() -> None:
    with penstock.connect_sync(agent="sam") as client:
        assert_type(client, penstock.SyncClient)
        assert_type(client.send("jen", {"text": "hello"}), penstock.Sent)
        assert_type(client.ask("jen", "how many?"), penstock.SyncDelivery)
        assert_type(client.pull("jobs"), list[penstock.SyncDelivery])
        assert_type(client.subscribe("jobs", credit=5), penstock.SyncSubscription)
        assert_type(client.live("inflight"), penstock.SyncLiveView)
        assert_type(client.agent, str | None)
        assert_type(client.stats("jobs").depth, int)
        assert_type(client.drop("id").dropped, int)
        client.inbox(type=Job).close()
        client.pull("jobs", most=3)  # type: ignore[call-arg]
        client.ask(7, "how many?")  # type: ignore[arg-type]
        with client.inbox() as inbox:
            assert_type(inbox, penstock.SyncSubscription)
            for delivery in inbox:
                assert_type(delivery, penstock.SyncDelivery)
                assert_type(delivery.attempt, int)
                assert_type(delivery.extend(), int)
        client.subscribe("jobs").work(handle_without_async, concurrency=4)
        for change in client.live("inflight"):
            assert_type(change, penstock.Change)


def handle_without_async(delivery: penstock.SyncDelivery) -> None:
    delivery.check()
    delivery.ack()


async def space() -> None:
    async with penstock.Space(space="lab", participant="sam") as place:
        assert_type(place, penstock.Space)
        assert_type(await place.chat("hello"), str)
        assert_type(await place.open_stream("jen"), penstock.SpaceStream)
        assert_type(await place.invite("kim"), penstock.Invitation)
        async for envelope in place.envelopes("chat"):
            assert_type(envelope, penstock.SpaceEnvelope)
        async for frame in place.frames():
            assert_type(frame, penstock.Frame)


def space_without_async() -> None:
    with penstock.SyncSpace(space="lab", participant="sam") as place:
        assert_type(place, penstock.SyncSpace)
        assert_type(place.chat("hello"), str)
        assert_type(place.open_stream("jen"), penstock.SyncSpaceStream)
        assert_type(place.frames(overflow="wait"), penstock.SyncFeed[penstock.Frame])
        for envelope in place.envelopes("chat"):
            assert_type(envelope, penstock.SpaceEnvelope)
    penstock.SyncSpace(space="lab")  # type: ignore[call-arg]
    penstock.connect_sync(agent=7)  # type: ignore[arg-type]


async def tokens(relay: penstock.LocalRelay) -> None:
    offer = penstock.StreamOffer()
    answer = penstock.answer_offer(offer.text, relay.pub, signer=relay.signer)
    assert_type(answer, penstock.Answer)
    agreed = offer.accept(answer.text, signer=relay.signer.public)
    assert_type(agreed, penstock.Agreement)
    async with penstock.TokenPublisher(relay.push, agreed.keys, signer=relay.signer) as publisher:
        assert_type(publisher, penstock.TokenPublisher)
    async with penstock.TokenStream(agreed.endpoint, agreed.keys) as stream:
        assert_type([token async for token in stream], list[str])
    with penstock.SyncTokenStream(agreed.endpoint, agreed.keys) as reading:
        assert_type(list(reading), list[str])
        assert_type(reading.cancellation(), bytes)
    penstock.SyncTokenStream(agreed.endpoint)  # type: ignore[call-arg]


def in_a_test() -> None:
    with penstock.testing.serve(spaces={"lab": ["sam"]}) as server:
        assert_type(server, penstock.testing.MemoryServer)
        assert_type(server.connect_sync(), penstock.SyncClient)
        assert_type(server.space("lab", "sam"), penstock.Space)
