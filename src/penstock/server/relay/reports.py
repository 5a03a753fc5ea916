"""Reports of the relay: values that cross from its process to the server.

Topics are named by their hashes. A fact rebuilds state after a restart and is kept; everything else is an observation, which is dropped
before it slows the relay.

`TopicStats` collects them until the next flush. It keeps the last counts of each topic, so that a report holds only the difference. When
full, it drops and counts observations; facts have a separate, much higher bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from penstock.core.relay.bounds import MIB
from penstock.core.relay.machine import Relay
from penstock.core.relay.topic import Message, RelayCounts, Topic
from penstock.dialects.streamservice.wire import TOPIC_SIZE


class RelayReady(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The sockets are bound to these addresses."""

    pub: str
    pull: str


class BindFailed(msgspec.Struct, tag="unable", array_like=True, frozen=True):
    """The sockets cannot be bound; a retry does not help."""

    reason: str


class TopicRegistered(msgspec.Struct, tag="register", array_like=True, frozen=True):
    """A fact: a signer may publish on a topic until it expires."""

    topic: str
    signer: str
    expires_s: int
    had_milliseconds: bool = False
    """The publisher sent `exp` in milliseconds instead of seconds."""
    nonce: str = ""
    timestamp_ms: int = 0


class TopicExpired(msgspec.Struct, tag="expire", array_like=True, frozen=True):
    """A fact: a topic ended."""

    topic: str
    reason: str


class TopicCounts(msgspec.Struct, tag="count", array_like=True, frozen=True):
    """What a topic did since its last count."""

    topic: str
    seq: int
    """The number of its newest message."""
    chunks: int
    bytes: int
    sent: int
    """Messages sent for the first time."""
    replayed: int
    lost: int
    waiting: int
    """Held messages that no subscriber has received yet."""
    subscribers: int
    format: str
    held: int = 0
    """Messages that can be sent again."""


class SubscribersChanged(msgspec.Struct, tag="listen", array_like=True, frozen=True):
    """A subscriber joined a topic, or left it."""

    topic: str
    on: bool
    subscribers: int


class ResumeRequested(msgspec.Struct, tag="resume", array_like=True, frozen=True):
    """A subscriber asked for the messages after a mark."""

    topic: str
    found: bool
    messages: int


class MessageRelayed(msgspec.Struct, tag="chunk", array_like=True, frozen=True):
    """A message itself, for `journal: full`."""

    topic: str
    seq: int
    format: str
    body: bytes
    held: bool
    subscribers: int


class RelayTotals(msgspec.Struct, tag="figures", array_like=True, frozen=True):
    """The state of the whole relay."""

    totals: RelayCounts
    topics: int
    remembered: int
    bytes: int
    early: int
    dropped: int = 0
    """Observations that were not reported."""
    facts_dropped: int = 0
    refused: dict[str, int] = {}
    """Refused messages, registrations and subscriptions, by reason."""
    peers_cut: dict[str, int] = {}
    """Publishers and subscribers disconnected, by reason."""
    reopened: int = 0
    """Times all peers were disconnected to free memory."""


class RelayStopped(msgspec.Struct, tag="stopped", array_like=True, frozen=True):
    """The last report: what was not delivered."""

    topics: int
    undelivered: int


TopicReport: TypeAlias = (
    TopicRegistered | TopicExpired | TopicCounts | SubscribersChanged | ResumeRequested | MessageRelayed
)
ProcessReport: TypeAlias = RelayReady | BindFailed | RelayTotals | RelayStopped
RelayReport: TypeAlias = TopicReport | ProcessReport
FACTS = (RelayReady, BindFailed, TopicRegistered, TopicExpired, RelayTotals, RelayStopped)
"""Kept when the pipe to the server is full and observations are dropped."""

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[RelayReport]).decode


BODIES_MAX = 16 * MIB
"""Bytes of messages that wait for the next flush, with `journal: full`."""

Report = Callable[[list[RelayReport]], None]


class TopicStats:
    """Counts of each topic, and the reports that wait."""

    def __init__(self, relay: Relay, report: Report | None) -> None:
        self._relay = relay
        self._send = report
        self._waiting: list[RelayReport] = []
        self._observed = 0
        self._bodies = 0
        self._counted: dict[Topic, tuple[int, int, int, int, int]] = {}
        self.refused: dict[str, int] = {}
        """Number of refusals by reason; the reasons are few."""
        self.dropped = 0
        self.facts_dropped = 0
        self.peers_cut: dict[str, int] = {}
        self.reopened = 0

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def report(self, report: RelayReport) -> None:
        if self._send is None:
            return
        limits = self._relay.limits
        if isinstance(report, FACTS):
            if len(self._waiting) - self._observed >= limits.facts_max:
                self.facts_dropped += 1
                return
        elif self._observed >= limits.observations_max:
            self.dropped += 1
            return
        else:
            self._observed += 1
        self._waiting.append(report)

    def subscribers_changed(self, name: bytes, *, on: bool) -> None:
        """A subscriber joined a topic, or left it."""
        topic = self._relay.topics.get(name)
        if topic is not None:
            self.report(SubscribersChanged(topic.hash, on, topic.subscribers))

    def passed(self, topic: Topic, message: Message, *, is_held: bool) -> None:
        """Report a message. A chunk holds the name of its topic, outside its MAC; the hash replaces it."""
        form, whole = ("chunk", message) if isinstance(message, bytes) else ("block", b"".join(message))
        if self._bodies + len(whole) > BODIES_MAX:
            self.dropped += 1
            return
        self._bodies += len(whole)
        body = whole[TOPIC_SIZE:]
        if form == "chunk":
            body = body.replace(topic.name, topic.hash.encode())
        self.report(MessageRelayed(topic.hash, topic.base + topic.seq, form, body, is_held, topic.subscribers))

    def count(self, topic: Topic) -> None:
        """Report what a topic did since its last count."""
        figures = (topic.seq, topic.bytes_in, topic.forwarded, topic.replayed, topic.lost)
        before = self._counted.get(topic, (0, 0, 0, 0, 0))
        if self._send is None or figures == before:
            return
        self._counted[topic] = figures
        chunks, size, sent, replayed, lost = (now - then for now, then in zip(figures, before, strict=True))
        waiting = min(len(topic.held), topic.seq - topic.newest_sent)
        form = "block" if topic.held and isinstance(topic.held[-1], tuple) else "chunk"
        seq = topic.base + topic.seq
        self.report(
            TopicCounts(
                topic.hash, seq, chunks, size, sent, replayed, lost, waiting, topic.subscribers, form, len(topic.held)
            )
        )

    def count_busy(self) -> None:
        """Count the topics that passed another round number of messages, each once."""
        busy, self._relay.counted = self._relay.counted, {}
        for topic in busy:
            self.count(topic)

    def count_all(self) -> None:
        self._relay.counted = {}
        for topic in self._relay.topics.values():
            self.count(topic)

    def ended(self, topic: Topic | None, digest: str, reason: str) -> None:
        """A topic ended."""
        if topic is not None:
            self.count(topic)
            self._counted.pop(topic, None)
        self.report(TopicExpired(digest, reason))

    def flush(self) -> None:
        """Send the waiting reports, and the totals of the relay."""
        if self._send is None:
            return
        relay, waiting = self._relay, self._waiting
        sizes = len(relay.topics), len(relay.remembered), relay.bytes, len(relay.early)
        waiting.append(
            RelayTotals(
                relay.sums(),
                *sizes,
                self.dropped,
                self.facts_dropped,
                dict(self.refused),
                dict(self.peers_cut),
                self.reopened,
            )
        )
        self.send_waiting()

    def send_waiting(self) -> None:
        """Send the waiting reports."""
        waiting, self._waiting = self._waiting, []
        self._observed = self._bodies = 0
        if waiting and self._send is not None:
            self._send(waiting)
