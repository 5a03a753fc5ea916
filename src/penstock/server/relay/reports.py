"""Reports of the relay: values that cross from its process to the server.

Topics are named by their hashes. A fact rebuilds state after a restart and is kept; everything else is an observation, which is dropped
before it slows the relay.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from penstock.core.relay.topic import RelayCounts


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
