"""The parser of a WebSocket whose peer is not known yet."""

from __future__ import annotations

import asyncio
import random

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


def frame(payload: bytes, kind: int = 0x81, *, is_masked: bool = True) -> bytes:
    size, mask = len(payload), 0x80 if is_masked else 0
    head = (
        bytes((kind, mask | size))
        if size < 126
        else bytes((kind, mask | 126)) + size.to_bytes(2, "big")
        if size < 65_536
        else bytes((kind, mask | 127)) + size.to_bytes(8, "big")
    )
    return head + (bytes(4) if is_masked else b"") + payload


class Counted:
    """A parser that notes the sizes that it reports."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.inner = Parser()
        self.parser = CountingParser(self.inner)
        self.parser.collecting = self.sizes.append


def test_what_arrives_of_a_large_message_is_counted_until_it_is_taken() -> None:
    case = Counted()
    case.parser.feed_data(frame(b"x" * COUNTED))
    case.parser.taken(COUNTED)
    assert case.sizes == [], "small messages cost nothing"
    data = frame(b"x" * (COUNTED + 20))
    for start, end in ((0, -20), (-20, -10), (-10, len(data))):
        case.parser.feed_data(data[start:end])
    case.parser.taken(COUNTED + 20)
    assert case.sizes == [COUNTED + 10, COUNTED + 20, 0]
    assert case.inner.data == frame(b"x" * COUNTED) + data


def test_a_ping_between_fragments_does_not_take_them_off() -> None:
    case = Counted()
    case.parser.feed_data(frame(b"x" * 60_000, 0x01))
    for number in range(1, 101):
        case.parser.feed_data(frame(b"there", 0x89))
        case.parser.taken(5)
        case.parser.feed_data(frame(b"x" * 60_000, 0x00))
        assert case.parser.size == (number + 1) * 60_000
    assert case.sizes[-1] == 101 * 60_000
    case.parser.feed_data(frame(b"", 0x80))
    case.parser.taken(101 * 60_000)
    assert (case.parser.size, case.sizes[-1]) == (0, 0)


def test_a_small_message_does_not_take_off_the_large_one_that_came_with_it() -> None:
    case = Counted()
    case.parser.feed_data(frame(b"x") + frame(b"y" * 250_000, 0x01))
    case.parser.taken(1)
    assert (case.parser.size, case.sizes) == (250_000, [250_001])


def test_pings_that_are_taken_add_up_to_nothing() -> None:
    case = Counted()
    for _ in range(20_000):
        case.parser.feed_data(frame(b"four", 0x89))
        case.parser.taken(4)
    assert (case.parser.size, case.sizes) == (0, [])


@pytest.mark.parametrize("seed", range(20))
def test_the_count_is_exact_however_frames_are_cut_and_fragmented(seed: int) -> None:
    chance = random.Random(seed)
    case = Counted()
    payloads = [bytes(chance.choice((0, 1, 125, 126, 300, 65_535, 65_536, 70_000))) for _ in range(12)]
    data = b"".join(
        frame(payload, chance.choice((0x81, 0x01, 0x00, 0x89)), is_masked=chance.random() < 0.8) for payload in payloads
    )
    while data:
        size = chance.choice((1, 2, 3, 7, 13, 500, 65_536, 200_000))
        case.parser.feed_data(data[:size])
        data = data[size:]
    assert case.parser.size == sum(map(len, payloads))
    for payload in payloads:
        case.parser.taken(len(payload))
    assert case.parser.size == 0 and case.sizes[-1:] in ([], [0])
