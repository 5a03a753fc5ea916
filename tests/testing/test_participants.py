"""Simulated participants of spaces: the messages they read, and the streams they know."""

from __future__ import annotations

import doctest
from hashlib import sha256
from typing import Any

import pytest

from penstock.testing import World, clients
from penstock.testing.clients import KnownStream, KnownStreams, make_space, member, stream_of, token_of


def test_the_examples_in_the_docstrings_run() -> None:
    assert doctest.testmod(clients).failed == 0


def test_a_member_has_the_digest_of_its_token_and_its_kinds() -> None:
    assert member("ann", "chat", "mcp/*").token_digests == (sha256(b"ann-token").hexdigest(),)
    assert member("ann", "chat", "mcp/*").capabilities == ({"kind": "chat"}, {"kind": "mcp/*"})
    space = make_space("demo", "ann", "bob")
    assert list(space.participants) == ["ann", "bob"]
    assert all(one.capabilities == ({"kind": "*"},) for one in space.participants.values())


def test_the_stream_of_a_frame() -> None:
    assert stream_of(b"#stream-1#a#b") == "stream-1"
    with pytest.raises(ValueError, match="subsection not found"):
        stream_of(b"#stream-1")


OPENED = {"stream_id": "s1", "owner": "ann", "authorized_writers": ["ann"], "target": ["bob"]}


def applied(*envelopes: dict[str, Any]) -> KnownStreams:
    streams = KnownStreams()
    for envelope in envelopes:
        streams.apply(envelope)
    return streams


def gateway(kind: str, **payload: Any) -> dict[str, Any]:
    return {"kind": kind, "from": "gateway", "payload": payload}


OPEN = gateway("stream/open", **OPENED)
KNOWN = KnownStream("ann", ["ann"], ["bob"])


def test_streams_are_known_from_the_welcome_and_from_the_gateway() -> None:
    assert applied(OPEN) == {"s1": KNOWN}
    welcome = {"kind": "system/welcome", "from": "system:gateway", "payload": {"active_streams": [OPENED]}}
    assert applied(gateway("stream/open", **OPENED | {"stream_id": "old"}), welcome) == {"s1": KNOWN}
    assert applied(OPEN, gateway("stream/write-granted", stream_id="s1", authorized_writers=["ann", "bob"])) == {
        "s1": KnownStream("ann", ["ann", "bob"], ["bob"])
    }
    transferred = {"stream_id": "s1", "authorized_writers": ["bob"], "new_owner": "bob"}
    assert applied(OPEN, gateway("stream/ownership-transferred", **transferred)) == {
        "s1": KnownStream("bob", ["bob"], ["bob"])
    }
    assert applied(OPEN, {"kind": "stream/close", "from": "ann", "payload": {"stream_id": "s1"}}) == {}


@pytest.mark.parametrize(
    "envelope",
    [
        OPEN | {"from": "eve"},
        {"kind": "system/welcome", "from": "eve", "payload": {"active_streams": [OPENED]}},
        {"kind": "system/welcome", "from": "system:gateway", "payload": {}},
        {"kind": "stream/open", "from": "gateway", "payload": "s1"},
        gateway("stream/write-granted", stream_id="unknown", authorized_writers=["eve"]),
    ],
)
def test_what_the_gateway_did_not_say_opens_no_stream(envelope: dict[str, Any]) -> None:
    assert applied(envelope) == {}


def test_a_participant_cannot_forge_an_acknowledgement() -> None:
    forged = gateway("stream/write-granted", stream_id="s1", authorized_writers=["eve"]) | {"from": "eve"}
    assert applied(OPEN, forged) == {"s1": KNOWN}


def test_participants_know_who_they_are_and_send_unique_ids() -> None:
    world = World(seed=1, spaces=[make_space("demo", "ann", "bob")])
    ann, bob = world.join("demo", "ann"), world.join("demo", "bob")
    kinds: list[str] = []
    bob.on_envelope = lambda envelope: kinds.append(envelope["kind"])
    world.advance(ms=50)
    assert (ann.id, bob.id) == ("ann", "bob")
    sent = [client.send("chat", {"text": "hello"}) for client in (ann, bob, ann)]
    world.advance(ms=50)
    assert len(set(sent)) == 3
    assert [one["id"] for one in bob.envelopes if one["kind"] == "chat"] == sorted(
        sent, key=[one["id"] for one in ann.envelopes if one["kind"] == "chat"].index
    )
    assert kinds == bob.kinds()


def test_a_participant_answers_pings_and_is_kept() -> None:
    world = World(seed=1, spaces=[make_space("demo", "ann")])
    ann = world.join("demo", "ann")
    world.advance(ms=600_000)
    assert ann.closed is None


def test_a_wrong_token_ends_the_connection_with_a_reason() -> None:
    world = World(seed=1, spaces=[make_space("demo", "ann")])
    ann = world.join("demo", "ann", token_of("bob"))
    world.advance(ms=50)
    assert ann.id is None and ann.kinds() == ["system/error"]
    assert ann.closed is not None
