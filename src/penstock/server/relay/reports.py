"""What the relay tells of itself: values that cross from its process to the server's.

Topics are named by their hashes. Facts rebuild what must survive; the rest are observations, and dropped before they slow anything.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from penstock.core.relay.machine import Totals


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The sockets are bound, here."""

    pub: str
    pull: str


class Unable(msgspec.Struct, tag="unable", array_like=True, frozen=True):
    """The sockets could not be bound, and trying again will not help."""

    reason: str


class Registered(msgspec.Struct, tag="register", array_like=True, frozen=True):
    """A fact: a signer may publish on a topic until a time."""

    topic: str
    signer: str
    expires_s: int
    had_milliseconds: bool = False
    """Its time was not in seconds."""


class Expired(msgspec.Struct, tag="expire", array_like=True, frozen=True):
    """A fact: a topic is over."""

    topic: str
    reason: str


class Counted(msgspec.Struct, tag="count", array_like=True, frozen=True):
    """What a topic did since it was last counted."""

    topic: str
    seq: int
    """The number of its newest message."""
    chunks: int
    bytes: int
    sent: int
    """Messages sent a first time."""
    replayed: int
    lost: int
    waiting: int
    """Messages held that nobody was sent yet."""
    subscribers: int
    format: str
    held: int = 0
    """Messages that can be sent again."""


class Listening(msgspec.Struct, tag="listen", array_like=True, frozen=True):
    """Somebody subscribed to a topic, or is gone."""

    topic: str
    on: bool
    subscribers: int


class Asked(msgspec.Struct, tag="resume", array_like=True, frozen=True):
    """Somebody asked for what followed a mark."""

    topic: str
    found: bool
    messages: int


class Passed(msgspec.Struct, tag="chunk", array_like=True, frozen=True):
    """A message itself, where the journal is to have them."""

    topic: str
    seq: int
    format: str
    body: bytes
    held: bool
    subscribers: int


class Figures(msgspec.Struct, tag="figures", array_like=True, frozen=True):
    """The whole relay as of now."""

    totals: Totals
    topics: int
    remembered: int
    bytes: int
    early: int
    dropped: int = 0
    """Observations that were not told."""
    facts_dropped: int = 0
    refused: dict[str, int] = {}
    """Messages, registrations and subscriptions that were refused, by the reason."""


class Stopped(msgspec.Struct, tag="stopped", array_like=True, frozen=True):
    """The last word: what nobody was sent."""

    topics: int
    undelivered: int


Fact: TypeAlias = Registered | Expired
Told: TypeAlias = (
    Ready | Unable | Registered | Expired | Counted | Listening | Asked | Passed | Figures | Stopped
)
FACTS = (Ready, Unable, Registered, Expired, Figures, Stopped)
"""What is not dropped for want of room."""

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Told]).decode
