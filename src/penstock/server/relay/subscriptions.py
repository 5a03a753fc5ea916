"""The subscribers' side of the relay: one XPUB socket, its subscriptions and its requests to resume.

Subscriptions are granted one by one (XPUB_MANUAL), so that an empty or short prefix receives nothing. A request to resume arrives on
PULL or on XPUB: as a subscription to 0x02 and the framed request, which is never granted, or as a message that begins with 0x02.

libzmq assigns the subscription behind such a message to the sender of the message, so a grant could reach the wrong subscriber. The
relay then grants nothing and reopens the socket; every client reconnects and subscribes again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from penstock.core.clock import Now
from penstock.core.relay.bounds import RelayLimits
from penstock.core.relay.machine import Relay
from penstock.core.relay.topic import Message
from penstock.dialects.streamservice.wire import FrameFault, Resume, is_topic, peek
from penstock.server.config.relay_sections import JournalMode
from penstock.server.relay.reports import ResumeRequested
from penstock.server.relay.stats import TopicStats
from penstock.server.relay.subscriber_peers import SubscriberPeer, SubscriberPeers
from penstock.transports.zeromq import CurveKeys, EndpointError, bind

BURST = 256
"""Messages taken from a socket at a time."""
REQUESTS = 4
"""Requests of subscribers handled at a time: each may search a whole topic, about a millisecond."""
GONE_MARK = b"\x03"
"""First byte of the second frame of the answer to a request whose mark is gone."""
REOPEN_S = 5.0
"""How long the socket may take to reopen."""
REOPEN_STEP_S = 0.002
REOPEN_EVERY_US = 1_000_000
"""Least time between two reopenings: each disconnects all subscribers for a moment."""
SUBSCRIPTION_MAX = 512
"""Bytes of a subscription: a topic or a request to resume, and what CURVE adds. libzmq disconnects a peer that sends more."""
UNREAD_MAX = 2
"""Subscriptions of one peer that libzmq reads ahead. It stores what it reads, so with a larger bound a flood is stored before the relay
sees it; with 1 it reads nothing from a CURVE peer."""
REFUSALS_MAX = 1_000
"""Answers to refused registrations that are kept, the latest ones: about 300 bytes each."""
SPARE = 4_096
"""Bytes above the bound that a socket accepts, so that the relay itself rejects and counts the message."""


class RelaySettings(msgspec.Struct, frozen=True):
    """Addresses of the relay, and options of its sockets."""

    pub: str
    """Subscribers connect here."""
    pull: str
    """Publishers connect here."""
    limits: RelayLimits = RelayLimits()
    curve: CurveKeys | None = None
    journal: JournalMode = "metadata"
    check_links: bool = False
    """Whether the relay rejects a message that does not follow the newest one of its topic."""
    also_pub: str | None = None
    """A second address for subscribers on this machine, without keys."""


def opened_again(open_socket: Callable[[], zmq.Socket[Any]]) -> zmq.Socket[Any]:
    """Open a socket at an address that was closed just now."""
    deadline = time.monotonic() + REOPEN_S
    while True:
        try:
            return open_socket()
        except EndpointError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(REOPEN_STEP_S)  # libzmq releases an address a moment after the close


class SubscriberSocket:
    """The XPUB socket and what arrives on it."""

    def __init__(
        self, context: zmq.Context[Any], settings: RelaySettings, relay: Relay, stats: TopicStats, poller: zmq.Poller
    ) -> None:
        self._context = context
        self._settings = settings
        self._relay = relay
        self._stats = stats
        self._poller = poller
        self.peers = SubscriberPeers(settings.limits.peer_subscriptions_max, settings.limits.subscriptions_max)
        self.socket: zmq.Socket[Any] = self._open(settings.pub)
        self.refusals: dict[bytes, bytes] = {}
        """The latest answers to refused registrations, for publishers that subscribe after the answer."""
        self._is_unsure = False
        """A message was among the waiting subscriptions: libzmq may confuse their senders until all are read."""
        self.is_mixed = False
        """A subscription arrived while unsure: the socket must be reopened."""
        self._reopen_us = 0

    def _open(self, endpoint: str) -> zmq.Socket[Any]:
        xpub: zmq.Socket[Any] = self._context.socket(zmq.XPUB)
        xpub.sndhwm = self._settings.limits.send_hwm
        xpub.set(zmq.XPUB_VERBOSER, 1)
        xpub.set(zmq.XPUB_MANUAL, 1)
        xpub.set(zmq.MAXMSGSIZE, SUBSCRIPTION_MAX)
        xpub.rcvhwm = UNREAD_MAX
        try:
            if self._settings.also_pub is not None:  # before the keys, which apply to later binds only
                bind(xpub, self._settings.also_pub, None)
            self.endpoint = bind(xpub, endpoint, self._settings.curve)
        except BaseException:
            xpub.close(0)
            raise
        self._poller.register(xpub, zmq.POLLIN)
        return xpub

    def take(self, now: Now) -> None:
        """Take a burst of subscriptions and requests."""
        xpub, requests = self.socket, 0
        for _ in range(BURST):
            try:
                arrived = xpub.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._is_unsure = False
                return
            frame = arrived.bytes
            is_message = frame[:1] not in (b"\x00", b"\x01")
            if is_message:
                self._is_unsure = True
                self._take_request(now, frame)
            elif frame[0] == 1:
                self._take_subscription(now, self.peers.find(arrived), frame[1:], is_sure=not self._is_unsure)
            else:
                self._take_unsubscription(now, self.peers.find(arrived), frame[1:], is_sure=not self._is_unsure)
            if is_message or frame[:2] == b"\x01\x02":
                requests += 1
                if requests == REQUESTS:
                    return

    def _take_subscription(self, now: Now, peer: SubscriberPeer | None, name: bytes, *, is_sure: bool) -> None:
        """Grant a subscription, unless its sender is unsure or holds too many."""
        if peer is None:
            return
        self.peers.add(peer, name)
        if peer.is_cut:
            self._stats.refuse("subscriptions")
        elif name[:1] == b"\x02":
            self._take_request(now, name)
        elif not is_topic(name):
            self._stats.refuse("prefix")  # it would receive the messages of other topics
        elif not is_sure:
            self._stats.refuse("mixed")
            self.is_mixed = True
        else:
            messages = self._relay.subscribe(now, name)
            if name in self._relay.topics or name in self._relay.early:
                self.socket.set(zmq.SUBSCRIBE, name)
            if not self.peers.grant(peer, name):  # a peer counts once, however often it asks for a replay
                self._relay.unsubscribe(now, name)
            self._stats.subscribers_changed(name, on=True)
            if name in self.refusals:
                self.answer(name, self.refusals[name])
            self.send_all(messages)

    def _take_unsubscription(self, now: Now, peer: SubscriberPeer | None, name: bytes, *, is_sure: bool) -> None:
        """End a subscription that the peer holds; others cannot end it."""
        if self.peers.remove(peer, name):
            if is_sure:
                self.socket.set(zmq.UNSUBSCRIBE, name)
            self._relay.unsubscribe(now, name)
            self._stats.subscribers_changed(name, on=False)

    def _take_request(self, now: Now, frame: bytes) -> None:
        found = peek(frame[1:]) if frame[:1] == b"\x02" else FrameFault("unknown")
        if isinstance(found, Resume):
            self.resume(now, found)
        else:
            self._stats.refuse("upstream")

    def reopen_when_mixed(self, now: Now) -> None:
        """Reopen the socket if it is mixed, at most once a second."""
        if self.is_mixed and now.us >= self._reopen_us:
            self._reopen_us = now.us + REOPEN_EVERY_US
            self.reopen(now)

    def reopen(self, now: Now) -> None:
        """Reopen the socket, so that every client reconnects and subscribes again."""
        self.is_mixed = self._is_unsure = False
        self.peers.clear()
        self._poller.unregister(self.socket)
        self.socket.close(0)
        self._relay.forget_subscribers(now)
        self.socket = opened_again(lambda: self._open(self.endpoint))

    def answer(self, topic: bytes, answer: bytes) -> None:
        """Answer a refused registration on its topic, now and when its publisher subscribes."""
        if len(self.refusals) >= REFUSALS_MAX:
            del self.refusals[next(iter(self.refusals))]
        self.refusals[topic] = answer
        self.socket.send_multipart((topic, answer), zmq.NOBLOCK)

    def send_all(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, bytes):
                self.socket.send(message, zmq.NOBLOCK)
            else:
                self.socket.send_multipart(message, zmq.NOBLOCK)

    def resume(self, now: Now, asked: Resume) -> None:
        outcome = self._relay.resume(now, asked.topic, asked.mac)
        topic = self._relay.topics.get(asked.topic)
        if topic is not None:
            self._stats.report(ResumeRequested(topic.hash, outcome.found, len(outcome.messages)))
        if outcome.should_notify:
            self.socket.send_multipart((asked.topic, GONE_MARK + asked.mac), zmq.NOBLOCK)
        self.send_all(outcome.messages)
