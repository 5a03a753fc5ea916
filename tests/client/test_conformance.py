"""The SDK against both servers: the process of `penstock up`, and the one inside a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import penstock
from penstock.core.errors import LeaseLost, PenstockError
from penstock.testing.server import token_of
from tests.client.cable import cable
from tests.client.scripted_peer import run, until
from tests.server_process import ServerProcess

PEOPLE = ("ann", "bob", "cat")
CONFIG = f"""\
streams: {{maxDeliveries: 2}}
spaces:
  - space: {{id: lab}}
    participants: {{{", ".join(f'{name}: {{tokens: [{token_of("lab", name)}], capabilities: [{{kind: "*"}}]}}' for name in PEOPLE)}}}
"""


class Place(NamedTuple):
    """A server, whichever it is."""

    url: str
    http: str
    relay: penstock.LocalRelay

    def space(self, name: str, http: str | None = None) -> penstock.Space:
        return penstock.Space(http or self.http, space="lab", participant=name, token=token_of("lab", name))


@pytest.fixture(scope="module", params=["process", "memory"])
def place(request, tmp_path_factory) -> Iterator[Place]:
    if request.param == "memory":
        config = {"streams": {"maxDeliveries": 2}}
        with penstock.testing.serve(config, spaces={"lab": PEOPLE}, relay=True) as server:
            yield Place(server.url, server.http, server.relay)
        return
    process = ServerProcess(tmp_path_factory.mktemp("up"), "--relay", config=CONFIG)
    try:
        yield Place(process.control, process.http, penstock.local_relay(process.data))
    finally:
        process.kill()


@pytest.fixture
def name(stream) -> str:
    """An agent that no other test uses."""
    return stream.replace("/", "-")


def job(number: int) -> dict[str, object]:
    return {"id": f"job-{number}", "type": "job", "payload": number}


@pytest.mark.parametrize("door", ["url", "http"])
def test_what_is_sent_is_in_the_inbox_with_its_sender(place, name, door):
    async def go():
        url = getattr(place, door)
        async with penstock.connect(url, agent="sam") as sam, penstock.connect(url, agent=name) as jen:
            sent = await sam.send(name, {"text": "hello"}, type="note")
            async with jen.inbox() as inbox:
                note = await anext(inbox)
                assert (note.id, note.type, note.sender, note.payload) == (
                    sent.id,
                    "note",
                    "sam",
                    {"text": "hello"},
                )
                await note.ack()
            assert (await jen.stats(note.stream)).depth == 0

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "`ask` gets its answer across a lost connection and a closed inbox, or raises an error with a hint",
)
def test_a_question_is_answered_even_over_a_cable_that_is_cut(place, name):
    async def go():
        async with (
            cable(place.url) as wire,
            penstock.connect(wire.url, agent=f"{name}-a") as asker,
            penstock.connect(place.url, agent=f"{name}-b") as other,
        ):
            asked = asyncio.Event()

            async def answer(question):
                if not asked.is_set():
                    asked.set()
                    wire.cut()
                await question.reply({"double": 2 * question.payload})

            working = asyncio.create_task(other.inbox().work(answer, concurrency=2))
            answers = await asyncio.gather(*(asker.ask(f"{name}-b", n, timeout=20) for n in range(3)))
            assert [found.payload["double"] for found in answers] == [0, 2, 4]
            assert asker._connection.reconnects == 1
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "`ask` gets its answer across a lost connection and a closed inbox, or raises an error with a hint",
)
def test_a_question_outlives_the_inbox_that_waited_for_its_answer(place, name):
    async def go():
        async with (
            penstock.connect(place.url, agent=f"{name}-a") as asker,
            penstock.connect(place.url, agent=f"{name}-b") as other,
            other.inbox() as theirs,
        ):
            async with asker.inbox():
                asking = asyncio.ensure_future(asker.ask(f"{name}-b", "?", timeout=20))
                question = await anext(theirs)
            await question.reply("!")
            await question.ack()
            assert (await asking).payload == "!"

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "`ask` gets its answer across a lost connection and a closed inbox, or raises an error with a hint",
)
def test_an_ask_without_a_listener_reports_it(place, name):
    async def go():
        async with penstock.connect(place.url, agent="sam") as client:
            with pytest.raises(PenstockError) as caught:
                await client.ask(name, "?", timeout=1.0)
            assert caught.value.code == "Timeout"
            assert f"no consumer reads `agents/{name}/inbox`" in str(caught.value)

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "`work` acks when the handler returns, nacks when it raises, bounds concurrency, and releases on cancellation",
)
def test_what_fails_comes_again_and_then_to_the_dead_letters(place, stream):
    async def go():
        async with penstock.connect(place.url) as client:
            await client.enqueue(stream, job(1))
            attempts = []

            async def fail(delivery):
                attempts.append(delivery.attempt)
                if delivery.attempt == 1:
                    await delivery.nack(delay_ms=0, reason="broken")
                raise ValueError("broken")

            subscription = client.subscribe(stream)
            working = asyncio.create_task(subscription.work(fail))
            while not await client.peek(stream, state="dead"):
                pass
            await subscription.close()
            await working
            assert attempts == [1, 2]
            [dead] = await client.peek(stream, state="dead")
            assert dead.id == "job-1"

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "the SDK behaves the same with `penstock up` and the in-memory server: credit, reconnection, views, spaces, token streams",
)
def test_no_more_is_held_than_there_is_credit_and_settling_makes_room(place, stream):
    async def go():
        async with penstock.connect(place.url) as client:
            await client.enqueue(stream, [job(n) for n in range(7)])
            async with client.subscribe(stream, credit=3) as jobs:
                held = [await anext(jobs) for _ in range(3)]
                stats = await client.stats(stream)
                assert stats.inflight == 3
                for expected in range(3, 7):
                    await held.pop(0).ack()
                    held.append(await anext(jobs))
                    assert held[-1].payload == expected
                await jobs.ack(held)

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "`LeaseLost` is raised inside the handler, at its `await`, once; the awaited call is cleaned up",
)
def test_a_lease_that_cannot_be_renewed_is_lost_inside_the_handler(place, stream):
    async def go():
        async with cable(place.url) as wire, penstock.connect(wire.url) as client:
            await client.enqueue(stream, job(1))
            lost, done = asyncio.Event(), asyncio.Event()

            async def handler(delivery):
                if delivery.attempt > 1:
                    done.set()
                    return
                wire.is_alive.clear()
                try:
                    await asyncio.get_running_loop().create_future()
                except LeaseLost:
                    lost.set()
                    wire.is_alive.set()
                    raise

            subscription = client.subscribe(stream, credit=2, lease_ms=1_000)
            working = asyncio.create_task(subscription.work(handler))
            await lost.wait()
            await done.wait()
            while (await client.stats(stream)).inflight:
                pass
            await subscription.close()
            await working

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "the SDK behaves the same with `penstock up` and the in-memory server: credit, reconnection, views, spaces, token streams",
)
def test_a_subscription_goes_on_and_nothing_is_stored_twice_after_a_cut(place, stream):
    async def go():
        async with cable(place.url) as wire, penstock.connect(wire.url) as client:
            async with client.subscribe(stream, credit=5) as jobs:
                await client.enqueue(stream, job(0))
                held = await anext(jobs)
                wire.cut()
                receipts = await asyncio.gather(*(client.enqueue(stream, job(n)) for n in range(1, 4)))
                assert len({receipt.seq for receipt in receipts}) == 3
                with pytest.raises(LeaseLost):
                    await held.ack()
                seen = []
                while len(seen) < 4:
                    delivery = await anext(jobs)
                    seen.append(delivery.payload)
                    await delivery.ack()
                assert sorted(seen) == [0, 1, 2, 3]
            assert (await client.stats(stream)).depth == 0

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "the SDK behaves the same with `penstock up` and the in-memory server: credit, reconnection, views, spaces, token streams",
)
def test_a_view_goes_on_after_a_cut(place, name):
    async def go():
        async with (
            cable(place.url) as wire,
            penstock.connect(wire.url, agent=name) as client,
            client.live("latestPerAgent", addr=f"agents/{name}/inbox") as view,
        ):
            await client.send(name, 1)
            assert (await anext(view)).row["payload"] == 1
            wire.cut()
            await client.send(name, 2)
            assert (await anext(view)).row["payload"] == 2

    run(go())


@pytest.mark.promise(
    "SDK and command line", "the sync twins match the async clients: names, arguments, types, statements"
)
def test_the_same_without_async(place, stream):
    threads = set()
    with penstock.connect_sync(place.url, agent="sam") as client:
        client.enqueue(stream, [job(n) for n in range(6)])
        jobs = client.subscribe(stream, credit=3)
        both = threading.Barrier(2, timeout=10)
        left = iter(range(5))

        def handler(delivery):
            threads.add(threading.current_thread().name)
            delivery.check()
            if delivery.seq <= 2:
                both.wait()
            delivery.ack()
            if next(left, None) is None:
                jobs.close()

        jobs.work(handler, concurrency=2)
        assert client.stats(stream).depth == 0
        assert len(threads) == 2 and all(name.startswith("penstock-work") for name in threads)


@pytest.mark.promise(
    "SDK and command line",
    "the SDK behaves the same with `penstock up` and the in-memory server: credit, reconnection, views, spaces, token streams",
)
def test_a_targeted_stream_reaches_its_target_across_a_cut(place):
    async def go():
        async with (
            cable(place.http) as wire,
            place.space("ann") as ann,
            place.space("bob", wire.url) as bob,
            place.space("cat") as cat,
        ):
            await until(lambda: {"bob", "cat"} <= set(ann.participants))
            readings, heard = bob.frames(), cat.arrivals("chat")
            stream = await ann.open_stream("bob")
            await stream.write("21.5")
            assert (await readings.next()).data == b"21.5"
            wire.cut()
            await until(lambda: bob.reconnects == 1)
            await stream.write("21.6")
            assert (await readings.next()).data == b"21.6"
            await ann.chat("that was all")
            assert (await heard.next()).kind == "chat", "the other one got no frame"

    run(go())


@pytest.mark.promise(
    "SDK and command line",
    "the SDK behaves the same with `penstock up` and the in-memory server: credit, reconnection, views, spaces, token streams",
)
def test_a_token_stream_is_whole_and_proved(place):
    async def go():
        relay, offer = place.relay, penstock.StreamOffer()
        answer = penstock.answer_offer(offer.text, relay.pub, signer=relay.signer)
        agreed = offer.accept(answer.text, signer=relay.signer.public)
        publisher = penstock.TokenPublisher(relay.push, answer.agreement.keys, signer=relay.signer)
        async with publisher, penstock.TokenStream(agreed.endpoint, agreed.keys) as stream:
            for token in ("Once ", "upon ", "a ", "time"):
                await publisher.send(token)
            await publisher.complete("stop")
            assert [token async for token in stream] == ["Once ", "upon ", "a ", "time"]
            assert stream.stats.tokens == 4

    run(go())
