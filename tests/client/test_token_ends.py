"""Endings of token streams that are easily confused."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

import penstock
from tests.client.token_relay import TinyRelay
from tests.client.tokens.test_tokens import agree, awaited, make_relay, publisher, read, relay

__all__ = ["make_relay", "relay"]


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
