"""Unusual bytes: no message breaks a session, and no invalid text reaches the journal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.dialects.mew.driving import GatewayDriver, kinds

TEXT = st.sampled_from(["", "p1", "p2", "demo", "stream-1", "x", "\\ud800", "\\u0000", "é", "a/b", "x" * 300])
ATOM = st.one_of(
    TEXT.map(lambda text: f'"{text}"'),
    st.sampled_from(["null", "true", "0", "-1", "1.5", "1e400", "9" * 30, "-" + "9" * 30, "[]", "{}"]),
)
VALUE = st.recursive(
    ATOM,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
        st.dictionaries(
            st.sampled_from(["kind", "target", "stream_id", "recipient", "\\ud800", "a"]), inner, max_size=3
        ).map(lambda found: "{" + ",".join(f'"{key}":{value}' for key, value in found.items()) + "}"),
    ),
    max_leaves=6,
)
KIND = st.sampled_from(
    [
        "chat",
        "x",
        "system/join",
        "system/heartbeat",
        "stream/request",
        "stream/close",
        "stream/grant-write",
        "stream/revoke-write",
        "stream/transfer-ownership",
        "capability/grant",
        "capability/revoke",
        "space/invite",
        "space/kick",
        "\\ud800",
    ]
).map(lambda kind: f'"{kind}"')
PAYLOAD = st.dictionaries(
    st.sampled_from(
        [
            "text",
            "target",
            "stream_id",
            "participant_id",
            "new_owner",
            "recipient",
            "capabilities",
            "initial_capabilities",
            "grant_id",
            "reason",
            "overflow",
            "direction",
            "space",
            "token",
            "participant",
        ]
    ),
    st.one_of(VALUE, VALUE.map(lambda value: f"[{value}]"), st.just('[{"kind":"*"}]')),
    max_size=5,
).map(lambda found: "{" + ",".join(f'"{key}":{value}' for key, value in found.items()) + "}")
MESSAGE = st.dictionaries(
    st.sampled_from(
        ["protocol", "id", "ts", "from", "to", "correlation_id", "context", "type", "\\ud800", "\\u006bind"]
    ),
    VALUE,
    max_size=4,
).flatmap(
    lambda found: st.tuples(st.one_of(KIND, VALUE), st.one_of(PAYLOAD, VALUE)).map(
        lambda two: (
            "{"
            + ",".join(f'"{key}":{value}' for key, value in (found | {"kind": two[0], "payload": two[1]}).items())
            + "}"
        ).encode()
    )
)


@pytest.mark.promise("MEW gateway", "no bytes of a peer break its session or reach the journal unreadable")
@hypothesis_settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.one_of(MESSAGE, st.binary(max_size=12), st.binary(max_size=6).map(lambda data: b"#" + data)),
        max_size=12,
    )
)
def test_no_message_breaks_a_session_or_a_row(sent: list[Any]) -> None:
    driver = GatewayDriver()
    p1, p2 = driver.joined("p1", "p2")
    driver.open_stream(p1)
    for data in sent:
        if p1.is_open:
            p1.put(data)
            driver.run()
            p1.received()
    for row in driver.journal.rows:
        for text in (row.channel, row.id, row.kind, row.sender, row.peer, row.corr, row.reason, row.meta):
            if text is not None:
                text.encode()
        if row.meta is not None:
            msgspec.json.decode(row.meta)
        if row.body is not None and row.event != "frame":
            msgspec.json.decode(row.body)
    if p2.is_open:
        p2.received()
        assert "chat" in kinds(each for each in p2.send({"kind": "chat", "payload": {"text": "alive"}}))
