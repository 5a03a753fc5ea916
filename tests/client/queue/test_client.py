"""The SDK against a real server."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock.core.errors import LeaseLost, PenstockError
from tests.client.scripted_peer import run


def message(number, **more):
    return {"id": f"m{number}", "type": "t", "payload": number, **more}


@pytest.fixture(params=["control", "http"])
def url(request, server):
    """Both ways in: lines over TCP, and over the WebSocket."""
    return getattr(server, request.param)


@pytest.mark.promise("SDK and command line", "`penstock.connect` handles credit, reconnection and lease renewal")
def test_enqueue_then_take_in_order_over_both_doors(url, stream):
    async def go():
        async with penstock.connect(url) as client:
            receipt = await client.enqueue(stream, [message(n) for n in range(10)])
            assert receipt.seqs == list(range(1, 11)) and receipt.duplicates == []
            async with client.subscribe(stream, credit=3) as deliveries:
                for expected in range(10):
                    delivery = await anext(deliveries)
                    assert (delivery.payload, delivery.seq, delivery.attempt) == (expected, expected + 1, 1)
                    await delivery.ack()
            stats = await client.stats(stream)
            assert (stats.depth, stats.inflight) == (0, 0)

    run(go())


def test_many_in_batches_are_all_acked_once(url, stream):
    async def go():
        async with penstock.connect(url) as client:
            bodies = [b'{"id":"b%d","ts":"2026-01-01T00:00:00Z","type":"t","payload":%d}' % (n, n) for n in range(5000)]
            seen = []

            async def consume():
                async with client.subscribe(stream, credit=1000, batch=64) as deliveries:
                    async for batch in deliveries.batches():
                        seen.extend(delivery.payload for delivery in batch)
                        await deliveries.ack(batch)
                        if len(seen) == len(bodies):
                            return

            consuming = asyncio.ensure_future(consume())
            for start in range(0, len(bodies), 500):
                await client.enqueue(stream, bodies[start : start + 500])
            await consuming
            assert seen == list(range(5000))
            stats = await client.stats(stream)
            assert (stats.depth, stats.inflight) == (0, 0)

    run(go())


def test_the_same_bytes_again_are_a_duplicate_and_others_a_conflict(server, stream):
    async def go():
        async with penstock.connect(server.control) as client:
            given = message(1, ts="2026-01-01T00:00:00Z")
            first = await client.enqueue(stream, given)
            again = await client.enqueue(stream, given)
            assert (again.seq, again.duplicate, first.duplicate) == (first.seq, True, False)
            with pytest.raises(PenstockError) as caught:
                await client.enqueue(stream, {**given, "payload": 2})
            assert caught.value.code == "IdConflict"

    run(go())


def test_nack_release_and_term(server, stream):
    async def go():
        async with penstock.connect(server.control) as client:
            await client.enqueue(stream, message(1))
            async with client.subscribe(stream, credit=1) as deliveries:
                await (await anext(deliveries)).nack()
                second = await anext(deliveries)
                assert second.attempt == 2
                await second.release()
                third = await anext(deliveries)
                await third.term("cannot be done")
            assert [row.id for row in await client.peek(stream, state="dead")] == ["m1"]
            assert (await client.redrive(stream)).moved == 1
            async with client.subscribe(stream, credit=1) as deliveries:
                await (await anext(deliveries)).ack()

    run(go())


def test_a_delay_holds_an_envelope_back(server, stream):
    async def go():
        async with penstock.connect(server.control) as client:
            await client.enqueue(stream, message(1), delay_ms=60_000)
            assert await client.pull(stream) == []
            assert len(await client.peek(stream, state="delayed")) == 1

    run(go())


def test_a_waiting_pull_holds_up_nothing_else(server, stream):
    async def go():
        async with penstock.connect(server.control) as client:
            pulling = asyncio.ensure_future(client.pull(stream, wait_ms=20_000))
            await client.ping()
            while not (await _explained(client, stream)):
                pass
            await client.enqueue(stream, message(1))
            [delivery] = await pulling
            await delivery.ack()

    async def _explained(client, stream):
        try:
            return await client.explain(stream)
        except PenstockError:
            return None

    run(go())


def test_send_says_who_is_there(server, stream):
    async def go():
        name = stream.replace("/", "-")
        async with penstock.connect(server.control, agent="sam") as client:
            sent = await client.send(name, {"n": 1}, type="note", tags=["x"])
            assert sent.to == f"agents/{name}/inbox"
            assert sent.recipient is not None and not sent.recipient.present
            async with client.inbox(name) as inbox:
                delivery = await anext(inbox)
                assert delivery.envelope["from"] == "sam" and delivery.envelope["tags"] == ["x"]
                await delivery.ack()
                assert (await client.send(name, 2)).recipient.present

    run(go())


def test_a_full_stream_is_a_refusal_with_a_time(start_server, stream):
    server = start_server(config="streams:\n  maxDepth: 1\n")

    async def go():
        async with penstock.connect(server.control) as client:
            await client.enqueue(stream, message(1))
            with pytest.raises(PenstockError) as caught:
                await client.enqueue(stream, message(2))
            assert caught.value.code == "StreamFull" and caught.value.retryable

    run(go())


def test_a_unix_socket(start_server, tmp_path, stream):
    server = start_server("--control", f"unix:{tmp_path}/c")

    async def go():
        async with penstock.connect(server.control) as client:
            await client.enqueue(stream, message(1))
            [delivery] = await client.pull(stream)
            await delivery.ack()

    run(go())


@pytest.mark.promise("SDK and command line", "`penstock.connect` handles credit, reconnection and lease renewal")
def test_a_subscription_goes_on_after_the_server_crashed(start_server, stream):
    server = start_server()
    port = server.control.rpartition(":")[2]

    async def go():
        async with (
            penstock.connect(server.control) as client,
            client.subscribe(stream, credit=10) as deliveries,
        ):
            await client.enqueue(stream, message(1))
            before = await anext(deliveries)
            await asyncio.to_thread(server.kill)
            restarted = await asyncio.to_thread(start_server, "--control", f"127.0.0.1:{port}")
            assert restarted.control == server.control
            with pytest.raises(LeaseLost):
                await before.ack()
            await client.enqueue(stream, message(2))
            seen = set()
            while "m2" not in seen:
                delivery = await anext(deliveries)
                seen.add(delivery.id)
                await delivery.ack()

    run(go())


def test_a_token_is_needed_where_tokens_are_configured(start_server, stream):
    config = "auth:\n  tokens:\n    - {name: t, token: sesame, scopes: ['streams:*:*']}\n"
    server = start_server(config=config)

    async def go():
        for url in (server.control, server.http):
            with pytest.raises(PenstockError) as caught:
                async with penstock.connect(url) as client:
                    await client.ping()
            assert caught.value.code == "Unauthorized"
            async with penstock.connect(url, token="sesame") as client:
                await client.enqueue(stream, {"type": "t", "payload": 1})

    run(go())


@pytest.mark.promise(
    "SDK and command line", "the sync twins match the async clients: names, arguments, types, statements"
)
def test_the_sync_client_does_the_same(server, stream):
    with penstock.connect_sync(server.control, agent="sam") as client:
        assert client.enqueue(stream, [message(n) for n in range(3)]).seqs == [1, 2, 3]
        with client.subscribe(stream, credit=2) as deliveries:
            first = next(deliveries)
            assert (first.id, first.seq, first.envelope["from"]) == ("m0", 1, "sam")
            first.ack()
            deliveries.ack(deliveries.next_batch(1))
        [last] = client.pull(stream, wait_ms=1000)
        last.ack()
        with pytest.raises(PenstockError):
            last.ack()
        assert client.stats(stream).depth == 0


NAN, INF = float("nan"), float("inf")


@pytest.mark.promise("SDK and command line", "NaN and infinities are refused, never stored as null")
@pytest.mark.parametrize(
    ("send", "path"),
    [
        (lambda client, to: client.send(to, {"none": None, "mean": [1.0, NAN]}), "payload.mean[1]"),
        (lambda client, to: client.send(to, INF), "payload"),
        (lambda client, to: client.send(to, 1, headers={"x": -INF}), "headers.x"),
        (lambda client, to: client.enqueue(to, {"type": "t", "payload": {"a": NAN}}), "payload.a"),
        (lambda client, to: client.enqueue(to, [message(1), message(2, payload=NAN)]), "payload"),
    ],
)
def test_a_number_that_json_cannot_express_is_refused(server, stream, send, path):
    async def go():
        async with penstock.connect(server.control) as client:
            with pytest.raises(PenstockError) as caught:
                await send(client, stream)
            assert (caught.value.code, caught.value.refusal.ref) == ("InvalidJSON", path)
            with pytest.raises(PenstockError) as caught:
                await client.stats(stream)
            assert caught.value.code == "UnknownStream", "nothing was sent"
            await client.send(stream, {"null": None, "text": "null"})

    run(go())


@pytest.mark.promise("Foundations", "an invalid name is refused everywhere with the form that is allowed")
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.send("a b", 1),
        lambda client: client.send("jobs/a:b", 1),
        lambda client: client.enqueue("a*", message(1)),
        lambda client: client.pull(""),
        lambda client: client.subscribe("a:b").open(),
        lambda client: client.inbox("a/b").open(),
        lambda client: client.stats("a:b"),
    ],
)
def test_an_invalid_name_is_refused_with_the_form(server, call):
    async def go():
        async with penstock.connect(server.control) as client:
            with pytest.raises(PenstockError, match="without `") as caught:
                await call(client)
            assert caught.value.code == "InvalidRequest"

    run(go())


def test_an_agent_with_an_invalid_name_does_not_connect(server):
    async def go():
        with pytest.raises(PenstockError, match="'a b' is not an agent's name"):
            await penstock.connect(server.control, agent="a b")

    run(go())
