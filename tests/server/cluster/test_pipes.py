"""Pipes between nodes: what they carry, and what ends them. The network is a list, so that a test can forge, repeat and lose frames."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.server.cells.link import CellLink
from penstock.server.cluster.pipes import CHUNK, HALF_OPEN_MAX, HELLO, SILENT_S, WINDOW, NodePipe, Pipes

SECRET = bytes(32)
FRAME = 45
"""Bytes of the head of a frame."""


class Network:
    """Two nodes, and what is on its way between them."""

    def __init__(self, *, secret_of_b: bytes = SECRET) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.got: dict[str, list[Any]] = {"a": [], "b": []}
        self.lost: list[str] = []
        self.pauses: list[bool] = []
        self.ends: dict[str, CellLink[Any]] = {}
        self.nodes = {"a": self._node("a", SECRET), "b": self._node("b", secret_of_b)}
        self.pipes: list[tuple[str, NodePipe]] = []

    def _node(self, name: str, secret: bytes) -> Pipes:
        def ready(peer: str, pipe: NodePipe) -> None:
            link: CellLink[Any] = CellLink(Any)
            link.received = self.got[name].append
            link.lost = lambda: self.lost.append(name)
            link.congested = self.pauses.append
            pipe.link = link
            link.connection_made(pipe)  # type: ignore[arg-type]  # it has what a link uses
            self.ends[name] = link
            self.pipes.append((name, pipe))

        def publish(subject: str, data: bytes) -> None:
            self.sent.append((subject, data))

        return Pipes("shop", name, secret, publish, entropy=os.urandom, opened=ready, accepted=ready)

    def deliver(self, change: Callable[[int, bytes], list[bytes]] = lambda number, data: [data]) -> None:
        """Deliver what is on its way, and what that leads to."""
        number = 0
        while self.sent:
            subject, data = self.sent.pop(0)
            for copy in change(number, data):
                self.nodes[subject.rpartition(".")[2]].received(copy)
            number += 1

    async def connect(self) -> None:
        self.nodes["a"].open("b")
        self.deliver()
        assert set(self.ends) == {"a", "b"}

    async def say(self, name: str, *messages: Any) -> None:
        for message in messages:
            self.ends[name].post(message)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def run(work: Callable[[Network], Coroutine[Any, Any, None]], **options: bytes) -> None:
    async def test() -> None:
        await work(Network(**options))

    asyncio.run(test())


def test_messages_go_both_ways_and_long_ones_are_cut() -> None:
    async def talk(net: Network) -> None:
        await net.connect()
        await net.say("a", "one", b"x" * (3 * CHUNK))
        assert len(net.sent) > 3
        net.deliver()
        await net.say("b", "two")
        net.deliver()
        assert net.got == {"b": ["one", b"x" * (3 * CHUNK)], "a": ["two"]}
        assert net.lost == []

    run(talk)


def test_a_node_without_the_secret_gets_no_pipe() -> None:
    async def talk(net: Network) -> None:
        net.nodes["a"].open("b")
        net.deliver()
        assert net.ends == {}
        assert net.nodes["b"].forged == 1

    run(talk, secret_of_b=bytes([1]) * 32)


@pytest.mark.promise("Cluster", "a frame between nodes that is forged or repeated changes nothing and is counted")
def test_forged_and_repeated_frames_are_dropped() -> None:
    async def talk(net: Network) -> None:
        await net.connect()
        await net.say("a", "one")
        _, frame = net.sent[0]
        forged = frame[:-1] + bytes([frame[-1] ^ 1])
        other_number = frame[:21] + (99).to_bytes(8, "big") + frame[29:]
        net.deliver(lambda number, data: [forged, other_number, data, data])
        assert (net.got["b"], net.lost) == (["one"], [])
        assert (net.nodes["b"].forged, net.nodes["b"].repeated) == (2, 1)
        net.nodes["a"].received(frame)  # back to its sender: the directions differ
        assert net.nodes["a"].forged == 1
        net.nodes["b"].received(b"junk")
        net.nodes["b"].received(b"Pen1" + bytes(60))
        net.nodes["b"].received(b"Pen0" + bytes(60))
        assert net.lost == []
        await net.say("a", "two")
        net.deliver()
        assert net.got["b"] == ["one", "two"]

    run(talk)


@pytest.mark.promise("Cluster", "what was recorded of a pipe between nodes opens no other pipe")
def test_a_recorded_pipe_cannot_be_played_again() -> None:
    async def talk(net: Network) -> None:
        record: list[bytes] = []

        def keep(number: int, data: bytes) -> list[bytes]:
            record.append(data)
            return [data]

        net.nodes["a"].open("b")
        net.deliver(keep)
        await net.say("a", "pay")
        net.deliver(keep)
        assert net.got["b"] == ["pay"]
        fresh = Network()
        for data in record:  # a node that has restarted knows nothing of the pipe
            fresh.nodes["b"].received(data)
        assert fresh.got["b"] == []
        assert fresh.ends == {}
        assert fresh.nodes["b"].forged > 0
        for data in record:  # the node that knows the pipe
            net.nodes["b"].received(data)
        assert net.got["b"] == ["pay"]

    run(talk)


@pytest.mark.parametrize("change", ["lost", "swapped"])
def test_a_gap_ends_the_pipe_on_both_ends(change: str) -> None:
    async def talk(net: Network) -> None:
        await net.connect()
        await net.say("a", "one")
        await net.say("a", "two")
        if change == "lost":
            net.sent.pop(0)
        else:
            net.sent.reverse()
        net.deliver()
        assert net.got["b"] == []
        assert sorted(net.lost) == ["a", "b"]

    run(talk)


def test_a_slow_peer_holds_back_the_sender() -> None:
    async def talk(net: Network) -> None:
        await net.connect()
        await net.say("a", *[b"x" * CHUNK for _ in range(2 * WINDOW // CHUNK)])
        on_their_way = sum(len(data) - FRAME for _, data in net.sent)
        assert on_their_way <= WINDOW + 2 * CHUNK
        assert net.pauses == [True]
        net.deliver()
        assert net.pauses == [True, False]
        assert len(net.got["b"]) == 2 * WINDOW // CHUNK

    run(talk)


def test_silence_ends_a_pipe_and_beats_keep_it() -> None:
    async def talk(net: Network) -> None:
        await net.connect()
        net.sent.clear()
        (_, one), (_, other) = net.pipes
        now_s = asyncio.get_running_loop().time()
        one.beat(now_s + 2)
        other.beat(now_s + 2)
        assert len(net.sent) == 2
        net.deliver()
        one.beat(now_s + SILENT_S + 1)
        assert one.is_over
        net.deliver()
        assert len(net.lost) == 2

    run(talk)


def test_hellos_are_bounded() -> None:
    async def talk(net: Network) -> None:
        hellos: list[bytes] = []
        for _ in range(HALF_OPEN_MAX + 5):
            net.nodes["a"]._asked.clear()
            net.nodes["a"].open("b")
            hellos.append(net.sent.pop()[1])
            net.sent.clear()
        assert all(data[4] == HELLO for data in hellos)
        for data in hellos:
            net.nodes["b"].received(data)
        assert len(net.nodes["b"]._pipes) == HALF_OPEN_MAX
        assert net.nodes["b"].repeated == 5

    run(talk)


@pytest.mark.promise("Cluster", "hellos that were recorded and are repeated keep no node out")
def test_repeated_hellos_keep_no_node_out() -> None:
    async def talk(net: Network) -> None:
        hellos: list[bytes] = []
        for _ in range(2 * HALF_OPEN_MAX):
            net.nodes["a"]._asked.clear()
            net.nodes["a"].open("b")
            hellos.append(net.sent.pop()[1])
        for data in hellos:
            net.nodes["b"].received(data)
        net.sent.clear()
        net.nodes["a"]._asked.clear()
        await net.connect()
        for data in hellos:
            net.nodes["b"].received(data)
        net.sent.clear()
        await net.say("a", "one")
        net.deliver()
        assert (net.got["b"], net.lost) == (["one"], [])
        assert len(net.nodes["b"]._pipes) <= HALF_OPEN_MAX + 1

    run(talk)


def test_a_frame_that_is_longer_than_any_of_a_node_costs_no_mac() -> None:
    async def talk(net: Network) -> None:
        await net.connect()
        await net.say("a", b"x" * (2 * CHUNK))
        _, frame = max(net.sent, key=lambda sent: len(sent[1]))
        net.deliver(lambda number, data: [frame + b"x", data] if number == 0 else [data])
        assert (net.nodes["b"].dropped, net.nodes["b"].forged) == (1, 0)
        assert (net.got["b"], net.lost) == ([b"x" * (2 * CHUNK)], [])

    run(talk)


def test_a_second_pipe_of_a_node_replaces_the_first() -> None:
    async def talk(net: Network) -> None:
        await net.connect()
        net.nodes["a"].open("b")
        net.deliver()
        assert sorted(net.lost) == ["a", "b"]
        await net.say("a", "one")
        net.deliver()
        assert net.got["b"] == ["one"]
        net.nodes["a"].close()
        net.deliver()
        assert sorted(net.lost) == ["a", "a", "b", "b"]

    run(talk)
