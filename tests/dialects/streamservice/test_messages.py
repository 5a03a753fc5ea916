"""The messages of token streams as values."""

from __future__ import annotations

from penstock.dialects.streamservice.messages import Claims, StreamScope
from tests.dialects.streamservice.reference import TOPIC


def test_scopes() -> None:
    assert str(StreamScope("publish", "stream", TOPIC)) == f"publish:stream:{TOPIC}"
    assert Claims("s", 0, 0, (StreamScope("publish", "stream", "*"),)).allow("publish", "stream", TOPIC)
    assert not Claims("s", 0, 0, (StreamScope("*", "stream", "*"),)).allow("publish", "stream", TOPIC)
    assert not Claims("s", 0, 0, (StreamScope("publish", "*", TOPIC),)).allow("publish", "stream", TOPIC)
