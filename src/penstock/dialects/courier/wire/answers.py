"""Courier's answers about streams and envelopes as structs: what the SDK returns, and what the OpenAPI document describes.

The server builds these answers as dicts around the raw bytes of envelopes, because a copy into a struct would cost time. A member that the
server leaves out is None here. Answers may gain members, which an older client ignores.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Moment = Annotated[int, Meta(description="Milliseconds since 1970")]
RecordState = Literal["ready", "inflight", "delayed", "held", "settled"]


class CourierAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What the answers share."""

    def __getitem__(self, name: str) -> Any:
        """The member of this name in JSON. Until 0.1 answers were dicts; the next version removes this."""
        for field in msgspec.structs.fields(self):
            if field.encode_name == name:
                warnings.warn(f"use `.{field.name}` in place of `[{name!r}]`", DeprecationWarning, stacklevel=2)
                return getattr(self, field.name)
        raise KeyError(name)


class Stats(CourierAnswer, frozen=True):
    """The figures of one stream; rates are per second, latencies and ages in milliseconds."""

    depth: Count
    """Envelopes that are ready."""
    inflight: Count
    """Envelopes that are leased to consumers."""
    delayed: Count
    bytes: Count
    consumers: Count
    credit: Count
    seq: Count
    hot: Count
    """Envelopes that are delivered again and again."""
    rate_in: Number
    rate_out: Number
    lat_p50: Number
    lat_p95: Number
    lat_p99: Number
    oldest_ms: Number
    last_ts: Time | None
    """When the last envelope came in."""
    agents: list[str]
    """The agents of its consumers."""


class StreamMetrics(CourierAnswer, frozen=True):
    """One stream of many: its figures, and its counters by their names in the metrics."""

    id: str
    """The name of the stream."""
    stats: Stats
    q: dict[str, Number]


class Place(CourierAnswer, frozen=True, omit_defaults=True):
    """A stream that holds an envelope, or held it last."""

    stream: str
    state: RecordState
    seq: Count
    attempt: Count | None = None
    """How often it was delivered."""
    holder: str | None = None
    """The consumer that has it, if it is in flight."""
    agent: str | None = None
    """The agent of that consumer."""
    peer: str | None = None
    """The address of that consumer."""
    lease_expires_at: Moment | None = None
    due_at: Moment | None = None
    """When it becomes ready, if it is delayed."""
    outcome: str | None = None
    """How it was settled."""
    last_error: str | None = None


class PeekedRow(Place, frozen=True, kw_only=True):
    """An envelope in its stream, read without taking it."""

    envelope: dict[str, Any] = msgspec.field(name="env")

    @property
    def id(self) -> str:
        """The envelope's id."""
        return str(self.envelope["id"])

    @property
    def payload(self) -> Any:
        """The envelope's payload."""
        return self.envelope["payload"]


class Reason(CourierAnswer, frozen=True, omit_defaults=True):
    """One reason why a stream does not deliver, or delivers slowly."""

    code: str
    message: str
    count: Count | None = None
    """How many envelopes it is about."""
    consumers: Count | None = None
    """How many consumers it is about."""
    ids: list[str] | None = None
    """Some of these envelopes."""
    keys: Count | None = None
    next_expiry_ms: float | None = None
    next_due_at: Moment | None = None
    at: Moment | None = None
    """When it happened."""
    bytes: Count | None = None


class ConsumerFigures(CourierAnswer, frozen=True, omit_defaults=True):
    """One consumer of a stream."""

    holder: str
    agent: str
    peer: str | None
    credit: Count
    inflight: Count
    delivered: Count | None = None
    writable: bool | None = None
    """Whether it reads what it is sent."""


class Explained(CourierAnswer, frozen=True):
    """Why a stream delivers, or why it does not."""

    stream: str
    flowing: bool
    reasons: list[Reason]
    consumers: list[ConsumerFigures]


class Redriven(CourierAnswer, frozen=True):
    """The result of a redrive: how many dead letters were moved back, and how many are left."""

    moved: Count
    left: Count
    kept: Count = 0
    """Dead letters that could not be moved, for example because the stream is full."""


class Purged(CourierAnswer, frozen=True):
    """The result of a purge."""

    purged: Count


class Dropped(CourierAnswer, frozen=True):
    """The result of a drop."""

    dropped: Count
