"""The JSON of Courier's answers, for the OpenAPI document.

These structs only document: the operations build their answers as dicts around the raw bytes of envelopes, once for HTTP
and Control v1, and a copy into a struct would cost time on the hot path. Answers may gain members.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Moment = Annotated[int, Meta(description="Milliseconds since 1970")]
Batch = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class StoredEnvelope(msgspec.Struct):
    """An envelope. The headers of a dead letter hold an object that says why it failed."""

    id: Name
    ts: Time
    type: Name
    payload: Any
    sender: str | UnsetType | None = msgspec.field(default=UNSET, name="from")
    to: Annotated[str, Meta(max_length=512)] | UnsetType = UNSET
    corr: str | UnsetType | None = UNSET
    schema: str | UnsetType | None = UNSET
    version: int | UnsetType | None = UNSET
    refs: list[str] | UnsetType | None = UNSET
    tags: list[str] | UnsetType | None = UNSET
    headers: dict[str, Any] | UnsetType | None = UNSET


class NewEnvelope(StoredEnvelope):
    """An envelope as a client sends it."""

    headers: dict[str, str | float | bool | None] | UnsetType | None = UNSET


class CheckedEnvelope(msgspec.Struct):
    """The fields of an envelope that its schema concerns."""

    payload: Any
    schema: str | UnsetType | None = UNSET


class EnqueuedOne(msgspec.Struct):
    """One envelope was enqueued."""

    id: str
    seq: Count
    duplicate: bool | UnsetType = UNSET


class EnqueuedMany(msgspec.Struct):
    """An array of envelopes was enqueued."""

    ids: list[str]
    seqs: list[Count]
    duplicates: list[str] | UnsetType = UNSET


class RecipientState(msgspec.Struct):
    """Whether the stream exists, and whether a consumer is connected."""

    known: bool
    present: bool


class SentReply(msgspec.Struct):
    """A message was enqueued."""

    id: str
    seq: Count
    to: str
    recipient: RecipientState
    duplicate: bool | UnsetType = UNSET


class PulledDelivery(msgspec.Struct, rename="camel"):
    """A leased envelope."""

    deliver: StoredEnvelope
    stream: str
    seq: Count
    attempt: Count
    lease_id: str
    lease_expires_at: Moment


class PulledReply(msgspec.Struct):
    """Leased envelopes; none when the wait ended."""

    deliveries: list[PulledDelivery]


class SettledReply(msgspec.Struct, rename="camel"):
    """A lease ended or was extended."""

    id: str
    op: str
    settled: bool | UnsetType = UNSET
    lease_expires_at: Moment | UnsetType = UNSET


class RedrivenReply(msgspec.Struct):
    """Dead letters went back to their stream."""

    moved: Count
    left: Count
    kept: Count | UnsetType = UNSET


class PurgedReply(msgspec.Struct):
    """A stream was emptied."""

    purged: Count


class StatsReply(msgspec.Struct, rename="camel"):
    """Figures of one stream."""

    depth: Count
    inflight: Count
    delayed: Count
    bytes: Count
    consumers: Count
    credit: Count
    seq: Count
    rate_in: Number
    rate_out: Number
    lat_p50: Number = msgspec.field(name="latP50")
    lat_p95: Number = msgspec.field(name="latP95")
    lat_p99: Number = msgspec.field(name="latP99")
    oldest_ms: Number
    last_ts: Time | None


class StreamMetrics(msgspec.Struct):
    """Figures and counters of one stream."""

    id: str
    stats: StatsReply
    q: dict[str, Number]


class MetricsReply(msgspec.Struct):
    """Every stream that the caller may read."""

    streams: list[StreamMetrics]


class PlaceReply(msgspec.Struct, rename="camel"):
    """Where an envelope is or was."""

    stream: str
    state: Literal["ready", "inflight", "delayed", "held", "settled"]
    seq: Count
    attempt: Count | UnsetType = UNSET
    holder: str | UnsetType = UNSET
    lease_expires_at: Moment | UnsetType = UNSET
    due_at: Moment | UnsetType = UNSET
    outcome: str | UnsetType = UNSET
    last_error: str | UnsetType = UNSET


class PlacesReply(msgspec.Struct):
    """All places of one id."""

    id: str
    places: list[PlaceReply]


class PeekedRow(PlaceReply, kw_only=True):
    """An envelope and its place."""

    env: StoredEnvelope


class PeekedReply(msgspec.Struct):
    """Envelopes in one state."""

    rows: list[PeekedRow]


class ViewRow(msgspec.Struct):
    """One row of a view."""

    addr: str
    env: StoredEnvelope | UnsetType = UNSET
    row: dict[str, Any] | UnsetType = UNSET


class ViewRowsReply(msgspec.Struct, rename="camel"):
    """The rows of a view, and their version."""

    rows: list[ViewRow]
    watermark: Count
    as_of: Time


class Reason(msgspec.Struct):
    """One reason, with a code for programs."""

    code: str
    message: str


class ConsumerFigures(msgspec.Struct):
    """A consumer of a stream."""

    holder: str
    credit: Count
    inflight: Count


class ExplainedReply(msgspec.Struct):
    """Whether a stream flows, and why not."""

    stream: str
    flowing: bool
    reasons: list[Reason]
    consumers: list[ConsumerFigures]


class SchemaVersions(msgspec.Struct):
    """A payload schema."""

    name: str
    versions: list[str]


class SchemasReply(msgspec.Struct):
    """The payload schemas of the server."""

    schemas: list[SchemaVersions]


class SchemaProblem(msgspec.Struct):
    """What is wrong at one place of a payload."""

    path: str
    rule: str
    message: str


class JudgedReply(msgspec.Struct):
    """Whether an envelope fits the schema that it names."""

    ok: bool
    finding: Literal["fits", "missing", "malformed", "unknown", "newer", "misfit"]
    message: str | None
    against: str | None
    problems: list[SchemaProblem]


class StagedPartReply(msgspec.Struct):
    """A part was staged."""

    app: str
    batch: Batch
    part: str
    staged: Count


class StagedBatchReply(msgspec.Struct):
    """A batch was committed, or had been before."""

    app: str
    batch: Batch
    enqueued: Count
    duplicate: bool
    last: Batch | UnsetType = UNSET
    frames: Count | UnsetType = UNSET


class StageAbortedReply(msgspec.Struct):
    """What was staged of a batch was dropped."""

    app: str
    batch: Batch
    dropped: Count


class StageLastReply(msgspec.Struct):
    """The newest committed batch of an application."""

    app: str
    last: Batch | None


class TriggerStateReply(msgspec.Struct):
    """A trigger with its counts."""

    id: str
    hook: Literal["on_insert", "on_ack", "on_timeout", "on_dead"]
    origin: Literal["config", "runtime"]
    state: Literal["ready", "resting", "disabled"]
    rule: dict[str, Any]
    counters: dict[str, Count]


class TriggersReply(msgspec.Struct):
    """Every trigger, in the order in which they are tried."""

    triggers: list[TriggerStateReply]


class TriggerCooldown(msgspec.Struct, rename="camel"):
    """A key for which a trigger does not fire for now."""

    key: str
    ends_in_ms: Count
    suppressed: Count


class TriggerFiring(msgspec.Struct):
    """A recent firing."""

    at: Time


class TriggerExplainedReply(TriggerStateReply):
    """Why a trigger fires or does not."""

    reasons: list[Reason]
    cooling: list[TriggerCooldown]
    recent: list[TriggerFiring]


class TriggerPutReply(msgspec.Struct):
    """A trigger was created or replaced."""

    id: str
    created: bool


class TriggerRemovedReply(msgspec.Struct):
    """A trigger was removed; `config` says whether one of the config file applies again."""

    id: str
    removed: bool
    config: bool


class TriggerTrial(msgspec.Struct):
    """What one trigger would do."""

    id: str
    hook: str
    fits: bool
    because: list[str] | UnsetType = UNSET
    sends: list[dict[str, Any]] | UnsetType = UNSET
    warnings: Count | UnsetType = UNSET


class TriggersTriedReply(msgspec.Struct):
    """What the triggers would do with an envelope."""

    triggers: list[TriggerTrial]


class HealthReply(msgspec.Struct, rename="camel"):
    """Whether the server accepts work."""

    ok: bool
    status: Literal["ok", "draining"]
    version: str
    boot_id: str
    features: list[str]
    spaces: Count
    clients: Count
    uptime: Number
    journal: dict[str, Any]
