"""The frames of a kernel pipe: exact bytes, split anywhere, and invalid input."""

from __future__ import annotations

import itertools
import json
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.courier.wire.kernel_frames import (
    FRAME_MAX,
    METADATA_MAX,
    PAYLOAD_MAX,
    FrameDecoder,
    FrameEncoder,
    PipeFrame,
    WholeLines,
)


def frame(metadata: Any, payload: bytes = b"") -> bytes:
    """An encoder of its own, from the text of the format."""
    text = metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()
    return struct.pack(">II", len(text), len(payload)) + text + payload


@pytest.mark.promise("Stream Kernel", "pipe frames match byte by byte; each end numbers from 0")
def test_a_data_frame_is_these_bytes() -> None:
    encoder = FrameEncoder()
    metadata = b'{"type":"data","timestamp":1700000000000,"sequenceId":0}'
    expected = b"\x00\x00\x00\x38\x00\x00\x00\x03" + metadata + b"{}\n"
    assert encoder.data(1_700_000_000_000, b"{}\n") == expected
    assert b'"sequenceId":1}' in encoder.data(1_700_000_000_000, b"{}\n")


@pytest.mark.promise("Stream Kernel", "pipe frames match byte by byte; each end numbers from 0")
@pytest.mark.parametrize("kind", ["ping", "pong", "close"])
def test_other_frames_have_neither_number_nor_payload(kind: Any) -> None:
    encoder = FrameEncoder()
    assert encoder.control(7, kind) == frame(b'{"type":"%b","timestamp":7}' % kind.encode())
    assert encoder.next_id == 0, "only data is numbered"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (frame({"type": "data", "timestamp": 5, "sequenceId": 3}, b"x"), PipeFrame("data", b"x", 5, 3)),
        (frame({"type": "data"}, b""), PipeFrame("data", b"")),
        (frame({"type": "ping", "timestamp": 1.5}), PipeFrame("ping", b"", 1.5)),
        (frame({"type": "close", "reason": "done", "deep": [{}]}), PipeFrame("close")),
        (
            frame(b' { "sequenceId" : 0,\n"type":"data" } ', b"\x00\xff"),
            PipeFrame("data", b"\x00\xff", None, 0),
        ),
    ],
)
def test_frames_that_are_understood(data: bytes, expected: PipeFrame) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(data) == [expected]
    assert (decoder.failure, decoder.held, decoder.ignored) == (None, 0, 0)


@pytest.mark.promise(
    "Stream Kernel",
    "a pipe skips ping, close and unknown frames over TCP, and accepts any split of frames over WebSocket",
)
def test_a_type_that_is_not_known_is_passed_over_and_counted() -> None:
    decoder = FrameDecoder()
    frames = decoder.feed(frame({"type": "resize", "cols": 80}, b"skip") + frame({"type": "data"}, b"on"))
    assert [one.payload for one in frames] == [b"on"]
    assert decoder.ignored == 1


@pytest.mark.promise("Stream Kernel", "an invalid frame is reported and ends only its own pipe")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"", b"x"), "InvalidRequest"),
        (frame(b"nonsense"), "InvalidRequest"),
        (frame(b"[]"), "InvalidRequest"),
        (frame(b'"data"'), "InvalidRequest"),
        (frame(b"\xff\xfe"), "InvalidRequest"),
        (frame(b"[" * 60_000), "InvalidRequest"),
        (frame({"timestamp": 1}), "InvalidRequest"),
        (frame({"type": 7}), "InvalidRequest"),
        (frame({"type": "data", "sequenceId": "0"}), "InvalidRequest"),
        (struct.pack(">II", METADATA_MAX + 1, 0), "TooLarge"),
        (struct.pack(">II", 10, PAYLOAD_MAX + 1), "TooLarge"),
        (struct.pack(">II", 2**32 - 1, 2**32 - 1), "TooLarge"),
        (b"GET / HTTP/1.1\r\n\r\n", "TooLarge"),
        (b'{"type":"hello","version":"v1"}\n', "TooLarge"),
    ],
)
def test_what_is_no_frame_ends_the_pipe_with_a_reason(data: bytes, code: str) -> None:
    decoder = FrameDecoder()
    good = frame({"type": "data"}, b"before")
    assert [one.payload for one in decoder.feed(good + data)] == [b"before"], "what was whole is not lost"
    assert decoder.failure is not None
    assert decoder.failure.code == code
    assert decoder.failure.hint
    assert (decoder.held, decoder.feed(good)) == (0, []), "nobody knows where the next frame starts"


@pytest.mark.promise("Stream Kernel", "both lengths of a frame are checked before memory is allocated")
def test_lengths_are_refused_with_the_eighth_byte_and_never_allocated() -> None:
    decoder = FrameDecoder()
    claim = struct.pack(">II", 20, 0x7FFFFFFF)
    assert decoder.feed(claim[:7]) == []
    assert decoder.failure is None
    tracemalloc.start()
    decoder.feed(claim[7:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoder.failure is not None
    assert peak < 64 * 1024


@pytest.mark.promise("Stream Kernel", "both lengths of a frame are checked before memory is allocated")
def test_the_largest_frame_passes_both_ways_and_is_held_once() -> None:
    encoder, decoder = FrameEncoder(), FrameDecoder()
    payload = b"x" * PAYLOAD_MAX
    data = encoder.data(1, payload)
    most = 0
    found: list[PipeFrame] = []
    for start in range(0, len(data), 65_536):
        found += decoder.feed(data[start : start + 65_536])
        most = max(most, decoder.held)
    assert [one.payload for one in found] == [payload]
    assert most <= FRAME_MAX


KINDS = st.sampled_from(["data", "ping", "pong", "close", "unknown"])


@pytest.mark.promise("Stream Kernel", "chunks, frames and lines may be split anywhere")
@given(
    st.lists(st.tuples(KINDS, st.binary(max_size=200)), max_size=12),
    st.lists(st.integers(0, 3_000), max_size=40),
)
def test_chunks_may_be_cut_anywhere(frames: list[tuple[str, bytes]], cuts: list[int]) -> None:
    data = b"".join(frame({"type": kind, "timestamp": n}, body) for n, (kind, body) in enumerate(frames))
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    decoder = FrameDecoder()
    found = [one for start, end in itertools.pairwise(places) for one in decoder.feed(data[start:end])]
    assert [(one.kind, one.payload) for one in found] == [one for one in frames if one[0] != "unknown"]
    assert (decoder.failure, decoder.held) == (None, 0)


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_any_bytes_at_all_leave_the_decoder_in_order(chunks: list[bytes]) -> None:
    decoder = FrameDecoder()
    for chunk in chunks:
        decoder.feed(chunk)
        assert decoder.held <= sum(map(len, chunks))
        assert decoder.failure is None or decoder.failure.code in ("TooLarge", "InvalidRequest")


@pytest.mark.promise("Stream Kernel", "chunks, frames and lines may be split anywhere")
@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(1, 40))
def test_lines_are_whole_wherever_they_fit(chunks: list[bytes], limit: int) -> None:
    lines = WholeLines(limit)
    given_ = [piece for chunk in chunks for piece in lines.feed(chunk)]
    whole = b"".join(chunks)
    assert whole.startswith(b"".join(given_))
    assert len(whole) - len(b"".join(given_)) == lines.held < max(limit, 1)
    for piece in given_:
        assert 0 < len(piece) <= limit
        # A piece that ends within a line is a full one: the line alone is longer than the bound.
        assert piece.endswith(b"\n") or (len(piece) == limit and b"\n" not in piece)


def test_half_a_line_waits_for_its_end() -> None:
    lines = WholeLines()
    assert lines.feed(b'{"a":1}\n{"b"') == [b'{"a":1}\n']
    assert lines.feed(b":2}") == []
    assert lines.feed(b'\n{"c":3}\n\n') == [b'{"b":2}\n{"c":3}\n\n']
    assert lines.held == 0
