"""A story without an end, token by token through the relay, on one topic: whoever has the link reads it, and can check every word.

The text needs no model: each word is drawn from those that may follow the one before it. Each chapter is a stream of its own, with a chain of MACs from its
first token to its end. A reader who comes in the middle of one gets it from its beginning where the relay holds messages for so long, else the next.

    python examples/tokens/story.py
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import penstock

if TYPE_CHECKING:
    from penstock.client.tokens import LocalRelay
    from penstock.dialects.streamservice.keys import StreamKeys

PACE_S = 0.15
"""Between two tokens: people read about as fast."""
CHAPTER = 900
"""Tokens of a chapter at most: fewer messages than a relay keeps."""
CHAPTER_S = 120.0
REST_S = 8.0
HELD_S = 122.0
"""How long a relay should hold messages for a late reader to get this chapter from its beginning, and nothing whole before it."""

WORDS = {
    "the": ("river", "wheel", "gate", "miller", "water"),
    "river": ("rises", "turns", "waits"),
    "wheel": ("turns", "rests"),
    "gate": ("opens", "holds", "waits"),
    "miller": ("opens", "waits", "sings"),
    "water": ("rises", "falls", "turns"),
}
AFTER = ("and", "while", "until", "because")


def tokens(prompt: str, number: int) -> Iterator[str]:
    """So many words, the same ones for the same prompt."""
    dice = random.Random(prompt)
    word = "the"
    for _ in range(number):
        yield f"{word} "
        if word in WORDS:
            word = dice.choice(WORDS[word])
        else:
            word = "the" if word in AFTER else dice.choice(AFTER)


def new_keys(relay: LocalRelay) -> StreamKeys:
    """A topic and its keys. Nobody asked for this stream, so we are the reader too, and give the keys away in a link."""
    offer = penstock.StreamOffer()
    answer = penstock.answer_offer(offer.text, relay.pub, signer=relay.signer)
    return offer.accept(answer.text, signer=relay.signer.public).keys


def link(console: str, keys: StreamKeys) -> str:
    """Where a browser shows the story. What is behind the `#` stays in the browser, the key above all."""
    return f"{console}/#/tokens?topic={keys.topic}&key={keys.mac_key.hex()}"


async def tell(relay: LocalRelay, keys: StreamKeys, pace_s: float = PACE_S) -> None:
    """Write chapter after chapter."""
    loop = asyncio.get_running_loop()
    for chapter in count(1):
        ends_s = loop.time() + CHAPTER_S
        async with penstock.TokenPublisher(relay.push, keys, signer=relay.signer, sub="story") as publisher:
            await publisher.send(f"Chapter {chapter}. ")
            for token in tokens(f"{keys.topic} {chapter}", CHAPTER):
                await publisher.send(token)
                await asyncio.sleep(pace_s)
                if loop.time() >= ends_s:
                    break
        await asyncio.sleep(REST_S)


async def main() -> None:
    relay = penstock.local_relay()
    keys = new_keys(relay)
    print(link("http://localhost:8787", keys), flush=True)
    await tell(relay, keys)


if __name__ == "__main__":
    asyncio.run(main())
