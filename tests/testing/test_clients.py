"""Simulated clients of the queue, and participants of spaces: what they send, and what they record."""

from __future__ import annotations

import doctest
from hashlib import sha256
from typing import Any

import pytest

from penstock.testing import World, clients
from penstock.testing.clients import KnownStream, KnownStreams, make_space, member, token_of


def env(id_: str) -> dict[str, Any]:
    return {"id": id_, "ts": "2026-01-01T00:00:00Z", "type": "job", "payload": None}


def test_the_examples_in_the_docstrings_run() -> None:
    assert doctest.testmod(clients).failed == 0


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_lines_are_read_however_they_are_cut(size: int) -> None:
    client = World(seed=1).connect()
    data = b'{"type":"ok","reqId":1}\n{"type":"deliver"}\n{"type":"ok","reqId":2}\n{"type":"half'
    for start in range(0, len(data), size):
        client.pipe.on_data(data[start : start + size])
    assert [line["type"] for line in client.lines] == ["ok", "deliver", "ok"]
    assert sorted(client.answers) == [1, 2]
    assert client.deliveries == [{"type": "deliver"}]


def test_each_request_has_its_own_number_and_its_own_answer() -> None:
    world = World(seed=1)
    client = world.connect()
    first = client.request("ping")
    client.send_line(client.frame("enqueue", to="s", env=env("a")), client.frame("stats", stream="absent"))
    last = client.request("ping")
    world.advance(ms=100)
    assert (first, last) == (1, 4)
    assert {number: answer["type"] for number, answer in client.answers.items()} == {
        1: "ok",
        2: "ok",
        3: "error",
        4: "ok",
    }
    assert client.answers[3]["code"] == "UnknownStream"


def test_bytes_are_sent_unchanged_and_other_request_ids_are_only_lines() -> None:
    world = World(seed=1)
    client = world.connect()
    client.send_line(b'{"type":"ping","reqId":"mine"}', b"{")
    world.advance(ms=100)
    assert [line.get("reqId") for line in client.lines][:1] == ["mine"]
    assert client.lines[1]["code"] == "InvalidJSON"
    assert client.answers == {}


def test_a_program_reacts_to_a_line_that_is_recorded_already() -> None:
    world = World(seed=1)
    client = world.connect()
    seen: list[int] = []

    def react(frame: dict[str, Any]) -> None:
        assert client.lines[-1] is frame
        seen.append(len(client.lines))
        if frame["type"] == "deliver":
            client.request("ack", id=frame["env"]["id"])

    client.on_line = react
    client.request("subscribe", stream="s", credit=1)
    client.request("enqueue", to="s", env=env("a"))
    world.advance(ms=100)
    assert seen == list(range(1, len(client.lines) + 1))
    assert world.stats("s")["depth"] == 0


def test_the_end_of_a_connection_is_recorded() -> None:
    world = World(seed=1)
    client, socket = world.connect(), world.subscribe("s", credit=1)
    assert client.closed is None and socket.closed is None
    world.crash(restart=False)
    assert client.closed == socket.closed == (1006, "the server is gone")
    assert world.connect().closed == (1006, "cut")


def test_a_subscribe_socket_takes_whole_messages_and_settles() -> None:
    world = World(seed=1)
    socket = world.subscribe("s")
    arrived: list[dict[str, Any]] = []
    socket.on_message = arrived.append
    socket.send({"credit": 1})
    client = world.connect()
    client.send_line(client.frame("enqueue", to="s", env=env("a")), client.frame("enqueue", to="s", env=env("b")))
    world.advance(ms=100)
    assert [message["deliver"]["id"] for message in socket.messages] == ["a"]
    socket.send(b'{"ack":"a"}')
    socket.send({"credit": 1})
    world.advance(ms=100)
    assert [message["deliver"]["id"] for message in socket.messages] == ["a", "b"]
    assert arrived == socket.messages
    assert (world.stats("s")["depth"], world.stats("s")["inflight"]) == (0, 1)


def test_a_member_has_the_digest_of_its_token_and_its_kinds() -> None:
    assert member("ann", "chat", "mcp/*").token_digests == (sha256(b"ann-token").hexdigest(),)
    assert member("ann", "chat", "mcp/*").capabilities == ({"kind": "chat"}, {"kind": "mcp/*"})
    space = make_space("demo", "ann", "bob")
    assert list(space.participants) == ["ann", "bob"]
    assert all(one.capabilities == ({"kind": "*"},) for one in space.participants.values())


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
