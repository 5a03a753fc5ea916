"""The relay: hold messages until a topic has a subscriber, forward them, and replay what followed a mark. It never reads a message.

A topic ends when it expires, stays unused, or has had no subscriber for longer than the grace. The relay keeps every message for
a while, sent or not, so that a subscriber that lost some can ask for those after the last one it has. It cannot distinguish
subscribers, so a replay goes to all of a topic; replays are rate-limited and merged.

A topic's name is a secret: anyone who knows it may listen. Only its hash survives a restart; the first message or subscriber
then brings the name back.

Keeps: each message is forwarded once, when it arrives or when the first subscriber does; a topic's messages go out in order
of arrival; held messages stay within every bound; only the signer changes a registration. Cost of `publish`: O(1).
"""
# size: the loop over a burst repeats `publish` without its calls, which are most of what a message of one among many topics costs

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.relay.bounds import RelayLimits
from penstock.core.relay.topic import (
    COUNTED_EVERY,
    HELD_COST,
    Ended,
    Mark,
    Message,
    RelayCounts,
    Remembered,
    Resumed,
    Topic,
    cost_of,
    hash_of,
)

_LOW_BITS = COUNTED_EVERY - 1
_SEARCHED_MAX = 1_024
"""Up to this size in bytes, searching a message for a mark is cheaper than extracting its mark."""


class Relay:
    """Topics and their messages."""

    def __init__(self, limits: RelayLimits, mark_of: Callable[[Message], Mark | None]) -> None:
        """`mark_of` returns the mark of a message; only a dialect knows where it is."""
        self.limits = limits
        self.topics: dict[bytes, Topic] = {}
        self.remembered: dict[str, Remembered] = {}
        self.early: dict[bytes, list[int]] = {}
        """Subscriptions to topics that are not registered yet: how many, and since when."""
        self.bytes = 0
        """Cost of all held messages."""
        self.totals = RelayCounts()
        self.counted: dict[Topic, None] = {}
        """Topics that passed another `COUNTED_EVERY` messages; the reader of the counts empties it."""
        self._mark_of = mark_of
        self._signers: dict[str, int] = {}
        self._replays: dict[bytes, Topic] = {}
        """Topics with a postponed replay."""
        self._count_max = limits.max_pending_per_topic
        self._topic_max = limits.topic_bytes_max
        self._bytes_max = limits.bytes_max
        self._cost_max = limits.message_max + HELD_COST

    # Registrations

    def register(self, now: Now, name: bytes, signer: str, expires_s: int) -> Topic | Refusal:
        """Let a signer publish on a topic, or extend its registration."""
        refusal = self._register(now, name, signer, expires_s)
        if isinstance(refusal, Refusal):
            self.totals.refused += 1
        else:
            self.totals.registered += 1
        return refusal

    def _register(self, now: Now, name: bytes, signer: str, expires_s: int) -> Topic | Refusal:
        limits = self.limits
        expires_us = min(expires_s, now.wall_us // 1_000_000 + limits.lifetime_max_s) * 1_000_000
        if expires_us <= now.wall_us:
            return Refusal("Unauthorized", "the registration has expired already", ref="exp")
        topic = self._find(now.us, name)
        if topic is not None:
            if topic.signer != signer:
                return Refusal("Forbidden", "the topic is registered by another signer", ref="owner")
            topic.expires_us = max(topic.expires_us, expires_us)
            return topic
        mine = self._signers.get(signer, 0)
        count = len(self.topics) + len(self.remembered)
        if count >= limits.topics_max or mine >= limits.signer_topics_max:
            bound = "topics_max" if count >= limits.topics_max else "signer_topics_max"
            return Refusal("QuotaExceeded", f"`relay.{bound}` allows no further topic", ref=bound)
        self._signers[signer] = mine + 1
        return self._make(now.us, name, Remembered(hash_of(name), signer, expires_us))

    def _make(self, now_us: int, name: bytes, facts: Remembered) -> Topic:
        topic = self.topics[name] = Topic(name, facts, now_us, self._count_max)
        early = self.early.pop(name, None)
        if early is not None:
            topic.subscribers = early[0]
            topic.was_used = topic.live = True
        return topic

    def remember(self, facts: Iterable[Remembered]) -> None:
        """Restore registrations of an earlier run by their hashes, up to the bound."""
        for fact in facts:
            if len(self.topics) + len(self.remembered) >= self.limits.topics_max:
                return
            if fact.hash not in self.remembered:
                self.remembered[fact.hash] = fact
                self._signers[fact.signer] = self._signers.get(fact.signer, 0) + 1

    def _find(self, now_us: int, name: bytes) -> Topic | None:
        """Find a topic by name. A topic known only by its hash gets its name back."""
        topic = self.topics.get(name)
        if topic is None and self.remembered:
            facts = self.remembered.pop(hash_of(name), None)
            if facts is not None:
                topic = self._make(now_us, name, facts)
                topic.was_used = True
        return topic

    # Messages

    def publish(self, now_us: int, name: bytes, message: Message, size: int) -> Topic | None:
        """Accept a message. Returns its topic if it is forwarded now, None if it is held or dropped."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self._find(now_us, name)
            if topic is None:
                self.totals.unregistered += 1
                return None
        cost = size + HELD_COST
        if cost > self._cost_max:
            self.totals.oversized += 1
            return None
        held = topic.held
        room = cost
        if len(held) == self._count_max:  # the deque drops the oldest
            room -= len(held[0]) + HELD_COST if type(held[0]) is bytes else cost_of(held[0])
            if not topic.live and topic.first > topic.sent:
                topic.lost += 1
        if type(message) is not bytes:
            topic.has_blocks = True
        held.append(message)
        topic.times.append(now_us)
        topic.taken += cost
        topic.bytes = mine = topic.bytes + room
        self.bytes = total = self.bytes + room
        topic.seq = no = topic.seq + 1
        if mine > self._topic_max or total > self._bytes_max:
            self._make_room(topic)
        if not no & _LOW_BITS:
            self.counted[topic] = None
        if topic.live:
            return topic
        topic.was_used = True
        topic.withheld += 1
        return None

    def publish_all(self, now_us: int, names: list[bytes], messages: list[bytes]) -> list[bytes]:
        """Accept messages that arrived together, each with the name of its topic; returns those to forward.

        As `publish` for each, but cheaper: this loop is most of what a message of one among many topics costs.
        """
        if names.count(names[0]) == len(names):
            return messages if self._publish_run(now_us, names[0], messages) is not None else []
        get, count_max, cost_max = self.topics.get, self._count_max, self._cost_max
        topic_max, bytes_max, total = self._topic_max, self._bytes_max, self.bytes
        out = []
        for name, message in zip(names, messages, strict=True):
            topic = get(name)
            cost = room = len(message) + HELD_COST
            if topic is None or not topic.live or topic.has_blocks or cost > cost_max:
                self.bytes = total
                if self.publish(now_us, name, message, len(message)) is not None:
                    out.append(message)
                total = self.bytes
                continue
            held, times = topic.held, topic.times
            if len(held) == count_max:  # the deque drops the oldest
                room -= len(held[0]) + HELD_COST
            elif held and total + room > bytes_max:  # the relay is full, as it stays under load: as `_make_room`
                room -= len(held.popleft()) + HELD_COST
                times.popleft()
            held.append(message)
            times.append(now_us)
            topic.taken += cost
            topic.seq = no = topic.seq + 1
            if room:  # as a rule, the message that made room was as long
                topic.bytes = mine = topic.bytes + room
                total += room
                if mine > topic_max or total > bytes_max:
                    self.bytes = total
                    self._make_room(topic)
                    total = self.bytes
            if not no & _LOW_BITS:
                self.counted[topic] = None
            out.append(message)
        self.bytes = total
        return out

    def _publish_run(self, now_us: int, name: bytes, messages: list[bytes]) -> Topic | None:
        """Accept messages of one topic that arrived together."""
        topic = self.topics.get(name)
        count = len(messages)
        if topic is None or not topic.live or count > self._count_max:
            for message in messages:
                topic = self.publish(now_us, name, message, len(message))
            return topic
        held = topic.held
        cost = room = sum(map(len, messages)) + HELD_COST * count
        excess = len(held) + count - self._count_max
        if excess > 0:  # the deque drops the oldest
            oldest = islice(held, excess)
            if topic.has_blocks:
                room -= sum(map(cost_of, oldest))
            else:
                room -= sum(map(len, oldest)) + HELD_COST * excess
        held.extend(messages)
        topic.times.extend(repeat(now_us, count))
        topic.taken += cost
        topic.bytes += room
        self.bytes += room
        before, topic.seq = topic.seq, topic.seq + count
        if topic.bytes > self._topic_max or self.bytes > self._bytes_max:
            self._make_room(topic)
        if before // COUNTED_EVERY != topic.seq // COUNTED_EVERY:
            self.counted[topic] = None
        return topic

    def _make_room(self, topic: Topic) -> None:
        """Drop the oldest messages of a topic until the rest fits, in the end the newest too."""
        held, is_live, topic_max, bytes_max = topic.held, topic.live, self._topic_max, self._bytes_max
        mine, total = topic.bytes, self.bytes
        while held and (mine > topic_max or total > bytes_max):
            if not is_live and topic.first > topic.sent:
                topic.lost += 1
            elif is_live and len(held) == 1:
                self.totals.unkept += 1
            cost = cost_of(held.popleft())
            topic.times.popleft()
            mine -= cost
            total -= cost
        topic.bytes, self.bytes = mine, total

    def _let_go(self, topic: Topic) -> None:
        if not topic.live and topic.first > topic.sent:
            topic.lost += 1
        oldest = topic.held.popleft()
        topic.times.popleft()
        cost = cost_of(oldest)
        topic.bytes -= cost
        self.bytes -= cost

    # Subscribers

    def subscribe(self, now: Now, name: bytes) -> list[Message]:
        """A subscriber joined a topic. Returns what to send it now."""
        topic = self._find(now.us, name)
        if topic is None:
            early = self.early.get(name)
            if early is not None:
                early[0] += 1
            else:
                self._await(now, name, 1)
            return []
        topic.subscribers += 1
        topic.was_used = True
        topic.detached_us = 0
        if topic.held:
            return self._replay(now, topic, topic.first)
        topic.live = True
        return []

    def _await(self, now: Now, name: bytes, subscribers: int) -> None:
        """Remember subscribers of an unregistered topic. Evict only when full: an evicted subscriber still unsubscribes later."""
        early, limits = self.early, self.limits
        if len(early) >= limits.early_max:
            self.totals.early_forgotten += 1
            oldest = next(iter(early))
            if early[oldest][1] > now.us - limits.early_ms * 1000:
                return
            del early[oldest]
        early[name] = [subscribers, now.us]

    def unsubscribe(self, now: Now, name: bytes) -> None:
        """A subscriber left. Held messages are kept for the grace period."""
        topic = self.topics.get(name)
        if topic is None:
            early = self.early.get(name)
            if early is not None:
                early[0] -= 1
                if early[0] <= 0:
                    del self.early[name]
            return
        if topic.subscribers:
            topic.subscribers -= 1
            if not topic.subscribers:
                topic.detached_us = now.us
                self._stop(topic)

    def _stop(self, topic: Topic) -> None:
        """The last subscriber of a topic left."""
        if topic.live:
            topic.live = False
            topic.sent = topic.seq
        topic.replay_from = 0
        self._replays.pop(topic.name, None)

    def resume(self, now: Now, name: bytes, mark: Mark) -> Resumed:
        """Replay what followed a mark."""
        self.totals.resumes += 1
        topic = self._find(now.us, name)
        if topic is None:
            self.totals.resumes_missed += 1
            return Resumed(False, [], should_notify=True)
        found = self._number_of(topic, mark)
        if found is None:
            self.totals.resumes_missed += 1
            should_notify = now.us - topic.denied_us >= self.limits.replay_interval_ms * 1000
            if should_notify:
                topic.denied_us = now.us
            return Resumed(False, [], should_notify)
        if not topic.subscribers or found == topic.seq:
            return Resumed(True, [])  # the next subscriber receives everything
        return Resumed(True, self._replay(now, topic, found + 1))

    def _number_of(self, topic: Topic, mark: Mark) -> int | None:
        """The number of the first message with a mark: starting at a later copy of it would skip messages."""
        for no, message in enumerate(topic.held, topic.first):
            if (len(message) > _SEARCHED_MAX or mark in message) and self._mark_of(message) == mark:
                return no
        return None

    def _replay(self, now: Now, topic: Topic, first: int) -> list[Message]:
        """Send everything from a number on: now, or merged into a postponed replay."""
        due_us = topic.replayed_us + self.limits.replay_interval_ms * 1000
        topic.replay_from = min(first, topic.replay_from or first)
        if now.us < due_us:
            topic.replay_due_us = due_us
            self._replays[topic.name] = topic
            return []
        return self._send_again(now, topic)

    def _send_again(self, now: Now, topic: Topic) -> list[Message]:
        wanted, topic.replay_from = topic.replay_from, 0
        self._replays.pop(topic.name, None)
        topic.replayed_us = now.us
        first, oldest_us = topic.first, now.us - self.limits.ttl_us
        old = sum(1 for at_us in topic.times if at_us <= oldest_us)  # at the front
        start = max(wanted, first + old)
        messages = list(islice(topic.held, start - first, None))
        if not topic.live:
            unsent = max(topic.sent + 1, first)
            topic.lost += max(start - unsent, 0)
            topic.flushed += topic.seq + 1 - max(unsent, start)
            topic.replayed += max(unsent - start, 0)
            topic.live = True
        else:
            topic.replayed += len(messages)
        return messages

    def next_replay_us(self) -> int | None:
        """When the next postponed replay is due."""
        if not self._replays:
            return None
        return min(topic.replay_due_us for topic in self._replays.values())

    def due_replays(self, now: Now) -> list[tuple[Topic, list[Message]]]:
        """Run the postponed replays that are due."""
        due = [topic for topic in self._replays.values() if topic.replay_due_us <= now.us]
        return [(topic, self._send_again(now, topic)) for topic in due]

    # Time

    def compact(self, now: Now) -> list[Ended]:
        """Drop messages that are too old, and topics that ended."""
        oldest_us = now.us - self.limits.ttl_us
        ended: list[Ended] = []
        for topic in list(self.topics.values()):
            while topic.times and topic.times[0] <= oldest_us:
                self._let_go(topic)
            reason = self._ending(now, topic)
            if reason is not None:
                ended.append(Ended(topic.hash, reason, topic))
                self._remove(now, topic)
        for facts in [facts for facts in self.remembered.values() if facts.expires_us <= now.wall_us]:
            ended.append(Ended(facts.hash, "expired", None))
            del self.remembered[facts.hash]
            self._forget_signer(facts.signer)
        return ended

    def _ending(self, now: Now, topic: Topic) -> str | None:
        limits = self.limits
        if topic.expires_us <= now.wall_us:
            return "expired"
        if not topic.was_used and now.us - topic.registered_us >= limits.idle_grace_ms * 1000:
            return "idle"
        if topic.detached_us and now.us - topic.detached_us >= limits.detach_grace_ms * 1000:
            return "unsubscribed"
        return None

    def _remove(self, now: Now, topic: Topic) -> None:
        while topic.held:
            self._let_go(topic)
        self._stop(topic)
        del self.topics[topic.name]
        self.counted.pop(topic, None)
        self.totals.add(topic)
        self._forget_signer(topic.signer)
        if topic.subscribers:  # a later registration finds them
            self._await(now, topic.name, topic.subscribers)

    def _forget_signer(self, signer: str) -> None:
        left = self._signers[signer] - 1
        if left:
            self._signers[signer] = left
        else:
            del self._signers[signer]

    # Figures

    def sums(self) -> RelayCounts:
        """The current counts of the whole relay."""
        sums = msgspec.structs.replace(self.totals)
        for topic in self.topics.values():
            sums.add(topic)
        return sums

    def unsent(self) -> Iterator[tuple[Topic, int]]:
        """Topics with messages not sent yet, and how many."""
        for topic in self.topics.values():
            count = min(len(topic.held), topic.seq - topic.newest_sent)
            if count:
                yield topic, count
