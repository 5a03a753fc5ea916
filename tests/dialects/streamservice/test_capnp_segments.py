"""Segments of Cap'n Proto: the cost of hostile and shared content."""

from __future__ import annotations

import pytest

from penstock.dialects.streamservice import decode
from penstock.dialects.streamservice.capnp_segments import Message, WireError
from penstock.dialects.streamservice.wire import (
    FrameFault,
)
from tests.dialects.streamservice.reference import (
    TOPIC,
    built_chunk,
)
from tests.dialects.streamservice.test_wire import MAC, PREV, shared_text


def test_shared_content_is_paid_for_each_time() -> None:
    assert decode.read_block(shared_text(2000, 60_000)) == FrameFault("effort")
    shared = decode.read_block(shared_text(2, 64))
    assert not isinstance(shared, FrameFault)
    assert [part.text for part in shared.payloads] == ["x" * 63] * 2  # type: ignore[union-attr]


def test_reading_twice_is_allowed_and_reading_for_ever_is_not() -> None:
    root = Message(built_chunk(TOPIC, b"d" * 5_000, MAC, PREV)).root()
    assert root.data(1) == root.data(1)
    root.message.left = 5_000 // 8
    with pytest.raises(WireError, match="effort"):
        root.data(1)
