"""The endings that a publisher gives its stream, and what it rejects."""

from __future__ import annotations

import asyncio
import gc

import pytest

import penstock
from tests.client.token_relay import TinyRelay
from tests.client.tokens.driving import WAIT_S, agree, awaited, publisher, read


class TestEnds:
    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a stream always ends: on exceptions, when stopped, closed or abandoned",
    )
    @awaited
    async def test_an_exception_ends_the_stream_with_an_error(self, relay: TinyRelay) -> None:
        agreed = agree(relay)

        async def generate() -> None:
            async with publisher(relay, agreed) as out:
                await out.send("a")
                raise ZeroDivisionError("a secret of the generator")

        with pytest.raises(ZeroDivisionError):
            await generate()
        with pytest.raises(penstock.StreamFailed) as failed:
            await read(agreed)
        assert failed.value.failure.code == "internal"
        assert "secret" not in str(failed.value.failure)

    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @awaited
    async def test_an_error_has_the_publishers_message(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            await out.send("a")
            await out.error("out of memory", "oom", "on device 0")
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        async with stream:
            assert await anext(stream) == "a"
            with pytest.raises(penstock.StreamFailed, match="out of memory") as failed:
                await anext(stream)
        assert (failed.value.failure.code, failed.value.failure.details) == ("oom", "on device 0")
        assert failed.value.code == "StreamFailed"

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a stream always ends: on exceptions, when stopped, closed or abandoned",
    )
    @awaited
    async def test_a_forgotten_publisher_says_so(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        out = await publisher(relay, agreed).open()
        await out.send("a")
        del out
        gc.collect()
        with pytest.raises(penstock.StreamFailed, match="without terminal frame"):
            await read(agreed)

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a stream always ends: on exceptions, when stopped, closed or abandoned",
    )
    @awaited
    async def test_a_closed_publisher_without_an_end_says_so(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        out = await publisher(relay, agreed).open()
        await out.close()
        await out.close()
        with pytest.raises(penstock.StreamFailed, match="without terminal frame"):
            await read(agreed)

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a stream always ends: on exceptions, when stopped, closed or abandoned",
    )
    @awaited
    async def test_a_stopped_task_ends_its_stream(self, relay: TinyRelay) -> None:
        agreed = agree(relay)

        async def generate() -> None:
            async with publisher(relay, agreed) as out:
                await out.send("a")
                await asyncio.Event().wait()

        task = asyncio.ensure_future(generate())
        async with asyncio.timeout(WAIT_S), penstock.TokenStream(agreed.endpoint, agreed.keys) as stream:
            assert await anext(stream) == "a"
            task.cancel()
            with pytest.raises(penstock.StreamFailed) as failed:
                await anext(stream)
        assert failed.value.failure.code == "cancelled"

    @awaited
    async def test_nothing_is_sent_after_the_end(self, relay: TinyRelay) -> None:
        async with publisher(relay, agree(relay)) as out:
            await out.complete()
            with pytest.raises(penstock.PenstockError, match="has ended"):
                await out.send("late")
            with pytest.raises(penstock.PenstockError, match="has ended"):
                await out.complete()

    @pytest.mark.parametrize("token", ["x" * 65_537, "\ud800"])
    @awaited
    async def test_what_cannot_be_sent_is_refused_and_harms_nothing(self, relay: TinyRelay, token: str) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            await out.send("a")
            with pytest.raises(penstock.PenstockError):
                await out.send(token)
            await out.send("b" * 65_536)
        assert (await read(agreed))[0] == ["a", "b" * 65_536]
