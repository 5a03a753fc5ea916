"""The relay's sockets: real ZeroMQ, a service in a thread, and peers written from the protocol's description alone."""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zmq
from nacl.signing import SigningKey
from zmq.utils.monitor import recv_monitor_message

from penstock.core.relay.bounds import RelayLimits
from penstock.core.relay.topic import Remembered, hash_of
from penstock.dialects.streamservice.signatures import Registrar, TrustStore
from penstock.server.relay.reports import (
    MessageRelayed,
    RelayReport,
    RelayStopped,
    SubscribersChanged,
    TopicCounts,
    TopicExpired,
    TopicRegistered,
)
from penstock.server.relay.service import TERMINATE, StreamService
from penstock.server.relay.subscriptions import BURST, RelaySettings
from penstock.transports.zeromq import CurveKeys, EndpointError
from tests.integration import token_peers as peers
from tests.integration.token_peers import Publisher, Subscriber

KEY = SigningKey(b"k" * 32)
STRANGER = SigningKey(b"s" * 32)
MAC_KEY = b"m" * 32
PATIENCE_S = 15.0
SILENCE_S = 0.15
"""How long nothing has to come where nothing may."""


class Running:
    """A service in a thread."""

    def __init__(self, folder: Path, remembered: list[Remembered] | None = None, **settings: Any) -> None:
        self.context = peers.Sockets()
        self.told: list[RelayReport] = []
        place = {"pub": f"ipc://{folder}/p/pub.sock", "pull": f"ipc://{folder}/p/pull.sock"}
        self.service = StreamService(
            "test",
            self.context,
            RelaySettings(**{**place, **settings}),
            Registrar(TrustStore({"us": KEY.verify_key.encode()})),
            self.told.extend,
        )
        self.service.remember(remembered or [])
        self.stopped: RelayStopped | None = None
        self.error: BaseException | None = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        while not ready.wait(0.01):
            if not self._thread.is_alive():
                assert self.error is not None
                self.context.destroy(0)
                raise self.error
        self.pub, self.pull = (endpoint for _, endpoint in self.service.registrations())

    def _run(self, ready: threading.Event) -> None:
        try:
            self.stopped = self.service.run(ready.set)
        except BaseException as error:
            self.error = error

    def publisher(self, topic: bytes | None = None, *, is_registered: bool = True) -> Publisher:
        publisher = Publisher(self.context, self.pull, topic or peers.make_topic(), MAC_KEY)
        if is_registered:
            publisher.register(KEY)
        return publisher

    def subscriber(self, topic: bytes) -> Subscriber:
        return Subscriber(self.context, self.pub, topic, MAC_KEY)

    def wait(self, what: Callable[[], Any]) -> Any:
        """Until it is so. The loop is another thread's."""
        deadline = time.monotonic() + PATIENCE_S
        step = threading.Event()
        while not (found := what()):
            assert time.monotonic() < deadline, "it never came to be"
            step.wait(0.005)
        return found

    def subscribed(self, topic: bytes, count: int = 1) -> None:
        self.wait(lambda: topic in self.relay.topics and self.relay.topics[topic].subscribers >= count)

    @property
    def relay(self) -> Any:
        return self.service.relay

    def refused(self, reason: str) -> int:
        return self.service.stats.refused.get(reason, 0)

    def stop(self) -> RelayStopped:
        if self._thread.is_alive():
            control = self.context.socket(zmq.PAIR)
            control.connect(self.service.control)
            control.send(TERMINATE)
            self._thread.join(PATIENCE_S)
            control.close(0)
        assert not self._thread.is_alive()
        assert self.error is None, self.error
        assert self.stopped is not None
        return self.stopped

    def close(self) -> None:
        try:
            self.stop()
        finally:
            self.context.destroy(0)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Running] = []

    def start(**settings: Any) -> Running:
        running.append(Running(tmp_path, **settings))
        return running[-1]

    yield start
    for each in running:
        if not each.context.closed:
            each.close()


# Relaying


@pytest.mark.promise("Relay", "messages are held, flushed once, forwarded and kept, byte for byte")
def test_chunks_are_held_then_flushed_then_forwarded_byte_for_byte(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    topic = publisher.topic
    sent = [publisher.chunk(peers.token(f"t{no}")) for no in range(3)]
    run.wait(lambda: topic in run.relay.topics and run.relay.topics[topic].seq == 3)
    subscriber = run.subscriber(topic)
    assert [subscriber.receive() for _ in range(3)] == [[topic + frame] for frame in sent]
    later = publisher.chunk(peers.token("later"))
    assert subscriber.receive() == [topic + later]


@pytest.mark.promise("Relay", "messages are held, flushed once, forwarded and kept, byte for byte")
def test_blocks_pass_as_their_three_frames(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    subscriber = run.subscriber(publisher.topic)
    run.subscribed(publisher.topic)
    for texts in (["a", "b"], ["c"]):
        frames = publisher.block(texts)
        assert subscriber.receive() == frames


@pytest.mark.promise("Relay", "a chunk of 16, 32 or 64 bytes is a chunk (flaw 1)")
@pytest.mark.parametrize("size", [0, 16, 32, 64])
def test_a_chunk_of_any_size_is_a_chunk(start: Start, size: int) -> None:
    """Sizes that other services take for a signature or a request to resume."""
    run = start()
    publisher = run.publisher()
    subscriber = run.subscriber(publisher.topic)
    run.subscribed(publisher.topic)
    frame = publisher.chunk(b"x" * size)
    assert subscriber.receive() == [publisher.topic + frame]


@pytest.mark.promise("Relay", "only a subscription to a whole topic receives messages (flaws 5, 20)")
def test_only_a_whole_topic_hears_something(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    topic = publisher.topic
    snoops = [run.subscriber(prefix) for prefix in (b"", topic[:1], topic[:63], topic + b"0", topic.upper())]
    subscriber = run.subscriber(topic)
    run.subscribed(topic)
    run.wait(lambda: run.refused("prefix") == len(snoops))
    publisher.chunk(b"secret")
    assert subscriber.receive() is not None
    assert [snoop.receive(0.0) for snoop in snoops] == [None] * len(snoops)


def test_what_is_no_message_is_refused_and_counted(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    push = publisher.socket
    push.send(b"junk")
    push.send(publisher.topic)
    push.send_multipart([publisher.topic, b"x"])
    push.send_multipart([publisher.topic, b"x", b"y" * 17])
    push.send_multipart([publisher.topic, b"x", b"y" * 16, b"z"])
    push.send_multipart([b"x" * 63, b"x", b"y" * 16])
    run.wait(lambda: sum(run.service.stats.refused.values()) == 6)
    assert run.refused("block") == 4
    subscriber = run.subscriber(publisher.topic)
    run.subscribed(publisher.topic)
    frame = publisher.chunk(b"fine")
    assert subscriber.receive() == [publisher.topic + frame]


@pytest.mark.promise("Relay", "the signer can extend its topic, and another signer cannot take it over (flaw 8)")
def test_only_trusted_signers_register_and_no_other_takes_a_topic_over(start: Start) -> None:
    run = start()
    topic = peers.make_topic()
    publisher = run.publisher(topic, is_registered=False)
    publisher.register(STRANGER)
    run.wait(lambda: run.refused("signer"))
    publisher.register(KEY, claims=False)
    run.wait(lambda: run.refused("claims"))
    publisher.register(KEY, seconds=-10)
    run.wait(lambda: run.refused("exp"))
    nonce = secrets.token_bytes(16)
    publisher.register(KEY, nonce=nonce)
    publisher.register(KEY, nonce=nonce)
    run.wait(lambda: run.refused("nonce"))
    assert list(run.relay.topics) == [topic]


@pytest.mark.promise("Relay", "bytes, topics and messages are bounded (flaw 17)")
def test_a_message_above_the_bound_is_dropped_and_a_flood_ends_its_connection(start: Start) -> None:
    run = start(limits=RelayLimits(message_max=1_000))
    publisher = run.publisher()
    subscriber = run.subscriber(publisher.topic)
    run.subscribed(publisher.topic)
    publisher.chunk(b"x" * 1_100)
    run.wait(lambda: run.relay.totals.oversized)
    other = run.publisher(publisher.topic)
    publisher.socket.send(b"x" * 100_000)
    frame = other.chunk(b"small")
    assert subscriber.receive() == [publisher.topic + frame]


# Resume


@pytest.mark.promise("Relay", "lost messages are counted, and a missing mark is reported (flaws 13, 14)")
def test_resume_comes_in_where_publishers_push(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    topic = publisher.topic
    subscriber = run.subscriber(topic)
    run.subscribed(topic)
    sent, marks = [], []
    for no in range(3):
        sent.append(publisher.chunk(b"%d" % no))
        marks.append(publisher.mac)
        subscriber.receive()
    publisher.socket.send(peers.resume(topic, marks[0]))
    assert [subscriber.receive() for _ in range(2)] == [[topic + frame] for frame in sent[1:]]


@pytest.mark.promise("Relay", "lost messages are counted, and a missing mark is reported (flaws 13, 14)")
def test_resume_works_on_the_subscriber_socket_and_a_missing_mark_is_reported(start: Start) -> None:
    run = start(limits=RelayLimits(replay_interval_ms=1))
    publisher = run.publisher()
    topic = publisher.topic
    subscriber = run.subscriber(topic)
    run.subscribed(topic)
    blocks = []
    for no in range(3):
        blocks.append(publisher.block([str(no)]))
        assert subscriber.receive() == blocks[-1]
    subscriber.ask_again(blocks[1][2])
    assert subscriber.receive() == blocks[2]
    subscriber.ask_again(b"g" * 16)
    assert subscriber.receive() == [topic, b"\x03" + b"g" * 16]
    run.wait(lambda: run.relay.totals.resumes == 2)


@pytest.mark.promise("Relay", "lost messages are counted, and a missing mark is reported (flaws 13, 14)")
def test_resume_may_be_a_message_of_a_raw_subscriber(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    topic = publisher.topic
    raw = run.context.socket(zmq.XSUB)
    raw.linger = 0
    raw.connect(run.pub)
    raw.send(b"\x01" + topic)
    run.subscribed(topic)
    first = publisher.chunk(b"one")
    mark = publisher.mac
    second = publisher.chunk(b"two")
    assert [raw.recv() for _ in range(2)] == [topic + first, topic + second]
    raw.send(b"\x02" + peers.resume(topic, mark))
    assert raw.recv() == topic + second
    raw.send(b"\x07what")
    run.wait(lambda: run.refused("upstream"))


@pytest.mark.promise("Relay", "a subscriber that left can resume its stream (flaws 2, 4)")
def test_a_reconnected_subscriber_is_sent_what_it_missed(start: Start) -> None:
    run = start(limits=RelayLimits(replay_interval_ms=1))
    publisher = run.publisher()
    topic = publisher.topic
    subscriber = run.subscriber(topic)
    run.subscribed(topic)
    first = publisher.chunk(b"one")
    assert subscriber.receive() is not None
    subscriber.socket.close(0)
    run.wait(lambda: run.relay.topics[topic].subscribers == 0)
    second = publisher.chunk(b"two")
    again = run.subscriber(topic)
    assert [again.receive(), again.receive()] == [[topic + first], [topic + second]]


def _connected(run: Running, topic: bytes) -> zmq.Socket[Any]:
    """A subscriber whom the service has greeted."""
    socket = run.context.socket(zmq.SUB)
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    socket.linger = 0
    socket.set(zmq.RECONNECT_IVL, 20)
    socket.subscribe(topic)
    socket.connect(run.pub)
    assert monitor.poll(PATIENCE_S * 1000)
    recv_monitor_message(monitor)
    socket.disable_monitor()
    monitor.close()
    return socket


@pytest.mark.promise("Relay", "only a subscription to a whole topic receives messages (flaws 5, 20)")
def test_a_strangers_message_never_gives_it_anothers_topic(start: Start) -> None:
    """libzmq takes the reader of such a message for the next subscriber in line."""
    run = start()
    publishers = [run.publisher() for _ in range(2)]
    run.wait(lambda: len(run.relay.topics) == 2)
    stranger = run.context.socket(zmq.XSUB)
    stranger.linger = 0
    stranger.connect(run.pub)
    stranger.send(b"\x01" + b"0" * 64)
    run.wait(lambda: run.relay.early)
    # Hold the loop, so that everything that follows waits for it together.
    reader, writer = os.pipe()
    held, released = threading.Event(), threading.Event()

    def hold() -> None:
        os.read(reader, 1)
        held.set()
        released.wait(PATIENCE_S)

    run.service.watch(reader, hold)
    os.write(writer, b"x")
    run.wait(held.is_set)
    stranger.send(b"\x02nonsense")
    subscribers = [_connected(run, publisher.topic) for publisher in publishers]
    for _ in range(5):  # by the time these are greeted, what the others sent has come
        _connected(run, b"nothing")
    released.set()
    # A socket subscribes again when it is polled.
    run.wait(
        lambda: (
            [socket.poll(0) for socket in subscribers] and all(topic.subscribers for topic in run.relay.topics.values())
        )
    )
    frames = [publisher.chunk(b"for one reader") for publisher in publishers]
    for socket, publisher, frame in zip(subscribers, publishers, frames, strict=True):
        assert socket.poll(PATIENCE_S * 1000)
        assert socket.recv() == publisher.topic + frame
    assert not stranger.poll(SILENCE_S * 1000)
    run.stop()
    os.close(writer)
    os.close(reader)


def test_who_subscribes_beyond_the_bound_of_early_ones_is_not_let_in(start: Start) -> None:
    run = start(limits=RelayLimits(early_max=1))
    first, second = run.publisher(is_registered=False), run.publisher(is_registered=False)
    kept = run.subscriber(first.topic)
    run.wait(lambda: first.topic in run.relay.early)
    forgotten = run.subscriber(second.topic)
    run.wait(lambda: run.relay.totals.early_forgotten)
    for publisher in (second, first):
        publisher.register(KEY)
        publisher.chunk(b"hello")
    assert kept.receive() is not None
    assert forgotten.receive(SILENCE_S) is None


@pytest.mark.promise("Relay", "a flood of subscriptions does not starve messages (flaw 18)")
def test_a_flood_of_subscriptions_leaves_time_for_the_rest(start: Start) -> None:
    run = start()
    flood = run.context.socket(zmq.XSUB)
    flood.linger = 0
    flood.connect(run.pub)
    flood.send(b"\x01" + b"0" * 64)
    run.wait(lambda: run.relay.early)
    # Hold the loop until the flood waits for it; then look at it once a turn.
    reader, writer = os.pipe()
    held, released = threading.Event(), threading.Event()
    heard = [1]

    def look() -> None:
        if not held.is_set():
            held.set()
            released.wait(PATIENCE_S)
        heard.append(len(run.relay.early))

    run.service.watch(reader, look)
    os.write(writer, b"x")
    run.wait(held.is_set)
    for _ in range(3 * BURST):
        flood.send(b"\x01" + peers.make_topic())
    for _ in range(5):  # by the time these are greeted, the flood has come
        _connected(run, b"nothing")
    released.set()
    run.wait(lambda: heard[-1] == 3 * BURST + 1)
    assert max(after - before for before, after in pairwise(heard)) <= BURST
    run.stop()
    os.close(writer)
    os.close(reader)


# Where it is, and who reaches it


@pytest.mark.promise("Relay", "a Unix socket is accessible to its owner only")
@pytest.mark.parametrize("endpoint", ["ipc://@everybody", "ipc://*"])
def test_a_socket_that_other_users_could_reach_is_rejected(start: Start, endpoint: str) -> None:
    with pytest.raises(EndpointError, match="keep other users out"):
        start(pull=endpoint)


@pytest.mark.promise("Relay", "Unix sockets are accessible to their owners only, from creation on (flaw 22)")
def test_sockets_in_the_file_system_are_their_owners_alone(start: Start, tmp_path: Path) -> None:
    start()
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o700
    for name in ("pub.sock", "pull.sock"):
        assert stat.S_IMODE((tmp_path / "p" / name).stat().st_mode) == 0o600
    before = os.umask(0o022)
    os.umask(before)
    assert before != 0o177


@pytest.mark.promise("Relay", "Unix sockets are accessible to their owners only, from creation on (flaw 22)")
def test_a_long_path_has_a_short_one(start: Start, tmp_path: Path) -> None:
    run = start(pull=f"ipc://{tmp_path}/{'long' * 30}/push.sock")
    path = Path(run.pull.removeprefix("ipc://"))
    assert len(str(path)) < 100
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.promise("Relay", "CURVE accepts listed keys; without it the relay serves only this machine (flaw 5)")
@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "udp://x:1", "tcp://127.0.0.1"])
def test_nothing_is_served_to_other_machines_without_keys(start: Start, endpoint: str) -> None:
    with pytest.raises(EndpointError):
        start(pub=endpoint)
    with pytest.raises(EndpointError):
        start(pull=endpoint)


@pytest.mark.promise("Relay", "Unix sockets are accessible to their owners only, from creation on (flaw 22)")
@pytest.mark.parametrize("endpoint", ["ipc://@penstock-test", "ipc://*"])
def test_a_socket_without_a_file_has_no_owner_and_is_not_served(start: Start, endpoint: str) -> None:
    """Every user of the machine reaches a name that begins with `@`: it has no mode."""
    with pytest.raises(EndpointError, match="other users"):
        start(pub=endpoint)
    with pytest.raises(EndpointError, match="other users"):
        start(pull=endpoint)


@pytest.mark.promise("Relay", "Unix sockets are accessible to their owners only, from creation on (flaw 22)")
def test_a_file_at_the_path_of_a_socket_is_left_alone(start: Start, tmp_path: Path) -> None:
    """libzmq removes whatever has the name of the socket that it makes."""
    letter = tmp_path / "letter.txt"
    letter.write_text("keep me")
    with pytest.raises(EndpointError, match="no socket"):
        start(pull=f"ipc://{letter}")
    assert letter.read_text() == "keep me"


def test_an_address_that_is_taken_is_named(start: Start) -> None:
    taken = start(pub="tcp://127.0.0.1:0").pub
    with pytest.raises(EndpointError, match="another process serves it"):
        start(pub=taken, pull="tcp://127.0.0.1:0")


def _join(socket: zmq.Socket[Any], keys: tuple[bytes, bytes], server: bytes) -> None:
    socket.curve_publickey, socket.curve_secretkey = keys
    socket.curve_serverkey = server


@pytest.mark.promise("Relay", "CURVE accepts listed keys; without it the relay serves only this machine (flaw 5)")
def test_curve_accepts_only_listed_keys(start: Start) -> None:
    server_public, server_secret = zmq.curve_keypair()
    friend, stranger = zmq.curve_keypair(), zmq.curve_keypair()
    curve = CurveKeys(server_public.decode(), server_secret.decode(), (friend[0].decode(),))
    run = start(pub="tcp://0.0.0.0:0", pull="tcp://0.0.0.0:0", curve=curve)
    pub, pull = (endpoint.replace("0.0.0.0", "127.0.0.1") for endpoint in (run.pub, run.pull))
    topic = peers.make_topic()
    push = run.context.socket(zmq.PUSH)
    push.linger = 0
    _join(push, friend, server_public)
    push.connect(pull)
    push.send(peers.registration(topic, KEY))
    sockets = []
    for keys in (friend, stranger, None):
        socket = run.context.socket(zmq.SUB)
        socket.linger = 0
        if keys is not None:
            _join(socket, keys, server_public)
        socket.connect(pub)
        socket.subscribe(topic)
        sockets.append(socket)
    run.subscribed(topic)
    run.wait(lambda: run.refused("key"))
    plain = run.context.socket(zmq.PUSH)
    plain.linger = 0
    plain.connect(pull)
    plain.send(peers.chunk(topic, b"plain", b"m" * 32, b""))
    frame = peers.chunk(topic, b"hello", b"m" * 32, b"")
    push.send(frame)
    assert sockets[0].poll(PATIENCE_S * 1000)
    assert sockets[0].recv() == topic + frame
    assert [socket.poll(0) for socket in sockets] == [0, 0, 0]
    assert run.relay.topics[topic].seq == 1


# Its reports, and how it ends


@pytest.mark.promise("Relay", "a stop drains and reports undelivered messages (flaw 23)")
def test_terminate_drains_and_reports_undelivered_messages(start: Start) -> None:
    run = start()
    heard, unheard = run.publisher(), run.publisher()
    subscriber = run.subscriber(heard.topic)
    run.subscribed(heard.topic)
    for no in range(5):
        heard.chunk(b"%d" % no)
        unheard.chunk(b"%d" % no)
    run.wait(lambda: run.relay.sums().messages == 10)
    assert run.stop() == RelayStopped(1, 5)
    assert all(subscriber.receive() for _ in range(5))


@pytest.mark.promise("Relay", "rows and files never contain a topic")
def test_reports_never_contain_a_topic(start: Start) -> None:
    run = start(limits=RelayLimits(compact_interval=0.01, detach_grace_ms=1))
    publisher = run.publisher()
    topic = publisher.topic
    subscriber = run.subscriber(topic)
    run.subscribed(topic)
    for no in range(600):
        publisher.chunk(b"%d" % no)
    assert all(subscriber.receive() for _ in range(600))
    subscriber.socket.close(0)
    run.wait(lambda: any(isinstance(each, TopicExpired) for each in run.told))
    told = {
        kind: [each for each in run.told if isinstance(each, kind)]
        for kind in (TopicRegistered, TopicCounts, SubscribersChanged)
    }
    assert [each.topic for each in told[TopicRegistered]] == [hash_of(topic)]
    assert [each.on for each in told[SubscribersChanged]] == [True, False]
    assert sum(each.chunks for each in told[TopicCounts]) == sum(each.sent for each in told[TopicCounts]) == 600
    assert told[TopicCounts]  # without waiting for the second
    assert topic.decode() not in repr(run.told)


@pytest.mark.promise("Relay", "rows with messages contain no topic")
def test_full_journaling_reports_whole_messages_without_their_topic(start: Start) -> None:
    run = start(journal="full")
    publisher = run.publisher()
    frame = publisher.chunk(b"body")
    publisher.mac = b""
    frames = publisher.block(["body"])
    found = run.wait(lambda: [each for each in run.told if isinstance(each, MessageRelayed)][1:] and run.told)
    passed = [each for each in found if isinstance(each, MessageRelayed)]
    topic = publisher.topic
    assert [each.body for each in passed] == [
        frame.replace(topic, hash_of(topic).encode()),
        b"".join(frames[1:]),
    ]
    assert topic.decode() not in repr(run.told)
    assert [each.format for each in passed] == ["chunk", "block"]
    assert [(each.seq, each.held) for each in passed] == [(1, True), (2, True)]


@pytest.mark.promise("Relay", "registrations survive kill -9 of the relay and of the server")
def test_a_registration_of_an_earlier_run_counts_by_its_hash(start: Start) -> None:
    topic = peers.make_topic()
    expires_us = time.time_ns() // 1000 + 60_000_000
    run = start(remembered=[Remembered(hash_of(topic), "s", expires_us, seq=7)])
    publisher = run.publisher(topic, is_registered=False)
    frame = publisher.chunk(b"after the restart")
    subscriber = run.subscriber(topic)
    assert subscriber.receive() == [topic + frame]
    assert run.wait(lambda: [each.seq for each in run.told if isinstance(each, TopicCounts)]) == [8]


@pytest.mark.promise("Relay", "links are checked if configured (flaw 12)")
def test_links_are_checked_where_that_is_asked_for(start: Start) -> None:
    run = start(check_links=True)
    publisher = run.publisher()
    topic = publisher.topic
    subscriber = run.subscriber(topic)
    run.subscribed(topic)
    first = publisher.chunk(b"one")
    publisher.socket.send(peers.chunk(topic, b"forged", b"f" * 32, b"x" * 32))
    second = publisher.chunk(b"two")
    assert [subscriber.receive(), subscriber.receive()] == [[topic + first], [topic + second]]
    assert run.refused("link") == 1
