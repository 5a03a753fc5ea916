"""The relay: hold until subscribed, forward, and send again after a mark. It never looks into a message.

A topic exists from its registration until it expires, nobody uses it, or its last subscriber stays away longer than the grace. Every message
is kept for a while, sent or not, so that a subscriber that lost some can ask for what followed the last one it has. Subscribers cannot be
told apart, so what is sent again goes to all of a topic's; such replays are spaced out and merged. Cost of `publish`: O(1), amortised.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import msgspec

from penstock.core.errors import Refusal
from penstock.core.instant import Now

MIB = 1024 * 1024

Message: TypeAlias = bytes | tuple[bytes, ...]
"""What goes to subscribers: one frame, or several."""
Mark: TypeAlias = bytes
"""What a message is known by."""
HELD_COST = 300
"""Bytes that a message takes beside its own."""


class RelayLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much the relay keeps, and for how long."""

    max_pending_per_topic: int = 1_000
    """Messages of one topic that are kept; then the oldest go."""
    message_ttl_ms: int = 30_000
    """How long a message is kept."""
    compact_interval_ms: int = 5_000
    """How often what is too old is let go."""
    topics_max: int = 10_000
    """Topics at once; further registrations are refused."""
    signer_topics_max: int = 5_000
    """Topics of one signer at once."""
    topic_bytes_max: int = 8 * MIB
    """Bytes of one topic's messages; then the oldest go."""
    bytes_max: int = 256 * MIB
    """Bytes of all messages together; then a topic's own oldest go, and its newest is not kept."""
    message_max: int = 1 * MIB
    """Bytes of one message; larger ones are dropped."""
    idle_grace_ms: int = 60_000
    """How long a topic waits for its first message or subscriber."""
    detach_grace_ms: int = 30_000
    """How long a topic waits for a subscriber that is gone."""
    early_max: int = 10_000
    """Subscriptions to topics that are not registered yet; further ones are forgotten."""
    early_ms: int = 30_000
    """How long such a subscription is remembered."""
    replay_interval_ms: int = 100
    """Time between two replays of one topic: those asked for meanwhile become one."""
    lifetime_max_s: int = 24 * 3_600
    """Longest life of a registration, whatever it asks for."""


class Held(msgspec.Struct, gc=False, eq=False):
    """A message that is kept."""

    message: Message
    mark: Mark
    at_us: int
    size: int
    no: int


class Topic:
    """One stream of messages."""

    __slots__ = (
        "bytes",
        "detached_us",
        "expires_us",
        "held",
        "lost",
        "name",
        "registered_us",
        "replay_due_us",
        "replay_from",
        "replayed_us",
        "sent",
        "seq",
        "signer",
        "subscribers",
        "was_used",
    )

    def __init__(self, name: bytes, signer: str, registered_us: int, expires_us: int) -> None:
        self.name = name
        self.signer = signer
        self.registered_us = registered_us
        self.expires_us = expires_us
        """On the wall's clock."""
        self.subscribers = 0
        self.detached_us = 0
        """Since when nobody is subscribed who once was; 0 while somebody is, or nobody ever was."""
        self.was_used = False
        self.held: deque[Held] = deque()
        self.bytes = 0
        self.seq = 0
        """The number of its newest message."""
        self.sent = 0
        """The number of the newest message that was forwarded."""
        self.lost = 0
        """Messages that were never forwarded and are gone."""
        self.replay_from = 0
        """From which number on a replay is due; 0 when none is."""
        self.replay_due_us = 0
        self.replayed_us = -(10**12)


class Totals(msgspec.Struct):
    """Counts of the whole relay."""

    received: int = 0
    forwarded: int = 0
    replayed: int = 0
    unregistered: int = 0
    oversized: int = 0
    lost: int = 0
    """Never forwarded, and too old or too many."""
    unkept: int = 0
    """Forwarded, but not kept for want of room."""
    refused: int = 0
    early_forgotten: int = 0
    resumes: int = 0
    resumes_missed: int = 0


class Relay:
    """Topics and their messages."""

    def __init__(self, limits: RelayLimits) -> None:
        self.limits = limits
        self.topics: dict[bytes, Topic] = {}
        self.early: dict[bytes, list[int]] = {}
        """Subscriptions to topics that are not registered yet: how many, and since when."""
        self.bytes = 0
        self.totals = Totals()
        self._signers: dict[str, int] = {}
        self._replays: dict[bytes, Topic] = {}
        """Topics with a replay that waits for its time."""

    # Registrations

    def register(self, now: Now, name: bytes, signer: str, expires_s: int) -> list[Message] | Refusal:
        """Let a signer publish on a topic, or go on doing so. Returns what early subscribers are to be sent: nothing yet."""
        limits = self.limits
        expires_us = min(expires_s, now.wall_us // 1_000_000 + limits.lifetime_max_s) * 1_000_000
        if expires_us <= now.wall_us:
            self.totals.refused += 1
            return Refusal("Forbidden", "the registration has expired already")
        topic = self.topics.get(name)
        if topic is not None:
            if topic.signer != signer:
                self.totals.refused += 1
                return Refusal("Forbidden", "the topic is registered by another signer")
            topic.expires_us = max(topic.expires_us, expires_us)
            return []
        mine = self._signers.get(signer, 0)
        if len(self.topics) >= limits.topics_max or mine >= limits.signer_topics_max:
            self.totals.refused += 1
            bound = "topics_max" if len(self.topics) >= limits.topics_max else "signer_topics_max"
            return Refusal("QuotaExceeded", f"`relay.{bound}` allows no further topic")
        topic = self.topics[name] = Topic(name, signer, now.us, expires_us)
        self._signers[signer] = mine + 1
        early = self.early.pop(name, None)
        if early is not None:
            topic.subscribers = early[0]
            topic.was_used = True
        return []

    # Messages

    def publish(self, now_us: int, name: bytes, message: Message, mark: Mark, size: int) -> Topic | None:
        """Take a message of a topic: the topic when it is to be forwarded now, None when it is held or dropped."""
        totals = self.totals
        totals.received += 1
        topic = self.topics.get(name)
        if topic is None:
            totals.unregistered += 1
            return None
        limits = self.limits
        if size > limits.message_max:
            totals.oversized += 1
            topic.lost += 1
            return None
        topic.seq = no = topic.seq + 1
        topic.was_used = True
        held = topic.held
        cost = size + HELD_COST
        if len(held) >= limits.max_pending_per_topic or topic.bytes + cost > limits.topic_bytes_max:
            self._make_room(topic, cost)
        if self.bytes + cost > limits.bytes_max:
            self._make_room(topic, cost, everywhere=True)
        if self.bytes + cost <= limits.bytes_max:
            held.append(Held(message, mark, now_us, cost, no))
            topic.bytes += cost
            self.bytes += cost
        elif topic.subscribers:
            totals.unkept += 1
        else:
            topic.lost += 1
            totals.lost += 1
        if topic.subscribers:
            topic.sent = no
            totals.forwarded += 1
            return topic
        return None

    def _make_room(self, topic: Topic, cost: int, *, everywhere: bool = False) -> None:
        """Let the oldest messages of a topic go until one more fits."""
        limits, held = self.limits, topic.held
        while held and (
            len(held) >= limits.max_pending_per_topic
            or topic.bytes + cost > limits.topic_bytes_max
            or (everywhere and self.bytes + cost > limits.bytes_max)
        ):
            self._let_go(topic)

    def _let_go(self, topic: Topic) -> None:
        oldest = topic.held.popleft()
        topic.bytes -= oldest.size
        self.bytes -= oldest.size
        if oldest.no > topic.sent:
            topic.lost += 1
            self.totals.lost += 1

    # Subscribers

    def subscribe(self, now: Now, name: bytes) -> list[Message]:
        """Somebody listens to a topic: what it is to be sent now."""
        topic = self.topics.get(name)
        if topic is None:
            early = self.early.get(name)
            if early is not None:
                early[0] += 1
            elif len(self.early) < self.limits.early_max:
                self.early[name] = [1, now.us]
            else:
                self.totals.early_forgotten += 1
            return []
        topic.subscribers += 1
        topic.was_used = True
        topic.detached_us = 0
        first = topic.held[0].no if topic.held else 0
        return self._replay(now, topic, first) if first else []

    def unsubscribe(self, now: Now, name: bytes) -> None:
        """Somebody listens no more, or is gone. What is kept stays for a while."""
        topic = self.topics.get(name)
        if topic is None:
            early = self.early.get(name)
            if early is not None:
                early[0] -= 1
                if early[0] <= 0:
                    del self.early[name]
            return
        topic.subscribers = max(topic.subscribers - 1, 0)
        if not topic.subscribers:
            topic.detached_us = now.us

    def resume(self, now: Now, name: bytes, mark: Mark) -> list[Message] | None:
        """Send again what followed a mark; None when the mark is not known any more."""
        self.totals.resumes += 1
        topic = self.topics.get(name)
        found = None
        if topic is not None:
            found = next((held.no for held in reversed(topic.held) if held.mark == mark), None)
        if topic is None or found is None:
            self.totals.resumes_missed += 1
            return None
        return self._replay(now, topic, found + 1) if found < topic.seq else []

    def _replay(self, now: Now, topic: Topic, first: int) -> list[Message]:
        """Send everything from a number on, now or together with what else is asked for in the meantime."""
        due_us = topic.replayed_us + self.limits.replay_interval_ms * 1000
        topic.replay_from = min(first, topic.replay_from or first)
        if now.us < due_us:
            topic.replay_due_us = due_us
            self._replays[topic.name] = topic
            return []
        return self._send_again(now, topic)

    def _send_again(self, now: Now, topic: Topic) -> list[Message]:
        first, topic.replay_from = topic.replay_from, 0
        self._replays.pop(topic.name, None)
        topic.replayed_us = now.us
        oldest_us = now.us - self.limits.message_ttl_ms * 1000
        messages = [held.message for held in topic.held if held.no >= first and held.at_us > oldest_us]
        if messages and topic.subscribers:
            self.totals.replayed += sum(1 for held in topic.held if first <= held.no <= topic.sent)
            topic.sent = topic.seq
        return messages if topic.subscribers else []

    def next_replay_us(self) -> int | None:
        """When a replay is due that was put off."""
        return min((topic.replay_due_us for topic in self._replays.values()), default=None)

    def due_replays(self, now: Now) -> list[tuple[Topic, list[Message]]]:
        """The replays whose time has come."""
        due = [topic for topic in self._replays.values() if topic.replay_due_us <= now.us]
        return [(topic, self._send_again(now, topic)) for topic in due]

    # Time

    def compact(self, now: Now) -> list[tuple[Topic, str]]:
        """Let go of what is too old, and of topics that are over: these, each with the reason."""
        limits = self.limits
        oldest_us = now.us - limits.message_ttl_ms * 1000
        gone: list[tuple[Topic, str]] = []
        for topic in list(self.topics.values()):
            while topic.held and topic.held[0].at_us <= oldest_us:
                self._let_go(topic)
            reason = self._ending(now, topic)
            if reason is not None:
                gone.append((topic, reason))
                self._remove(topic)
        early_us = now.us - limits.early_ms * 1000
        for name in [name for name, (_, since_us) in self.early.items() if since_us <= early_us]:
            del self.early[name]
            self.totals.early_forgotten += 1
        return gone

    def _ending(self, now: Now, topic: Topic) -> str | None:
        limits = self.limits
        if topic.expires_us <= now.wall_us:
            return "expired"
        if not topic.was_used and now.us - topic.registered_us >= limits.idle_grace_ms * 1000:
            return "idle"
        if topic.detached_us and now.us - topic.detached_us >= limits.detach_grace_ms * 1000:
            return "unsubscribed"
        return None

    def _remove(self, topic: Topic) -> None:
        while topic.held:
            self._let_go(topic)
        del self.topics[topic.name]
        self._replays.pop(topic.name, None)
        left = self._signers[topic.signer] - 1
        if left:
            self._signers[topic.signer] = left
        else:
            del self._signers[topic.signer]

    @property
    def undelivered(self) -> int:
        """Messages that nobody was sent yet."""
        return sum(sum(1 for held in topic.held if held.no > topic.sent) for topic in self.topics.values())
