"""An endless story, token by token through the relay, on one topic. With the link, you can read it and verify every word.

The text needs no model: each word is drawn from those that may follow the previous one. Each chapter is a separate stream, with a chain
of MACs from its first token to its end. A reader that joins during a chapter gets it from its beginning if the relay holds messages long
enough, else the next chapter.

    python examples/tokens/story.py     runs until Ctrl-C
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import penstock

if TYPE_CHECKING:
    from penstock.streamservice import StreamKeys

PACE_S = 0.15
"""Between two tokens: about the speed of reading."""
CHAPTER = 900
"""Maximum number of tokens in a chapter: fewer messages than a relay keeps."""
CHAPTER_S = 120.0
REST_S = 8.0
HELD_S = 122.0
"""How long a relay must hold messages so that a late reader gets the current chapter from its beginning, and no earlier one."""

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
    """`number` words, the same ones for the same prompt."""
    dice = random.Random(prompt)
    word = "the"
    for _ in range(number):
        yield f"{word} "
        if word in WORDS:
            word = dice.choice(WORDS[word])
        else:
            word = "the" if word in AFTER else dice.choice(AFTER)


def new_keys(relay: penstock.LocalRelay) -> StreamKeys:
    """A topic and its keys. There is no reader yet, so the program agrees with itself, and passes the keys on in a link."""
    offer = penstock.StreamOffer()
    answer = penstock.answer_offer(offer.text, relay.pub, signer=relay.signer)
    return offer.accept(answer.text, signer=relay.signer.public).keys


def link(console: str, keys: StreamKeys) -> str:
    """The address at which a browser shows the story. The part after the `#`, with the key, stays in the browser."""
    return f"{console}/#/tokens?topic={keys.topic}&key={keys.mac_key.hex()}"


async def write_story(relay: penstock.LocalRelay, keys: StreamKeys, pace_s: float = PACE_S) -> None:
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
    await write_story(relay, keys)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
    except penstock.PenstockError as error:
        sys.exit(f"error: {error}")
