"""A topic of the relay: its messages that are kept, what it counts, and what is remembered of it across restarts.

Owns the numbers of its messages: those that are held are the newest, so that the number of each follows from its place.
"""

from __future__ import annotations

from collections import deque
from hashlib import sha256
from typing import TypeAlias

import msgspec

Message: TypeAlias = bytes | tuple[bytes, ...]
"""What goes to subscribers: one frame, or several."""
Mark: TypeAlias = bytes
"""What a message is known by."""
HELD_COST = 100
"""Overhead of a held message in bytes."""
COUNTED_EVERY = 256
"""A topic is counted at least this often, in messages: a power of two."""
_LONG_AGO = -(10**12)


class Remembered(msgspec.Struct, frozen=True, gc=False):
    """A registration of an earlier run: its topic is known by its hash alone."""

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
        """What it is called outside."""
        self.signer = facts.signer
        self.registered_us = registered_us
        self.expires_us = facts.expires_us
        """On the wall's clock."""
        self.base = facts.seq
        """Messages of earlier runs."""
        self.subscribers = 0
        self.live = False
        """Messages are forwarded: there is a subscriber, and it has what was held."""
        self.detached_us = 0
        """When the last subscriber left; 0 while there is one, or before the first."""
        self.was_used = False
        self.held: deque[Message] = deque(maxlen=count_max)
        self.has_blocks = False
        """Some of them may have several frames."""
        self.times: deque[int] = deque(maxlen=count_max)
        """When each of them came."""
        self.seq = 0
        """The number of its newest message in this run; that of the oldest held follows."""
        self.sent = 0
        """The number of the newest message that was sent when it last stopped being live."""
        self.taken = 0
        """What all its messages cost."""
        self.bytes = 0
        """What those cost that are held."""
        self.withheld = 0
        """Messages that were not forwarded when they came."""
        self.flushed = 0
        """Those of them that were sent later."""
        self.replayed = 0
        """Messages that were sent again."""
        self.lost = 0
        """Messages that were never sent and are gone."""
        self.replay_from = 0
        """From which number on a replay is due; 0 when none is."""
        self.replay_due_us = 0
        self.replayed_us = _LONG_AGO
        self.denied_us = _LONG_AGO
        """When subscribers were last notified that a mark is gone."""

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
        """Messages that were sent a first time."""
        return self.seq - self.withheld + self.flushed


def cost_of(message: Message) -> int:
    """What holding a message costs."""
    return HELD_COST + (len(message) if isinstance(message, bytes) else sum(map(len, message)))


def hash_of(name: bytes) -> str:
    """What a topic is called outside."""
    return sha256(name).hexdigest()
