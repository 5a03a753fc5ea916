"""Frames of the fan-out bench: they can be read back, and the counts are exact."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.fanout.frames import (
    BINARY,
    CLOSE,
    KEY,
    PING,
    PONG,
    TEXT,
    FrameBlocks,
    FrameTally,
    frame,
    mask,
    message,
)


def plain(first, payload):
    """A message as a server sends it: not masked."""
    made = message(first, payload)
    at = made.index(KEY)
    return bytes([first, made[1] & 0x7F]) + made[2:at] + payload


def unmasked(data):
    """What a server makes of a client's frames: the payloads."""
    found = []
    while data:
        size, head = data[1] & 0x7F, 2
        if size >= 126:
            head += 2 if size == 126 else 8
            size = int.from_bytes(data[2:head], "big")
        assert data[0] == BINARY and data[1] & 0x80 and data[head : head + 4] == KEY
        found.append(mask(data[head + 4 : head + 4 + size]))
        data = data[head + 4 + size :]
    return found


def fed(tally, wire, cuts):
    """Feed bytes in pieces, as sockets give them."""
    rest = b""
    edges = sorted({0, len(wire), *(cut % (len(wire) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        data = rest + wire[start:stop]
        rest = data[tally.take(data) :]
    assert rest == b""


class TestBlocks:
    @pytest.mark.parametrize("size", [12, 100, 113, 116, 300])
    def test_a_block_numbers_every_frame_and_keeps_the_rest(self, size):
        blocks = FrameBlocks("stream-12", size, 5)
        for number in (0, 7, 19, 20, 12_345_678, 3):
            assert unmasked(bytes(blocks.make(number))) == [
                b"#stream-12#" + (b"%08d%04d" % (number, place)).ljust(size, b"x") for place in range(5)
            ]

    @pytest.mark.parametrize(("size", "count"), [(11, 5), (100, 0), (100, 10_001)])
    def test_what_cannot_be_numbered_is_refused(self, size, count):
        with pytest.raises(ValueError, match="at least"):
            FrameBlocks("stream-1", size, count)


FRAMES = st.tuples(st.just(BINARY), st.integers(0, 3), st.integers(12, 300))
OTHERS = st.tuples(st.sampled_from([TEXT, PING, PONG]), st.just(0), st.sampled_from([0, 5, 125, 126, 70_000]))


class TestTally:
    @given(
        st.lists(st.one_of(FRAMES, FRAMES, OTHERS), max_size=30),
        st.lists(st.integers(0, 100_000), max_size=8),
    )
    def test_everything_is_counted_however_it_is_cut(self, messages, cuts):
        wire = b""
        for first, stream, size in messages:
            payload = b"#stream-%d#" % stream + b"x" * size if first == BINARY else b"y" * size
            wire += plain(first, payload)
        tally = FrameTally()
        fed(tally, wire, cuts)
        kinds = [first for first, *_ in messages]
        assert tally.count == kinds.count(BINARY)
        assert [len(text) for text in tally.texts] == [size for first, _, size in messages if first == TEXT]
        assert len(tally.pings) == kinds.count(PING)

    @pytest.mark.promise(
        "Benchmarks and robustness",
        "`penstock bench fanout` accounts for every delivery, targeted and broadcast",
    )
    @given(st.lists(st.booleans(), min_size=1, max_size=80), st.lists(st.integers(0, 10_000), max_size=8))
    def test_the_newest_number_tells_how_many_were_dropped(self, kept, cuts):
        payloads = unmasked(b"".join(_blocks(len(kept))))
        arrived = [payload for payload, is_kept in zip(payloads, kept, strict=False) if is_kept]
        tally = FrameTally(block=4)
        fed(tally, b"".join(plain(BINARY, payload) for payload in arrived), cuts)
        assert tally.count == len(arrived)
        assert tally.position == max((place + 1 for place, is_kept in enumerate(kept) if is_kept), default=0)

    @pytest.mark.promise(
        "Benchmarks and robustness",
        "`penstock bench fanout` accounts for every delivery, targeted and broadcast",
    )
    @pytest.mark.parametrize("order", [[0, 1, 1], [1, 0], [0, 2, 1]])
    def test_frames_that_come_twice_or_out_of_order_are_reported(self, order):
        *before, last = [plain(BINARY, unmasked(_numbered(number))[0]) for number in order]
        tally = FrameTally(block=4)
        fed(tally, b"".join(before), [])
        with pytest.raises(ValueError, match="twice, or out of order"):
            fed(tally, last, [])

    def test_a_close_says_why(self):
        tally = FrameTally()
        fed(tally, plain(CLOSE, b"\x03\xe8too slow"), [])
        assert tally.closed == b"too slow"

    def test_bytes_that_are_no_message_are_refused(self):
        with pytest.raises(ValueError, match="began with the byte 0x7b"):
            FrameTally().take(b'{"a":1}' + bytes(200))


def _blocks(count):
    made = FrameBlocks("stream-1", 100, 4)
    return [bytes(made.make(number)) for number in range(-(-count // 4))]


def _numbered(number):
    return frame("stream-1", 100, b"%08d%04d" % divmod(number, 4))
