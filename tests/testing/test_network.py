"""The simulated network: order is kept, messages stay whole, slow readers are noticed, and cuts lose what is under way."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.testing.clock import Clock
from penstock.testing.network import HIGH_WATER, SimConnection


class Server:
    """The server's side, which notes what happens."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.events: list[str] = []

    def received(self, data: bytes) -> None:
        self.pieces.append(data)

    def lost(self) -> None:
        self.events.append("lost")

    def congested(self, on: bool) -> None:
        self.events.append("congested" if on else "relieved")


class Observer:
    """Sees all traffic and changes nothing."""

    def arriving(self, pipe: SimConnection, data: bytes) -> Callable[[], None] | None:
        return None

    def sent(self, pipe: SimConnection, messages: list[bytes]) -> None:
        return None


class Net:
    """One connection, and what its client reads."""

    def __init__(self, *, framed: bool = False, seed: int = 1) -> None:
        self.clock = Clock()
        self.server = Server()
        self.connection = SimConnection(1, self.clock, Random(seed), Observer(), framed=framed, latency_us=1_000)
        self.connection.endpoint = self.server
        self.read: list[bytes] = []
        self.closed: list[tuple[int, str]] = []
        self.connection.on_data = self.read.append
        self.connection.on_close = lambda code, reason: self.closed.append((code, reason))

    def run(self) -> None:
        while self.clock.step():
            pass


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_however_they_are_cut(seed: int) -> None:
    net = Net(seed=seed)
    data = bytes(range(256)) * 40
    net.connection.write(data)
    net.connection.send([data, b"end"])
    net.run()
    assert b"".join(net.server.pieces) == data and len(net.server.pieces) > 1
    assert b"".join(net.read) == data + b"end"


def test_a_message_stays_whole() -> None:
    net = Net(framed=True)
    for text in (b"a" * 10_000, b"b"):
        net.connection.write(text)
    net.connection.send([b"c" * 10_000, b"d"])
    net.run()
    assert net.server.pieces == [b"a" * 10_000, b"b"]
    assert net.read == [b"c" * 10_000, b"d"]


def test_a_client_that_does_not_read_congests_its_connection_until_it_does() -> None:
    net = Net()
    net.connection.pause()
    net.connection.send([b"." * (HIGH_WATER + 1)])
    net.run()
    assert (net.connection.buffered, net.read, net.server.events) == (HIGH_WATER + 1, [], ["congested"])
    net.connection.resume()
    net.run()
    assert (net.connection.buffered, net.server.events) == (0, ["congested", "relieved"])


def test_a_held_connection_is_read_when_it_is_released() -> None:
    net = Net(framed=True)
    net.connection.hold(True)
    net.connection.write(b"a")
    net.run()
    assert net.server.pieces == []
    net.connection.hold(False)
    net.run()
    assert net.server.pieces == [b"a"]


def test_a_cut_loses_what_is_under_way_and_both_sides_learn_of_it() -> None:
    net = Net()
    net.connection.write(b"a")
    net.connection.send([b"b"])
    net.connection.cut()
    assert net.closed == [(1006, "cut")] and net.server.events == []
    net.run()
    assert (net.server.pieces, net.read, net.server.events) == ([], [], ["lost"])


def test_a_close_waits_until_everything_written_was_read() -> None:
    net = Net()
    net.connection.send([b"last words"])
    net.connection.close(1001, "stopping")
    net.connection.send([b"too late"])
    assert net.closed == []
    net.run()
    assert b"".join(net.read) == b"last words"
    assert (net.closed, net.server.events) == ([(1001, "stopping")], ["lost"])


def test_a_crash_of_the_server_ends_the_connection_for_the_client_alone() -> None:
    net = Net()
    net.connection.crash()
    net.run()
    assert (net.closed, net.server.events) == ([(1006, "the server is gone")], [])
