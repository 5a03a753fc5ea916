"""A topic of the relay: its held messages, its counts, and what survives a restart.

Owns the numbers of its messages: the held ones are the newest, so the number of each follows from its position.
"""

from __future__ import annotations

from collections import deque
from hashlib import sha256
from typing import NamedTuple, TypeAlias

import msgspec

Message: TypeAlias = bytes | tuple[bytes, ...]
"""What goes to subscribers: one frame, or several."""
Mark: TypeAlias = bytes
"""Identifies a message."""
HELD_COST = 100
"""Overhead of a held message in bytes."""
COUNTED_EVERY = 256
"""A topic that passes so many messages is counted with the next report: a power of two."""
_LONG_AGO = -(10**12)


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """A registration of an earlier run: only the hash of its topic is known."""

    hash: str
    signer: str
    expires_us: int
    seq: int = 0
    """The number of its newest message, as far as is known."""


class Topic:
    """One stream of messages."""

    __slots__ = (
        "base",
        "bytes",
        "denied_us",
        "detached_us",
        "expires_us",
        "flushed",
        "has_blocks",
        "hash",
        "held",
        "live",
        "lost",
        "name",
        "registered_us",
        "replay_due_us",
        "replay_from",
        "replayed",
        "replayed_us",
        "sent",
        "seq",
        "signer",
        "subscribers",
        "taken",
        "times",
        "was_used",
        "withheld",
    )

    def __init__(self, name: bytes, facts: Remembered, registered_us: int, count_max: int) -> None:
        self.name = name
        self.hash = facts.hash
        """Its name in reports and the journal."""
        self.signer = facts.signer
        self.registered_us = registered_us
        self.expires_us = facts.expires_us
        """Wall clock."""
        self.base = facts.seq
        """Messages of earlier runs."""
        self.subscribers = 0
        self.live = False
        """Messages are forwarded: there is a subscriber, and it was sent everything held."""
        self.detached_us = 0
        """When the last subscriber left; 0 while there is one, or before the first."""
        self.was_used = False
        self.held: deque[Message] = deque(maxlen=count_max)
        self.has_blocks = False
        """Some of them may have several frames."""
        self.times: deque[int] = deque(maxlen=count_max)
        """When each arrived."""
        self.seq = 0
        """The number of its newest message in this run; that of the oldest held follows."""
        self.sent = 0
        """The number of the newest message that was sent when it last stopped being live."""
        self.taken = 0
        """Cost of all messages so far."""
        self.bytes = 0
        """Cost of the held messages."""
        self.withheld = 0
        """Messages that were not forwarded on arrival."""
        self.flushed = 0
        """Withheld messages that were sent later."""
        self.replayed = 0
        """Messages that were sent again."""
        self.lost = 0
        """Messages dropped before they were sent."""
        self.replay_from = 0
        """First number of the postponed replay; 0 if there is none."""
        self.replay_due_us = 0
        self.replayed_us = _LONG_AGO
        self.denied_us = _LONG_AGO
        """When subscribers were last notified that a mark is no longer held."""

    @property
    def first(self) -> int:
        """The number of the oldest message held, or of the next to come."""
        return self.seq - len(self.held) + 1

    @property
    def newest_sent(self) -> int:
        return self.seq if self.live else self.sent

    @property
    def bytes_in(self) -> int:
        """Bytes of all its messages so far."""
        return self.taken - HELD_COST * self.seq

    @property
    def forwarded(self) -> int:
        """Messages sent at least once."""
        return self.seq - self.withheld + self.flushed


class Resumed(NamedTuple):
    """The result of a request to resume."""

    found: bool
    messages: list[Message]
    should_notify: bool = False
    """Whether to notify the subscribers that the mark is no longer held."""


class Ended(NamedTuple):
    """A topic that ended, or a remembered registration that expired."""

    hash: str
    reason: str
    topic: Topic | None


class RelayCounts(msgspec.Struct):
    """Counts of the whole relay, without its current topics."""

    messages: int = 0
    bytes: int = 0
    forwarded: int = 0
    replayed: int = 0
    lost: int = 0
    """Dropped before they were sent: too old or too many."""
    unregistered: int = 0
    """Messages of unregistered topics."""
    oversized: int = 0
    unkept: int = 0
    """Forwarded but not held: no room."""
    registered: int = 0
    refused: int = 0
    """Registrations that were refused."""
    early_forgotten: int = 0
    resumes: int = 0
    resumes_missed: int = 0

    def add(self, topic: Topic) -> None:
        """Add the counts of a topic."""
        self.messages += topic.seq
        self.bytes += topic.bytes_in
        self.forwarded += topic.forwarded
        self.replayed += topic.replayed
        self.lost += topic.lost


def cost_of(message: Message) -> int:
    """The cost of holding a message, in bytes."""
    return HELD_COST + (len(message) if isinstance(message, bytes) else sum(map(len, message)))


def hash_of(name: bytes) -> str:
    """The name of a topic in reports and the journal."""
    return sha256(name).hexdigest()
