"""Feeds: the order of arrivals, drops at the bound, and slow readers."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.space.feed import Feed, Feeds, kinds
from penstock.client.space.messages import Frame, SpaceEnvelope, read_message
from penstock.core.errors import PenstockError, Refusal


def envelope(kind: str, number: int = 0) -> SpaceEnvelope:
    found = read_message(b'{"kind":"%b","id":"%d"}' % (kind.encode(), number))
    assert isinstance(found, SpaceEnvelope)
    return found


def frame(number: int) -> Frame:
    return Frame("stream-1", b"%d" % number)


def run(work):
    return asyncio.run(work())


def test_frames_and_envelopes_keep_their_common_order():
    async def go():
        feed = Feed(lambda item: True)
        sent = [frame(1), envelope("chat"), frame(2)]
        for item in sent:
            feed._put(item)
        feed._end()
        assert [item async for item in feed] == sent

    run(go)


def test_a_full_feed_drops_its_oldest_frames_and_counts_them(monkeypatch):
    monkeypatch.setattr("penstock.client.space.feed.FRAMES_MAX", 2)

    async def go():
        feeds = Feeds()
        feed = feeds.add(lambda item: True)
        for number in range(5):
            feeds.put(frame(number))
        assert (feed.dropped, feeds.dropped) == (3, 3)
        assert [await feed.next(), await feed.next()] == [frame(3), frame(4)]

    run(go)


def test_a_feed_that_waits_drops_nothing_and_holds_the_socket(monkeypatch):
    monkeypatch.setattr("penstock.client.space.feed.FRAMES_MAX", 2)

    async def go():
        feeds = Feeds()
        feed = feeds.add(lambda item: True, "wait")
        for number in range(3):
            feeds.put(frame(number))
        room = asyncio.ensure_future(feeds.room())
        await asyncio.sleep(0)
        assert not room.done()
        assert await feed.next() == frame(0)
        await room
        assert feed.dropped == 0

    run(go)


def test_a_slow_reader_of_envelopes_gets_what_is_buffered_and_then_the_error(monkeypatch):
    monkeypatch.setattr("penstock.client.space.feed.ENVELOPES_MAX", 2)

    async def go():
        feed = Feed(lambda item: True)
        for number in range(3):
            feed._put(envelope("chat", number))
        assert [(await feed.next()).id, (await feed.next()).id] == ["0", "1"]
        with pytest.raises(PenstockError) as caught:
            await feed.next()
        assert caught.value.code == "SlowConsumer"

    run(go)


def test_a_feed_added_after_the_end_ends_with_the_same_error():
    async def go():
        feeds = Feeds()
        feeds.end(PenstockError(Refusal("Unreachable", "lost")))
        with pytest.raises(PenstockError, match="lost"):
            await feeds.add(lambda item: True).next()

    run(go)


def test_closing_drops_what_is_buffered():
    async def go():
        feed = Feed(lambda item: True)
        feed._put(frame(1))
        feed.close()
        feed._put(frame(2))
        assert await feed.next() is None

    run(go)


@pytest.mark.parametrize(
    ("wanted", "kind", "matches"),
    [
        ("chat", "chat", True),
        ("chat", "chatter", False),
        ("mcp/*", "mcp/request", True),
        ("mcp/*", "mcp", False),
        ("*", "anything", True),
        (("chat", "mcp/*"), "mcp/x", True),
    ],
)
def test_kinds_match_exactly_or_by_prefix(wanted, kind, matches):
    assert kinds(wanted)(kind) is matches
