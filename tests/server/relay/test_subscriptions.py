"""Subscribers at the relay's sockets cannot affect each other."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
import zmq
from nacl.signing import SigningKey as NaclKey

from penstock.client.tokens import SigningKey, TokenPublisher, TokenStream
from penstock.core.errors import PenstockError
from penstock.dialects.streamservice.keys import StreamKeys, derive
from penstock.dialects.streamservice.signatures import read_refused
from penstock.server.relay import subscriptions
from penstock.server.relay.service import ANSWERS_MAX
from penstock.server.relay.subscriber_peers import MESSAGES_MAX
from penstock.server.relay.subscriptions import BURST, REQUESTS
from tests.client.tokens.driving import until
from tests.integration import token_peers as peers
from tests.server.relay.test_service import KEY, PATIENCE_S, Running, Start, start

__all__ = ["start"]


def raw(run: Running) -> zmq.Socket[Any]:
    socket = run.context.socket(zmq.XSUB)
    socket.linger = 0
    socket.connect(run.pub)
    return socket


class Turns:
    """Holds the service's loop, and then notes at each of its turns how many requests it has looked at."""

    def __init__(self, run: Running) -> None:
        self.resumes: list[int] = []
        self._run = run
        self._held, self._released = threading.Event(), threading.Event()
        self._reader, self._writer = os.pipe()
        os.write(self._writer, b"x")
        run.service.watch(self._reader, self._turn)
        run.wait(self._held.is_set)

    def _turn(self) -> None:
        self._held.set()
        self._released.wait(PATIENCE_S)
        self.resumes.append(self._run.relay.totals.resumes)

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self._run.stop()
        os.close(self._reader)
        os.close(self._writer)


def test_a_topic_stays_subscribed_when_its_subscriber_leaves_one_with_the_same_beginning(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    twin = publisher.topic[:-1] + (b"0" if publisher.topic[-1:] == b"1" else b"1")
    reader = raw(run)
    for name in (publisher.topic, twin):
        reader.send(b"\x01" + name)
    run.subscribed(publisher.topic)
    run.wait(lambda: run.relay.early)
    reader.send(b"\x00" + twin)
    run.wait(lambda: not run.relay.early)
    frame = publisher.chunk(b"still heard")
    assert reader.poll(PATIENCE_S * 1000)
    assert reader.recv() == publisher.topic + frame
    reader.send(b"\x00" + publisher.topic)
    run.wait(lambda: not run.relay.topics[publisher.topic].subscribers)
    publisher.chunk(b"held")
    run.wait(lambda: run.relay.topics[publisher.topic].seq == 2)
    assert not run.relay.topics[publisher.topic].live and not reader.poll(0)


@pytest.mark.promise(
    "Relay",
    "no subscriber blocks the relay for others, and reconnecting readers do not disconnect each other",
)
def test_requests_without_end_leave_publishers_their_turn(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    subscriber = run.subscriber(publisher.topic)
    run.subscribed(publisher.topic)
    loud = raw(run)
    loud.send(b"\x01" + peers.make_topic())
    run.wait(lambda: run.relay.early)
    turns = Turns(run)
    request = peers.resume(publisher.topic, b"?" * 32)
    for _ in range(BURST):
        loud.send(b"\x01\x02" + request)
        loud.send(b"\x00\x02" + request)
    turns.release()
    run.wait(lambda: run.relay.totals.resumes == BURST)
    steps = [after - before for before, after in zip(turns.resumes, turns.resumes[1:], strict=False)]
    assert max(steps) <= REQUESTS
    frame = publisher.chunk(b"still heard")
    while (parts := subscriber.receive()) != [publisher.topic + frame]:
        assert parts is not None, "the publisher was not heard"
        assert parts[1][:1] == b"\x03"  # the answer to the others' requests
    turns.close()


@pytest.mark.promise(
    "Relay",
    "no subscriber blocks the relay for others, and reconnecting readers do not disconnect each other",
)
def test_readers_that_all_come_back_at_once_do_not_cut_each_other_off(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them subscribes and asks for what it missed; asking must not look like a stranger's message."""
    monkeypatch.setattr(subscriptions, "UNREAD_MAX", 100)  # so that the stranger's message and subscription mix
    run = start()
    entropy = [bytes((number,)) * 32 for number in range(1, 41)]
    keys = [derive(each, b"c" * 32, b"s" * 32) for each in entropy]

    async def publish_and_read() -> list[list[str]]:
        signer = SigningKey(b"k" * 32)
        async with AsyncExitStack() as stack:
            publishers, streams = [], []
            for each in keys:
                assert isinstance(each, StreamKeys)
                publishers.append(await stack.enter_async_context(TokenPublisher(run.pull, each, signer=signer)))
                streams.append(await stack.enter_async_context(TokenStream(run.pub, each)))
            for publisher in publishers:
                await publisher.send("before")
            before = [await stream.next_batch() for stream in streams]
            stranger = raw(run)
            stack.callback(stranger.close, 0)
            stranger.send(b"\x01" + peers.make_topic())
            turns = await asyncio.to_thread(Turns, run)
            stack.callback(turns.close)
            stranger.send(b"\x07what")
            stranger.send(b"\x01" + peers.make_topic())  # its sender is then unknown
            turns.release()
            await asyncio.to_thread(run.wait, lambda: run.refused("upstream"))
            assert not any(stream.counts.asked for stream in streams), "the stranger's mistake costs its own connection"
            turns.hold()  # so that all have reconnected and asked before any is handled
            run.service._subscribers.peers.disconnect_all()
            await asyncio.to_thread(run.wait, lambda: all(stream.counts.asked for stream in streams))
            turns.release()
            for publisher in publishers:
                await publisher.send("after")
                await publisher.complete()
            return [first + [token async for token in stream] for first, stream in zip(before, streams, strict=True)]

    read = asyncio.run(publish_and_read())
    assert read == [["before", "after"]] * len(keys)
    assert run.refused("mixed") <= 1, "the stranger at most"


def greeted(run: Running) -> zmq.Socket[Any]:
    """A raw peer that is connected; what others sent before has arrived."""
    socket = run.context.socket(zmq.XSUB)
    socket.linger = 0
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    socket.connect(run.pub)
    assert monitor.poll(PATIENCE_S * 1000)
    socket.disable_monitor()
    return socket


@pytest.mark.promise("Relay", "a message that is no request disconnects its sender, and not the peers that subscribe")
@pytest.mark.parametrize("pub", ["tcp://127.0.0.1:0", None])
def test_a_strangers_message_disconnects_the_stranger_only(start: Start, pub: str | None) -> None:
    run = start() if pub is None else start(pub=pub)
    publisher = run.publisher()
    run.wait(lambda: run.relay.topics)
    strangers, innocent = [greeted(run) for _ in range(3)], greeted(run)
    turns = Turns(run)
    for stranger in strangers:
        for _ in range(20):
            stranger.send(b"\x02hello")
    for _ in range(3):
        greeted(run)
    innocent.send(b"\x01" + publisher.topic)
    for _ in range(3):
        greeted(run)
    turns.release()
    run.subscribed(publisher.topic)
    frame = publisher.chunk(b"for the innocent")
    assert innocent.poll(PATIENCE_S * 1000) and innocent.recv() == publisher.topic + frame
    cut = run.service._subscribers.peers.cut
    run.wait(lambda: cut["message"] >= 3)
    assert cut == {"subscriptions": 0, "rate": 0, "message": cut["message"], "mixed": 0, "memory": 0}
    turns.close()


def test_a_peer_that_sends_requests_as_messages_without_end_is_disconnected(start: Start) -> None:
    run = start()
    publisher = run.publisher()
    subscriber = run.subscriber(publisher.topic)
    run.subscribed(publisher.topic)
    flood = greeted(run)
    for _ in range(10 * MESSAGES_MAX):
        flood.send(b"\x02" + peers.resume(peers.make_topic(), b"?" * 32))
    run.wait(lambda: run.service._subscribers.peers.cut["message"])
    frame = publisher.chunk(b"still heard")
    assert subscriber.receive() == [publisher.topic + frame]


@pytest.mark.promise("Relay", "a publisher that subscribes to its control topic learns that it was refused, and why")
@pytest.mark.parametrize("is_early", [True, False])
def test_a_refused_publisher_learns_why(start: Start, is_early: bool) -> None:
    run = start()
    keys = derive(b"e" * 32, b"c" * 32, b"s" * 32)
    assert isinstance(keys, StreamKeys)
    stranger = SigningKey(b"?" * 32)
    if not is_early:  # the answer waits for the subscription
        run.publisher(keys.ctrl_topic.encode(), is_registered=False).register(NaclKey(b"?" * 32))
        run.wait(lambda: run.refused("signer"))

    async def publish() -> None:
        async with TokenPublisher(run.pull, keys, signer=stranger, pub=run.pub) as publisher:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await publisher.send("token")
                    await asyncio.sleep(0)

    with pytest.raises(PenstockError, match="not trusted") as caught:
        asyncio.run(publish())
    assert caught.value.refusal.code == "Unauthorized"
    assert caught.value.refusal.ref == "signer"
    assert "relay.signers" in str(caught.value.refusal.hint)


@pytest.mark.promise("Relay", "a publisher that subscribes to its control topic learns that it was refused, and why")
def test_a_block_that_ends_before_the_answer_is_read_still_raises(start: Start) -> None:
    run = start()
    keys = derive(b"e" * 32, b"c" * 32, b"s" * 32)
    assert isinstance(keys, StreamKeys)

    async def publish() -> None:
        async with TokenPublisher(run.pull, keys, signer=SigningKey(b"?" * 32), pub=run.pub) as publisher:
            sender = publisher._sender
            assert sender is not None
            await until(lambda: sender.refusal)

    with pytest.raises(PenstockError, match="not trusted"):
        asyncio.run(publish())


def test_answers_to_refused_registrations_are_bounded_and_none_is_to_another(start: Start) -> None:
    run = start()
    topic = peers.make_topic()
    subscriber = run.subscriber(topic)
    run.wait(lambda: topic in run.relay.early)
    publisher = run.publisher(topic, is_registered=False)
    flood = 10 * ANSWERS_MAX
    for _ in range(flood):
        publisher.register(NaclKey(b"?" * 32))
    run.wait(lambda: run.refused("signer") == flood)
    publisher.register(KEY)
    frame = publisher.chunk(b"hello")
    answers = []
    while (parts := subscriber.receive()) != [topic + frame]:
        assert parts is not None and parts[1][:1] == b"\x04"
        answers.append(parts[1])
    assert 0 < len(answers) < flood
    assert read_refused(answers[0], b"n" * 16) is None
    assert set(msgspec.json.decode(answers[0][17:])) == {"code", "message", "ref", "hint"}, "no member is null"
    assert topic not in run.service._subscribers.refusals
