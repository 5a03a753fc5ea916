"""The subscribers' side of the relay: one XPUB socket, its subscriptions and its requests to resume.

Subscriptions are granted one by one (XPUB_MANUAL), so that an empty or short prefix receives nothing. A request to resume arrives on
PULL or on XPUB: as a subscription to 0x02 and the framed request, which is never granted, or as a message that begins with 0x02.

libzmq assigns the subscriptions behind such a message to the peers of later ones, until all are read; only the last one is assigned
rightly. The relay therefore reads all, then grants those of the last peer. It disconnects the other peers, which reconnect and subscribe
again. It also disconnects the sender of a message that is no request, or of too many requests.

The socket stays open as long as the relay runs: libzmq aborts the process when a socket closes at the moment in which a peer disconnects
that has received only some parts of a message (4.3.5, session_base.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from penstock.core.clock import Now
from penstock.core.relay.bounds import JournalMode, RelayLimits
from penstock.core.relay.machine import Relay
from penstock.core.relay.topic import Message
from penstock.dialects.streamservice.wire import FrameFault, Resume, is_topic, peek
from penstock.server.relay.reports import ResumeRequested, TopicStats
from penstock.server.relay.subscriber_peers import SubscriberPeer, SubscriberPeers
from penstock.transports.zeromq import CurveKeys, bind

BURST = 256
"""Messages taken from a socket at a time."""
REQUESTS = 4
"""Requests of subscribers handled at a time: each may search a whole topic, about a millisecond."""
GONE_MARK = b"\x03"
"""First byte of the second frame of the answer to a request whose mark is gone."""
SUBSCRIPTION_MAX = 512
"""Bytes of a subscription: a topic or a request to resume, and what CURVE adds. libzmq disconnects a peer that sends more."""
UNREAD_MAX = 2
"""Subscriptions of one peer that libzmq reads ahead. It stores what it reads, so with a larger bound a flood is stored before the relay
sees it; with 1 it reads nothing from a CURVE peer."""
UNREAD_BYTES = 16 * 1024
"""Bytes of one peer that the kernel reads ahead: room for hundreds of subscriptions. By default it takes megabytes."""
MATCHED = 32
"""Bytes of a topic by which libzmq finds its subscribers: 128 bits, as hard to guess as the MAC of a block. Each byte is an access to
memory: all 64 of them cost a fifth of the CPU of a relay with a thousand topics."""
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


class SubscriberSocket:
    """The XPUB socket and what arrives on it."""

    def __init__(
        self,
        context: zmq.Context[Any],
        settings: RelaySettings,
        relay: Relay,
        stats: TopicStats,
        watch: Callable[[zmq.Socket[Any]], None] = lambda socket: None,
    ) -> None:
        self._relay = relay
        self._stats = stats
        self.peers = SubscriberPeers(settings.limits.peer_subscriptions_max, settings.limits.subscriptions_max)
        self.socket: zmq.Socket[Any] = context.socket(zmq.XPUB)
        watch(self.socket)
        self.endpoint = self._bind(settings)
        self.refusals: dict[bytes, bytes] = {}
        """The latest answers to refused registrations, for publishers that subscribe after the answer."""
        self._is_unsure = False
        """A message was among the waiting subscriptions: libzmq may confuse their senders until all are read."""
        self._pending: dict[tuple[SubscriberPeer, bytes], None] = {}
        """Subscriptions since then."""
        self._last: SubscriberPeer | None = None
        """The peer that subscribed or unsubscribed last since then."""

    def _bind(self, settings: RelaySettings) -> str:
        xpub = self.socket
        xpub.sndhwm = settings.limits.send_hwm
        xpub.set(zmq.XPUB_VERBOSER, 1)
        xpub.set(zmq.XPUB_MANUAL, 1)
        xpub.set(zmq.MAXMSGSIZE, SUBSCRIPTION_MAX)
        xpub.rcvhwm = UNREAD_MAX
        xpub.rcvbuf = UNREAD_BYTES
        try:
            if settings.also_pub is not None:  # before the keys, which apply to later binds only
                bind(xpub, settings.also_pub, None)
            return bind(xpub, settings.pub, settings.curve)
        except BaseException:
            xpub.close(0)
            raise

    def take(self, now: Now) -> None:
        """Take a burst of subscriptions and requests."""
        xpub, requests = self.socket, 0
        for _ in range(BURST):
            try:
                arrived = xpub.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._end_unsure(now)
                return
            frame, peer = arrived.bytes, self.peers.find(arrived)
            if frame[:1] not in (b"\x00", b"\x01"):
                self._is_unsure = True
                requests += self._take_message(now, peer, frame)
            else:
                self._last = peer
                if frame[0] == 1:
                    self._take_subscription(now, peer, frame[1:])
                    requests += frame[1:2] == b"\x02"
                else:
                    self._take_unsubscription(now, peer, frame[1:])
            if requests == REQUESTS:
                return

    def _take_message(self, now: Now, peer: SubscriberPeer | None, frame: bytes) -> bool:
        """Handle a request that came as a message, or disconnect its sender. True if it was handled."""
        if peer is None or peer.is_cut or not peer.inode:  # it is gone
            return False
        is_taken = not self.peers.is_flood(peer, now.us // 1_000_000) and self._take_request(now, frame)
        if not is_taken:
            self.peers.disconnect(peer, "message")
        return is_taken

    def _end_unsure(self, now: Now) -> None:
        """All is read: grant what the last peer asked for, and disconnect the others, whose pipes are unknown."""
        pending, self._pending, self._is_unsure = self._pending, {}, False
        for peer, name in pending:
            if peer is self._last and self.peers.holds(peer, name):
                self._grant(now, peer, name)
            else:
                self._stats.refuse("mixed")
                self.peers.disconnect(peer, "mixed")

    def _take_subscription(self, now: Now, peer: SubscriberPeer | None, name: bytes) -> None:
        """Grant a subscription, unless its peer holds too many; while its sender is unsure, later."""
        if peer is None:
            return
        is_registered = name in self._relay.topics
        self.peers.add(peer, name, now.us, is_registered=is_registered)
        if peer.is_cut:
            self._stats.refuse("subscriptions")
        elif name[:1] == b"\x02":
            self._take_request(now, name)
        elif not is_topic(name):
            self._stats.refuse("prefix")  # it would receive the messages of other topics
        elif self._is_unsure:
            self._pending[peer, name] = None
        else:
            self._grant(now, peer, name)

    def _grant(self, now: Now, peer: SubscriberPeer, name: bytes) -> None:
        messages = self._relay.subscribe(now, name)
        if name in self._relay.topics or name in self._relay.early:
            self.socket.set(zmq.SUBSCRIBE, name[:MATCHED])
        if self.peers.grant(peer, name):
            peer.matched[name[:MATCHED]] = peer.matched.get(name[:MATCHED], 0) + 1
        else:  # a peer counts once, however often it asks for a replay
            self._relay.unsubscribe(now, name)
        self._stats.subscribers_changed(name, on=True)
        if name in self.refusals:
            self.answer(name, self.refusals[name])
        self.send_all(messages)

    def _take_unsubscription(self, now: Now, peer: SubscriberPeer | None, name: bytes) -> None:
        """End a subscription that the peer holds; others cannot end it."""
        if peer is not None:
            self._pending.pop((peer, name), None)
        if self.peers.remove(peer, name):
            left = 0 if peer is None else peer.matched.pop(name[:MATCHED], 1) - 1
            if peer is not None and left:  # it holds another topic that libzmq cannot distinguish from this one
                peer.matched[name[:MATCHED]] = left
            elif not self._is_unsure:
                self.socket.set(zmq.UNSUBSCRIBE, name[:MATCHED])
            self._relay.unsubscribe(now, name)
            self._stats.subscribers_changed(name, on=False)

    def _take_request(self, now: Now, frame: bytes) -> bool:
        found = peek(frame[1:]) if frame[:1] == b"\x02" else FrameFault("unknown")
        if isinstance(found, Resume):
            self.resume(now, found)
            return True
        self._stats.refuse("upstream")
        return False

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
