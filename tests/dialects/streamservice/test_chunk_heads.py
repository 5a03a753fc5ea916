"""The cache of chunk heads never differs from a full parse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.wire import HEADS_MAX, Chunk, Heads, peek

TOPIC = b"ab" * 32


def chunk(data: bytes, *, prev: bytes = b"p" * 32, topic: bytes = TOPIC) -> bytes:
    return encode.chunk(topic, data, b"m" * 32, prev)


def test_a_head_that_was_seen_tells_the_topic_of_others_of_its_shape():
    heads = Heads()
    assert heads.topic(chunk(b"first")) is None
    heads.learn(chunk(b"first"))
    assert heads.topic(chunk(b"other", topic=b"cd" * 32)) == b"cd" * 32
    assert heads.topic(chunk(b"another length")) is None
    assert heads.topic(chunk(b"first") + bytes(8)) is None


@pytest.mark.promise("Relay", "a chunk of 16, 32 or 64 bytes is a chunk (flaw 1)")
@given(
    learned=st.lists(st.integers(0, 200), max_size=4),
    size=st.integers(0, 200),
    is_first=st.booleans(),
    flips=st.lists(st.tuples(st.integers(0, 130), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 20),
)
def test_it_never_tells_what_a_whole_look_would_not(learned, size, is_first, flips, cut):
    heads = Heads()
    frame = bytearray(chunk(b"x" * size, prev=b"" if is_first else b"p" * 32))
    for at, value in flips:
        frame[at % len(frame)] = value
    data = bytes(frame[: len(frame) - cut])
    for each in learned:
        heads.learn(chunk(b"y" * each))
    heads.learn(chunk(b"y" * size, prev=b""))
    if isinstance(peek(data), Chunk):
        heads.learn(data)
    topic = heads.topic(data)
    if topic is not None:
        found = peek(data)
        assert isinstance(found, Chunk)
        assert found.topic == topic


def test_the_memory_is_bounded():
    heads = Heads()
    for size in range(HEADS_MAX + 10):
        heads.learn(chunk(b"x" * size))
    assert len(heads.sizes) <= HEADS_MAX
