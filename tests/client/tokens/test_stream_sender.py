"""Sending of a publisher: registrations, heartbeats, partial batches, and a relay that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.client.tokens import Agreement
from penstock.core.errors import Refusal
from penstock.dialects.streamservice.compose_stream import RetentionOptions
from penstock.dialects.streamservice.signatures import Registrar, TrustStore
from penstock.dialects.streamservice.verify_stream import RetryOptions
from tests.client.token_relay import TinyRelay
from tests.client.tokens.driving import FORMATS, KEY, WAIT_S, agree, awaited, publisher, read, until, words


class TestStreams:
    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a publisher registers first, with claims for one topic, and renews",
    )
    @awaited
    async def test_the_topic_is_registered_first_with_its_own_claims(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed, sub="inference", lifetime=60) as out:
            await out.send("a")
        await until(lambda: relay.received)
        (register,) = relay.registered
        now_ms = time.time_ns() // 1_000_000
        registration = Registrar(TrustStore({"inference": KEY.public})).admit(register, now_ms)
        assert not isinstance(registration, Refusal), registration
        assert (registration.topic, registration.sub) == (agreed.keys.topic.encode(), "inference")
        assert 0 < registration.exp_s - now_ms // 1000 <= 61

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a publisher registers first, with claims for one topic, and renews",
    )
    @awaited
    async def test_a_registration_is_renewed_while_the_stream_lives(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed, lifetime=0.1) as out:
            await until(lambda: len(relay.registered) >= 3)
            await out.send("a")
        assert len({register.frame for register in relay.registered}) == len(relay.registered)

    @awaited
    async def test_silence_is_filled_and_no_reader_gives_up(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys, patience=RetryOptions(idle_ms=1_500))
        async with stream, publisher(relay, agreed, keeping=RetentionOptions(heartbeat_ms=20)) as out:
            await out.send("a")
            await out.flush()
            await until(lambda: stream.counts.accepted > 80)  # far beyond what it would wait in silence
            await out.complete()
            assert [token async for token in stream] == ["a"]

    @pytest.mark.promise("Token streams: publisher and reader", "batches adapt to the rate, with a time limit")
    @awaited
    async def test_a_partial_batch_is_not_held_back(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with (
            publisher(relay, agreed) as out,
            penstock.TokenStream(agreed.endpoint, agreed.keys) as stream,
        ):
            for word in words(21):
                await out.send(word)
            got: list[str] = []
            async with asyncio.timeout(WAIT_S):
                while len(got) < 21:
                    got += await stream.next_batch()
            assert got == words(21)


class TestFaults:
    @pytest.mark.promise("Token streams: publisher and reader", "a killed relay and a lost connection lose nothing")
    @pytest.mark.parametrize("form", FORMATS)
    @awaited
    async def test_a_relay_that_is_restarted_without_memory_loses_nothing(
        self, make_relay: Callable[..., TinyRelay], form: Any
    ) -> None:
        relay = make_relay()
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        async with asyncio.timeout(WAIT_S), stream, publisher(relay, agreed, format=form) as out:
            for word in words(50):
                await out.send(word)
            assert [await anext(stream) for _ in range(20)] == words(20)
            await out.flush()
            relay.meddle = lambda _: []  # what it takes from now on dies with it
            before = len(relay.received)
            for word in words(80)[50:]:
                await out.send(word)
            await out.flush()
            await until(lambda: len(relay.received) > before)
            relay.stop()
            for word in words(100)[80:]:
                await out.send(word)
            relay = make_relay()
            for word in words(150)[100:]:
                await out.send(word)
            await out.complete()
            assert [token async for token in stream] == words(150)[20:]
            assert relay.registered, "the new relay knows the topic"

    @pytest.mark.promise("Token streams: publisher and reader", "a failed send breaks no chain; a full publisher waits")
    @awaited
    async def test_a_publisher_waits_for_a_relay_that_is_gone_and_says_when_that_takes_too_long(
        self, relay: TinyRelay, make_relay: Callable[..., TinyRelay]
    ) -> None:
        agreed = agree(relay)
        out = publisher(relay, agreed, timeout=0.05, keeping=RetentionOptions(unsent_max=5), format="chunk")
        await out.open()
        await out.send("0")
        relay.stop()
        sent = 1

        async def fill() -> None:
            nonlocal sent
            while sent < 10**4:
                await out.send(str(sent))
                sent += 1

        with pytest.raises(penstock.PenstockError, match="accepts no messages"):
            await fill()
        again = make_relay()
        await until(lambda: not out.unsent)
        await out.complete()
        await out.close()
        tokens, _ = await read(Agreement(agreed.stream_id, again.pub, agreed.keys))
        assert tokens == [str(number) for number in range(sent + 1)], "the token of the error is not lost"
