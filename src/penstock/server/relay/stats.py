"""What the relay's loop has to tell, gathered until the next report: topics by their hashes, within bounds.

Owns what was counted of each topic so far, so that each report says what is new. At a bound observations are dropped and counted;
facts have a bound of their own, far away.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.relay.limits import MIB
from penstock.core.relay.machine import Relay
from penstock.core.relay.topic import Message, Topic
from penstock.dialects.streamservice.wire import TOPIC_SIZE
from penstock.server.relay.reports import (
    FACTS,
    MessageRelayed,
    RelayReport,
    RelayTotals,
    SubscribersChanged,
    TopicCounts,
    TopicExpired,
)

BODIES_MAX = 16 * MIB
"""Bytes of messages that wait to be told, where the journal is to have them."""

Report = Callable[[list[RelayReport]], None]


class TopicStats:
    """Between a relay and whoever listens to what it did."""

    def __init__(self, relay: Relay, report: Report | None) -> None:
        self._relay = relay
        self._report = report
        self._told: list[RelayReport] = []
        self._observed = 0
        self._bodies = 0
        self._counted: dict[Topic, tuple[int, int, int, int, int]] = {}
        self.refused: dict[str, int] = {}
        """What was refused, by one word for the reason; there are few of them."""
        self.dropped = 0
        self.facts_dropped = 0

    @property
    def is_heard(self) -> bool:
        return self._report is not None

    def refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def tell(self, told: RelayReport) -> None:
        if self._report is None:
            return
        limits = self._relay.limits
        if isinstance(told, FACTS):
            if len(self._told) - self._observed >= limits.facts_max:
                self.facts_dropped += 1
                return
        elif self._observed >= limits.observations_max:
            self.dropped += 1
            return
        else:
            self._observed += 1
        self._told.append(told)

    def listening(self, name: bytes, *, on: bool) -> None:
        """Somebody came to a topic, or went."""
        topic = self._relay.topics.get(name)
        if topic is not None:
            self.tell(SubscribersChanged(topic.hash, on, topic.subscribers))

    def passed(self, topic: Topic, message: Message, *, is_held: bool) -> None:
        """A message itself. A chunk names its topic inside too: there its hash takes the name's place, which no MAC covers."""
        form, whole = ("chunk", message) if isinstance(message, bytes) else ("block", b"".join(message))
        if self._bodies + len(whole) > BODIES_MAX:
            self.dropped += 1
            return
        self._bodies += len(whole)
        body = whole[TOPIC_SIZE:]
        if form == "chunk":
            body = body.replace(topic.name, topic.hash.encode())
        self.tell(MessageRelayed(topic.hash, topic.base + topic.seq, form, body, is_held, topic.subscribers))

    def count(self, topic: Topic) -> None:
        """What a topic did since it was last counted."""
        figures = (topic.seq, topic.bytes_in, topic.forwarded, topic.replayed, topic.lost)
        before = self._counted.get(topic, (0, 0, 0, 0, 0))
        if self._report is None or figures == before:
            return
        self._counted[topic] = figures
        chunks, size, sent, replayed, lost = (now - then for now, then in zip(figures, before, strict=True))
        waiting = min(len(topic.held), topic.seq - topic.newest_sent)
        form = "block" if topic.held and isinstance(topic.held[-1], tuple) else "chunk"
        seq = topic.base + topic.seq
        self.tell(
            TopicCounts(
                topic.hash,
                seq,
                chunks,
                size,
                sent,
                replayed,
                lost,
                waiting,
                topic.subscribers,
                form,
                len(topic.held),
            )
        )

    def count_busy(self) -> None:
        """Count the topics that came past another round number."""
        busy, self._relay.counted = self._relay.counted, []
        for topic in busy:
            self.count(topic)

    def count_all(self) -> None:
        for topic in self._relay.topics.values():
            self.count(topic)

    def ended(self, topic: Topic | None, digest: str, reason: str) -> None:
        """A topic is over."""
        if topic is not None:
            self.count(topic)
            self._counted.pop(topic, None)
        self.tell(TopicExpired(digest, reason))

    def flush(self) -> None:
        """Report what passed since the last time, and the counts of the whole."""
        if self._report is None:
            return
        relay, told = self._relay, self._told
        self._told = []
        self._observed = self._bodies = 0
        sizes = len(relay.topics), len(relay.remembered), relay.bytes, len(relay.early)
        told.append(RelayTotals(relay.sums(), *sizes, self.dropped, self.facts_dropped, dict(self.refused)))
        self._report(told)
