"""The reader of a token stream: order, typed endings, and a relay that drops, repeats and changes messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.tokens import reader
from penstock.dialects.streamservice import encode
from tests.client.token_relay import TinyRelay
from tests.client.tokens.driving import CALM, FORMATS, HURRY, KEY, WAIT_S, agree, awaited, publisher, read, until, words


class TestStreams:
    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @pytest.mark.parametrize("form", FORMATS)
    @awaited
    async def test_every_token_arrives_in_order_and_the_end_with_its_figures(self, relay: TinyRelay, form: Any) -> None:
        agreed = agree(relay)
        reading = asyncio.ensure_future(read(agreed))
        async with publisher(relay, agreed, format=form) as out:
            for word in words(300):
                await out.send(word)
            told = await out.complete("length", perplexity=1.5, entropy=0.25)
        tokens, stats = await reading
        assert tokens == words(300)
        assert stats is not None and stats.stream_id == "s-1"
        assert (stats.tokens, stats.finish_reason, stats.generation_ms) == (300, "length", told.generation_ms)
        assert (stats.perplexity, stats.entropy) == (1.5, 0.25)

    @awaited
    async def test_a_reader_that_comes_late_misses_nothing(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            for word in words(50):
                await out.send(word)
        await until(lambda: relay.received)
        assert (await read(agreed))[0] == words(50)

    @pytest.mark.promise("Token streams: publisher and reader", "buffers at either end are bounded")
    @awaited
    async def test_a_slow_reader_is_waited_for(self, relay: TinyRelay, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader, "WAITING_MAX", 10)
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            for word in words(5_000):
                await out.send(word)
        async with asyncio.timeout(WAIT_S), penstock.TokenStream(agreed.endpoint, agreed.keys) as stream:
            await until(lambda: len(stream._tokens) >= 10)
            assert len(stream._tokens) < 5_000
            assert [token async for token in stream] == words(5_000)

    @awaited
    async def test_a_stream_has_one_reader_at_a_time(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with penstock.TokenStream(agreed.endpoint, agreed.keys, patience=CALM) as stream:
            first = asyncio.ensure_future(stream.next_batch())
            await asyncio.sleep(0)  # it comes first, whatever the relay does meanwhile
            await until(relay.subscribed.is_set)
            with pytest.raises(penstock.PenstockError, match="another task"):
                await stream.next_batch()
            async with publisher(relay, agreed) as out:
                await out.send("a")
            assert await first == ["a"]


class TestEnds:
    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @awaited
    async def test_silence_without_an_end_is_a_cut(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            await out.send("a")
            await out.flush()
            stream = penstock.TokenStream(agreed.endpoint, agreed.keys, patience=HURRY)
            async with stream:
                assert await anext(stream) == "a"
                with pytest.raises(penstock.TruncatedStream):
                    await anext(stream)

    @awaited
    async def test_a_stream_ends_with_its_time(self, relay: TinyRelay) -> None:
        with pytest.raises(penstock.TruncatedStream) as cut:
            await read(agree(relay), expires=0)
        assert cut.value.reason == "expired"

    @awaited
    async def test_no_relay_is_an_error_in_time(self, tmp_path: Path, relay: TinyRelay) -> None:
        agreed = agree(relay)
        nowhere = penstock.TokenPublisher(f"ipc://{tmp_path}/nobody", agreed.keys, signer=KEY, connect_timeout=0.05)
        with pytest.raises(penstock.PenstockError, match="does not answer"):
            await nowhere.open()
        with pytest.raises(penstock.PenstockError, match="cannot connect"):
            await penstock.TokenStream("nonsense", agreed.keys).open()


class TestFaults:
    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a reader retries with increasing pauses and gives up at a limit",
    )
    @pytest.mark.parametrize("form", FORMATS)
    @awaited
    async def test_lost_messages_are_had_again(self, make_relay: Callable[..., TinyRelay], form: Any) -> None:
        seen = iter(range(10**6))
        relay = make_relay(meddle=lambda parts: [] if next(seen) % 3 == 1 else [parts])
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        async with asyncio.timeout(WAIT_S), stream:
            await until(relay.subscribed.is_set)
            async with publisher(relay, agreed, format=form) as out:
                for word in words(100):
                    await out.send(word)
            assert [token async for token in stream] == words(100)
        assert stream.counts.ahead and relay.resumes

    @awaited
    async def test_messages_that_come_twice_are_read_once(self, make_relay: Callable[..., TinyRelay]) -> None:
        relay = make_relay(meddle=lambda parts: [parts, parts, parts])
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            for word in words(100):
                await out.send(word)
        assert (await read(agreed))[0] == words(100)

    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @awaited
    async def test_a_gap_that_cannot_be_filled_is_reported(self, make_relay: Callable[..., TinyRelay]) -> None:
        seen = iter(range(10**6))
        relay = make_relay(is_forgetful=True, meddle=lambda parts: [] if next(seen) == 2 else [parts])
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys, patience=HURRY)
        async with asyncio.timeout(WAIT_S), stream:
            await until(relay.subscribed.is_set)
            async with publisher(relay, agreed, format="chunk") as out:
                for word in words(6):
                    await out.send(word)
            assert [await anext(stream), await anext(stream)] == words(2)
            with pytest.raises(penstock.GapError) as gap:
                await anext(stream)
        assert gap.value.is_gone and gap.value.code == "StreamGap"

    @pytest.mark.promise(
        "Token streams: publisher and reader", "an attacker that can only add messages cannot end a stream"
    )
    @awaited
    async def test_added_messages_do_not_end_a_stream(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        topic = agreed.keys.topic.encode()
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        async with asyncio.timeout(WAIT_S), stream:
            await until(relay.subscribed.is_set)
            async with publisher(relay, agreed) as out:
                for word in words(50):
                    relay.inject(topic, encode.block(topic[:16], []), bytes(16))
                    relay.inject(topic + b"noise")
                    relay.inject(topic, b"\x03" + bytes(16))
                    await out.send(word)
                await until(lambda: stream.counts.tampered)
            assert [token async for token in stream] == words(50)

    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @awaited
    async def test_a_changed_message_is_never_read(self, make_relay: Callable[..., TinyRelay]) -> None:
        def change(parts: Any) -> Any:
            return [(parts[0], parts[1].replace(b"word3", b"lied3"), parts[2])]

        relay = make_relay(is_forgetful=True, meddle=change)
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys, patience=HURRY)
        got: list[str] = []
        async with asyncio.timeout(WAIT_S), stream:
            await until(relay.subscribed.is_set)
            async with publisher(relay, agreed) as out:
                for word in words(6):
                    await out.send(word)
                    await out.flush()

            async def go_on() -> None:
                async for token in stream:
                    got.append(token)  # noqa: PERF401 - what was read before the error counts

            with pytest.raises(penstock.TamperedStream):
                await go_on()
        assert got == words(len(got)) and len(got) <= 3


class TestCancelling:
    @pytest.mark.promise(
        "Token streams: publisher and reader", "only the reader cancels, and each cancel message works once"
    )
    @awaited
    async def test_a_reader_stops_the_publisher_through_the_relay(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys, push=relay.push)
        async with asyncio.timeout(WAIT_S), stream, publisher(relay, agreed, pub=relay.pub) as out:
            await out.send("a")
            assert await anext(stream) == "a"
            await stream.cancel()
            await until(lambda: out.is_cancelled)
            with pytest.raises(penstock.StreamCancelled):
                await out.send("more")
            assert out.is_cancelled and out.is_over
            with pytest.raises(penstock.StreamFailed) as failed:
                async for _ in stream:
                    pass
        assert failed.value.failure.code == "cancelled"
        assert len(relay.registered) >= 2, "the control topic is registered too"

    @awaited
    async def test_a_cancellation_can_take_another_way_and_works_once(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        with pytest.raises(penstock.PenstockError, match="no endpoint to send a cancellation"):
            await stream.cancel()
        message = stream.cancellation()
        async with publisher(relay, agreed) as out:
            assert not out.take_control(message[:-1] + bytes([message[-1] ^ 1]))
            assert not out.take_control(b"")
            assert not out.is_cancelled
            assert out.take_control(message)
            assert out.is_cancelled and not out.take_control(message)


@pytest.mark.promise("Relay", "a stream that was closed, or whose figures are out of range, has no false end")
@awaited
async def test_figures_beyond_what_the_wire_holds_end_a_stream_like_others(relay: TinyRelay) -> None:
    agreed = agree(relay)
    async with publisher(relay, agreed) as out:
        await out.send("a")
        await out.complete(perplexity=1e300, entropy=-1e39)
    tokens, stats = await read(agreed)
    assert tokens == ["a"]
    assert stats is not None
    assert (stats.perplexity, stats.entropy) == (inf, -inf)


@pytest.mark.promise("Relay", "a stream that was closed, or whose figures are out of range, has no false end")
@awaited
async def test_a_stream_that_is_closed_while_it_is_read_has_not_come_to_its_end(relay: TinyRelay) -> None:
    agreed = agree(relay)
    async with publisher(relay, agreed) as out:
        await out.send("a")
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        assert await anext(stream) == "a"
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await stream.close()
        with pytest.raises(penstock.PenstockError, match="the stream is closed"):
            await reading
