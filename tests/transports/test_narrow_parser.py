"""The parser of a WebSocket whose peer is not known yet."""

from __future__ import annotations

import asyncio

import pytest

from penstock.transports import narrow_parser
from penstock.transports.narrow_parser import COUNTED, HEADS, CountingParser, NarrowParser


class Parser:
    def __init__(self) -> None:
        self.data = b""
        self.is_ended = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        self.is_ended = True


class Socket(asyncio.Transport):
    is_paused = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Case:
    """A parser for 100 bytes and the heads of frames."""

    def __init__(self) -> None:
        self.inner, self.socket = Parser(), Socket()
        self.refused = asyncio.Event()
        self.parser = NarrowParser(self.inner, self.socket, 100, self.refused.set)


def test_what_fits_is_passed_on_and_the_rest_waits_until_the_peer_is_known() -> None:
    async def go() -> None:
        case = Case()
        case.parser.feed_data(b"a" * 100)
        assert not case.socket.is_paused
        case.parser.feed_data(b"b" * HEADS + b"c")
        case.parser.feed_data(b"d")
        assert case.inner.data == b"a" * 100 + b"b" * HEADS and case.socket.is_paused
        assert case.parser.widen() is case.inner
        assert case.inner.data.endswith(b"bcd") and not case.socket.is_paused

    asyncio.run(go())


def test_the_rest_is_dropped_when_the_peer_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow_parser, "PATIENCE_S", 0.0)

    async def go() -> None:
        case = Case()
        case.parser.feed_data(b"x" * 100_000)
        assert case.socket.is_paused
        async with asyncio.timeout(5):
            await case.refused.wait()
        await asyncio.sleep(0)
        assert not case.socket.is_paused
        case.parser.feed_data(b"y" * 100_000)
        assert len(case.inner.data) == 100 + HEADS
        case.parser.feed_eof()
        assert case.inner.is_ended

    asyncio.run(go())


def test_what_arrives_of_a_large_message_is_counted_until_it_is_taken() -> None:
    sizes: list[int] = []
    inner = Parser()
    parser = CountingParser(inner, sizes.append)
    parser.feed_data(b"x" * COUNTED)
    parser.taken()
    assert sizes == [], "small messages cost nothing"
    parser.feed_data(b"x" * COUNTED)
    parser.feed_data(b"x" * 10)
    parser.feed_data(b"x" * 10)
    parser.taken()
    assert sizes == [COUNTED + 10, COUNTED + 20, 0]
    assert len(inner.data) == 2 * COUNTED + 20
