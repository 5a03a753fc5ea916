"""Simulated clients of the queue: what they send, and what they record."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from penstock.testing import World, clients


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
