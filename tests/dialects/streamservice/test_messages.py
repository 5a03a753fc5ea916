"""The messages of token streams as values."""

from __future__ import annotations

from penstock.dialects.streamservice.messages import (
    Claims,
    StreamScope,
    parse_scope,
)
from tests.dialects.streamservice.reference import (
    TOPIC,
)


def test_scopes() -> None:
    scope = parse_scope(f"publish:stream:{TOPIC}")
    assert scope == StreamScope("publish", "stream", TOPIC)
    assert str(scope) == f"publish:stream:{TOPIC}"
    for wrong in ("publish:stream", "publish:stream:a:b", "publish::a", ""):
        assert parse_scope(wrong) is None
    assert Claims("s", 0, 0, (StreamScope("publish", "stream", "*"),)).allow("publish", "stream", TOPIC)
    assert not Claims("s", 0, 0, (StreamScope("*", "stream", "*"),)).allow("publish", "stream", TOPIC)
    assert not Claims("s", 0, 0, (StreamScope("publish", "*", TOPIC),)).allow("publish", "stream", TOPIC)
