"""Publisher and reader of one token stream, with a relay between them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import penstock
from penstock.client.tokens import Agreement, SigningKey
from penstock.dialects.streamservice.messages import Complete
from penstock.dialects.streamservice.verify_stream import RetryOptions
from tests.client.scripted_peer import run
from tests.client.token_relay import TinyRelay

KEY = SigningKey(bytes(range(32)))
WAIT_S = 20.0
POLL_S = 0.001
CALM = RetryOptions(idle_ms=120_000)
HURRY = RetryOptions(resume_tries_max=3, probe_ms=50, idle_ms=500, resume_first_ms=10)
FORMATS = ["chunk", "block"]


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def call(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs))

    return call


def agree(relay: TinyRelay) -> Agreement:
    offer = penstock.StreamOffer("s-1")
    answer = penstock.answer_offer(offer.text, relay.pub, signer=KEY)
    agreement = offer.accept(answer.text, signer=KEY.public)
    assert agreement == answer.agreement
    return agreement


def publisher(relay: TinyRelay, agreed: Agreement, **options: Any) -> penstock.TokenPublisher:
    return penstock.TokenPublisher(relay.push, agreed.keys, signer=KEY, stream_id=agreed.stream_id, **options)


async def read(agreed: Agreement, **options: Any) -> tuple[list[str], Complete | None]:
    async with (
        asyncio.timeout(WAIT_S),
        penstock.TokenStream(agreed.endpoint, agreed.keys, **options) as stream,
    ):
        return [token async for token in stream], stream.stats


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for happens on another thread
            await asyncio.sleep(POLL_S)


def words(count: int) -> list[str]:
    return [f"word{number} " for number in range(count)]
