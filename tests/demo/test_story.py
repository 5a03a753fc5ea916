"""The story: words that follow one another, chapters that are streams of their own, and the link to them."""

from __future__ import annotations

import asyncio
from itertools import islice, pairwise
from pathlib import Path

import pytest

import penstock
from penstock.client.tokens import new_signing_key
from penstock.core.relay.bounds import RelayLimits
from penstock.demo import story
from tests.client.token_relay import TinyRelay

PATIENCE_S = 20.0


@pytest.fixture
def relay(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = TinyRelay(tmp_path)
    yield penstock.LocalRelay(made.pub, made.push, new_signing_key())
    made.stop()


def test_a_relay_holds_this_chapter_and_nothing_whole_before_it() -> None:
    assert story.CHAPTER_S < story.HELD_S < story.CHAPTER_S + story.REST_S
    assert RelayLimits().max_pending_per_topic > story.CHAPTER > story.CHAPTER_S / story.PACE_S


def test_each_word_may_follow_the_one_before_it() -> None:
    words = [token.strip() for token in story.tokens("prompt", 500)]
    assert len(words) == 500 and words[0] == "the"
    for word, following in pairwise(words):
        if word in story.WORDS:
            assert following in story.WORDS[word]
        elif word in story.AFTER:
            assert following == "the"
        else:
            assert following in story.AFTER


def test_a_prompt_gives_the_same_words_and_another_one_others() -> None:
    assert list(story.tokens("one", 50)) == list(story.tokens("one", 50)) == list(islice(story.tokens("one", 99), 50))
    assert list(story.tokens("one", 50)) != list(story.tokens("two", 50))
    assert list(story.tokens("one", 0)) == []


def test_the_link_has_the_topic_and_the_key_behind_the_hash() -> None:
    relay = penstock.LocalRelay("tcp://127.0.0.1:1", "tcp://127.0.0.1:2", new_signing_key())
    keys = story.new_keys(relay)
    assert keys != story.new_keys(relay), "each run has a topic of its own"
    address, _, fragment = story.link("http://host:8787", keys).partition("#")
    assert address == "http://host:8787/"
    assert fragment == f"/tokens?topic={keys.topic}&key={keys.mac_key.hex()}"


def test_a_chapter_is_a_verified_stream_that_ends_and_another_one_follows(
    relay: penstock.LocalRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story, "CHAPTER", 3)
    monkeypatch.setattr(story, "REST_S", 0.0)
    keys = story.new_keys(relay)

    async def read() -> str:
        async with penstock.TokenStream(relay.pub, keys) as stream:
            return "".join([token async for token in stream])

    async def go() -> None:
        async with asyncio.timeout(PATIENCE_S):
            writing = asyncio.ensure_future(story.write_story(relay, keys, pace_s=0.0))
            chapter = await read()
            writing.cancel()
            await asyncio.wait([writing])
        number = int(chapter.split(".")[0].removeprefix("Chapter "))
        assert chapter == f"Chapter {number}. " + "".join(story.tokens(f"{keys.topic} {number}", 3))

    asyncio.run(go())


def test_a_chapter_ends_when_its_time_is_over(relay: penstock.LocalRelay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "CHAPTER_S", 0.0)
    monkeypatch.setattr(story, "REST_S", 60.0)
    keys = story.new_keys(relay)

    async def go() -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            writing = asyncio.ensure_future(story.write_story(relay, keys, pace_s=0.0))
            async with penstock.TokenStream(relay.pub, keys) as stream:
                found = [token async for token in stream]
            writing.cancel()
            await asyncio.wait([writing])
            return found

    assert asyncio.run(go()) == ["Chapter 1. ", "the "]
