"""Subscriptions of strangers: bounded for each peer and for all, and none ends another's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from penstock.core.relay.bounds import RelayLimits
from penstock.server.relay import subscriber_peers
from penstock.server.relay.reports import RelayReady, decode
from penstock.server.relay.subscriber_peers import BURST_PEERS, SubscriberPeer, SubscriberPeers
from tests.integration import token_peers as peers
from tests.server.relay.test_process import task
from tests.server.relay.test_service import Running, Start, start
from tests.server_process import environment

__all__ = ["start"]

TCP = "tcp://127.0.0.1:0"
FLOOD = 2_000_000
"""Bytes of subscriptions; libzmq stores about fifty times as much."""
GROWTH_MAX = 50_000_000


def connect(run: Running) -> zmq.Socket[Any]:
    peer = run.context.socket(zmq.XSUB)
    peer.linger = 0
    peer.sndhwm = 0
    peer.connect(run.pub)
    return peer


def total(run: Running) -> int:
    return run.service._subscribers.peers.total


def cut(run: Running) -> int:
    return run.service._subscribers.peers.cut["subscriptions"]


@pytest.mark.promise(
    "Relay", "subscriptions are bounded for each peer and for all; a peer above the bound is disconnected"
)
def test_a_peer_with_too_many_subscriptions_is_disconnected_and_others_hear_on(start: Start) -> None:
    run = start(pub=TCP, limits=RelayLimits(peer_subscriptions_max=50))
    publisher = run.publisher()
    reader = run.subscriber(publisher.topic)
    run.subscribed(publisher.topic)
    flood = connect(run)
    for _ in range(200):
        flood.send(b"\x01" + peers.make_topic())
    run.wait(lambda: cut(run) and run.refused("subscriptions"))
    flood.close()
    run.wait(lambda: total(run) == 1)
    frame = publisher.chunk(b"still heard")
    assert reader.receive() == [publisher.topic + frame]


@pytest.mark.promise(
    "Hold under hostile conditions", "a peer of the relay that connects and subscribes again and again is disconnected"
)
def test_peers_that_come_and_go_have_a_rate_and_registered_topics_are_free(start: Start) -> None:
    """None of them holds too many, and each subscription costs the relay."""
    limits = RelayLimits(peer_subscriptions_max=20)
    run = start(pub=TCP, limits=limits)
    publishers = [run.publisher() for _ in range(3)]
    flood = [
        RawPeer(run) for _ in range(10 * BURST_PEERS)
    ]  # what they send is more than the rate allows in half a minute
    for peer in flood:
        peer.send(*[b"\1" + peers.make_topic() for _ in range(limits.peer_subscriptions_max)])
    run.wait(lambda: run.service._subscribers.peers.cut["rate"])
    for peer in flood:
        peer.socket.close()
    run.wait(lambda: not run.service._subscribers.peers._holders)  # libzmq has unsubscribed all of them
    for publisher in publishers:
        reader = run.subscriber(publisher.topic)
        run.subscribed(publisher.topic)
        frame = publisher.chunk(b"still heard")
        assert reader.receive() == [publisher.topic + frame]


class TestRates:
    MAX = 10

    def subscribe(self, held: SubscriberPeers, now_us: int, *, is_registered: bool = False) -> SubscriberPeer:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            peer = SubscriberPeer(os.fstat(ours.fileno()).st_ino, ours.fileno())
            peer.is_bounded, peer.address = True, "10.0.0.1"
            for _ in range(self.MAX):
                held.add(peer, peers.make_topic(), now_us, is_registered=is_registered)
        return peer

    def test_a_second_brings_as_many_as_one_peer_may_hold(self) -> None:
        held = SubscriberPeers(self.MAX, 10_000)
        assert not any(self.subscribe(held, 0).is_cut for _ in range(BURST_PEERS))
        assert self.subscribe(held, 0).is_cut
        assert not self.subscribe(held, 0, is_registered=True).is_cut
        assert not self.subscribe(held, 1_100_000).is_cut
        assert self.subscribe(held, 1_100_000).is_cut
        assert held.cut["rate"] == 2 and held.cut["subscriptions"] == 0

    def test_the_addresses_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subscriber_peers, "ADDRESSES_MAX", 2)
        held = SubscriberPeers(self.MAX, 10_000)
        assert all(held._charge(address, 0, 1) for address in "abca")
        assert list(held._addresses) == ["c", "a"]


def test_what_a_peer_has_sent_is_dropped_when_it_is_cut() -> None:
    """Otherwise libzmq reads and stores all of it before it sees the end of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        with sender, receiver:
            sender.sendall(b"x" * 300_000)
            peer = SubscriberPeer(os.fstat(receiver.fileno()).st_ino, receiver.fileno())
            assert peer.is_bounded and peer.address == "127.0.0.1"
            peer.cut()
            assert receiver.recv(1) == b""


def test_the_peer_that_holds_most_gives_way_at_the_bound_of_all(start: Start) -> None:
    run = start(pub=TCP, limits=RelayLimits(subscriptions_max=60))
    large, small = connect(run), connect(run)
    for _ in range(40):
        large.send(b"\x01" + peers.make_topic())
    run.wait(lambda: total(run) == 40)
    topics = [peers.make_topic() for _ in range(25)]
    for topic in topics:
        small.send(b"\x01" + topic)
    large.setsockopt(zmq.RECONNECT_IVL, -1)
    run.wait(lambda: cut(run) == 1)
    run.wait(lambda: all(topic in run.relay.early for topic in topics))


def test_a_long_name_counts_as_several_and_one_that_is_no_request_ends_its_connection(start: Start) -> None:
    run = start(pub=TCP)
    peer = connect(run)
    peer.send(b"\x01" + b"x" * 200)
    run.wait(lambda: total(run) == 4)
    monitor = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    peer.send(b"\x01" + b"y" * 2_000)
    assert monitor.poll(10_000)
    run.wait(lambda: not total(run) or run.refused("prefix") > 1)
    peer.disable_monitor()


class RawPeer:
    """A subscriber that sends what libzmq's own sockets filter."""

    def __init__(self, run: Running) -> None:
        host, _, port = run.pub.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        ready = b"\x05READY\x0bSocket-Type\0\0\0\x03SUB"
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\0NULL" + bytes(48)
        self.socket.sendall(greeting)
        self._read(len(greeting))
        self.socket.sendall(b"\x04" + bytes((len(ready),)) + ready)
        self._read(self._read(2)[1])

    def _read(self, size: int) -> bytes:
        data = self.socket.recv(size, socket.MSG_WAITALL)
        assert len(data) == size, "the relay closed the connection"
        return data

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(b"\0" + bytes((len(frame),)) + frame for frame in frames))


@pytest.mark.promise("Relay", "a peer ends its own subscriptions only, and counts once however often it subscribes")
def test_a_stranger_cannot_end_the_subscription_of_a_reader(start: Start) -> None:
    run = start(pub=TCP)
    publisher = run.publisher()
    topic = publisher.topic
    reader = run.subscriber(topic)
    run.subscribed(topic)
    stranger, last = RawPeer(run), peers.make_topic()
    stranger.send(*[b"\0" + topic] * 3, *[b"\1" + topic] * 3, *[b"\0" + topic] * 3, b"\1" + last)
    run.wait(lambda: last in run.relay.early)
    assert run.relay.topics[topic].subscribers == 1
    mark = peers.make_topic()
    stranger.send(*[b"\1" + topic] * 3, b"\1" + mark)
    run.wait(
        lambda: mark in run.relay.early
    )  # all of them are read: one from a peer that is gone would count as another's
    run.subscribed(topic, 2)
    stranger.socket.close()
    run.wait(lambda: last not in run.relay.early)
    run.wait(lambda: run.relay.topics[topic].subscribers == 1)
    frame = publisher.chunk(b"hello")
    assert reader.receive() == [topic + frame]


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4_096


@pytest.mark.promise("Relay", "a flood of subscriptions without credentials does not fill the relay's memory")
@pytest.mark.parametrize("size", [64, 400, 3_000])
def test_a_flood_of_subscriptions_leaves_the_memory_of_the_process_small(tmp_path: Path, size: int) -> None:
    command = [sys.executable, "-m", "penstock.server.relay.process"]
    context = peers.Sockets()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(msgspec.json.encode(task(tmp_path)) + b"\n")
        process.stdin.flush()
        ready = decode(process.stdout.read(int.from_bytes(process.stdout.read(4), "big")))[0]
        assert isinstance(ready, RelayReady)
        before = resident(process.pid)
        flood = context.socket(zmq.XSUB)
        flood.sndhwm = 0
        flood.connect(ready.pub)
        for number in range(FLOOD // size):
            name = peers.make_topic() if size == 64 else number.to_bytes(4, "big") * (size // 4)
            flood.send(b"\x01" + name)
        reader = context.socket(zmq.XSUB)
        reader.connect(ready.pub)
        topic = peers.make_topic()
        peak = before
        reader.send(b"\x01" + topic)
        push = peers.Publisher(context, ready.pull, topic, b"m" * 32)
        push.socket.send(peers.resume(topic, b"g" * 32))
        while not reader.poll(20):  # an answer: the relay has read what came before
            peak = max(peak, resident(process.pid))
            push.socket.send(peers.resume(topic, b"g" * 32))
        peak = max(peak, resident(process.pid))
        context.destroy(0)
        process.stdin.close()
        process.stdout.read()
    assert peak - before < GROWTH_MAX
