"""Looking at streams, and moving or dropping what waits, with a real server and by its own structs."""

from __future__ import annotations

import msgspec
import pytest

import penstock
from penstock.dialects.courier.wire.answers import Stats
from tests.client.scripted_peer import run


@pytest.fixture(scope="module")
def operator(server):
    """The token of the operator, who may purge and drop."""
    return (server.data / "run" / "operator.token").read_text().strip()


def job(number):
    return {"id": f"q{number}", "type": "t", "payload": {"n": number}}


async def bury(client, stream, *numbers):
    """Make dead letters of these jobs."""
    await client.enqueue(stream, [job(number) for number in numbers])
    for delivery in await client.pull(stream, max=len(numbers)):
        await delivery.term("broken", confirm=True)


@pytest.mark.promise(
    "SDK and command line", "`stats`, `peek`, `where` and `explain` return structs with documented fields"
)
def test_answers_are_structs(server, stream):
    async def go():
        async with penstock.connect(server.control) as client:
            await client.enqueue(stream, {"id": stream, "type": "t", "payload": 1})
            stats = await client.stats(stream)
            assert isinstance(stats, penstock.Stats) and (stats.depth, stats.inflight, stats.lat_p50) == (1, 0, 0.0)
            [row] = await client.peek(stream)
            assert isinstance(row, penstock.PeekedRow)
            assert (row.id, row.payload, row.state, row.attempt, row.holder) == (stream, 1, "ready", 0, None)
            [place] = await client.where(stream)
            assert isinstance(place, penstock.Place) and (place.stream, place.state) == (stream, "ready")
            explained = await client.explain(stream)
            assert isinstance(explained, penstock.Explained) and not explained.flowing
            assert [reason.code for reason in explained.reasons] == ["no_consumer"]
            assert stream in {row.id: row.stats.depth for row in await client.streams()}
            async with client.subscribe(stream, credit=1) as deliveries:
                held = await anext(deliveries)
                [place] = await client.where(stream)
                assert place.holder and place.lease_expires_at
                assert [consumer.inflight for consumer in (await client.explain(stream)).consumers] == [1]
                await held.ack()
            assert [place.outcome for place in await client.where(stream)] == ["acked"]
            with pytest.raises(penstock.NotFound) as caught:
                await client.stats("tests/no-such-stream")
            assert caught.value.code == "UnknownStream" and caught.value.hint.startswith("a stream appears")

    run(go())


@pytest.mark.promise("SDK and command line", "`redrive`, `drop` and `purge` act on a stream or on one id")
def test_dead_letters_are_redriven_and_dropped_by_their_ids(server, operator, stream):
    async def go():
        async with penstock.connect(server.control, operator) as client:
            await bury(client, stream, 1, 2, 3)
            assert await client.redrive(id="q2") == penstock.Redriven(moved=1, left=2)
            assert [row.id for row in await client.peek(stream)] == ["q2"]
            with pytest.raises(penstock.NotFound, match="is no dead letter"):
                await client.redrive(id="q2")
            assert (await client.drop("q1")).dropped == 1
            with pytest.raises(penstock.NotFound, match="is settled"):
                await client.drop("q1")
            assert (await client.redrive(stream)).moved == 1
            assert (await client.purge(stream)).purged == 2
            assert (await client.stats(stream)).depth == 0
            with pytest.raises(penstock.InvalidRequest, match="give a stream or an id"):
                await client.redrive()

    run(go())


def test_an_id_in_two_streams_needs_its_stream(server, operator, stream):
    async def go():
        async with penstock.connect(server.control, operator) as client:
            for one in ("a", "b"):
                await client.enqueue(f"{stream}/{one}", {"id": f"{stream}/both", "type": "t", "payload": 1})
            with pytest.raises(penstock.InvalidRequest, match="name the stream"):
                await client.drop(f"{stream}/both")
            await client.drop(f"{stream}/both", stream=f"{stream}/b")
            assert [(await client.stats(f"{stream}/{one}")).depth for one in ("a", "b")] == [1, 0]

    run(go())


def test_a_leased_envelope_is_not_dropped(server, operator, stream):
    async def go():
        async with penstock.connect(server.control, operator) as client:
            await client.enqueue(stream, {"id": stream, "type": "t", "payload": 1})
            [held] = await client.pull(stream)
            with pytest.raises(penstock.PenstockError) as caught:
                await client.drop(stream)
            assert (caught.value.code, caught.value.retryable) == ("EnvelopeLeased", False)
            await held.ack()

    run(go())


def test_without_a_token_a_purge_says_which_token_it_needs(server, stream):
    with penstock.connect_sync(server.control) as client:
        client.enqueue(stream, {"id": stream, "type": "t", "payload": 1})
        with pytest.raises(penstock.Forbidden, match=r"operator\.token"):
            client.purge(stream)


def test_members_are_still_found_by_their_names_in_json_with_a_warning():
    stats = msgspec.convert(
        dict.fromkeys((field.encode_name for field in msgspec.structs.fields(Stats)), 7)
        | {"lastTs": None, "agents": []},
        Stats,
    )
    with pytest.warns(DeprecationWarning, match=r"use `\.rate_in`"):
        assert stats["rateIn"] == 7
    with pytest.raises(KeyError):
        stats["nope"]
