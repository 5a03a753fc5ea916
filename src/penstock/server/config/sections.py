"""The sections of the config file, as types: the schema, the defaults and the reference in one place.

A text under a field becomes its line in `docs/reference/config.md`, so write it for the operator.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.core.limits import MIB, Limits
from penstock.dialects.courier.triggers.config import Trigger
from penstock.ipc.pipeline import PipelineSection
from penstock.journal.retention import Retention
from penstock.server.config.relay_sections import RelaySection
from penstock.server.config.spaces.sections import SpaceSection

Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]

Overflow: TypeAlias = Literal["reject", "drop-oldest"]
Redelivery: TypeAlias = Literal["tail", "head"]
OnDisconnect: TypeAlias = Literal["release", "hold"]
LateAck: TypeAlias = Literal["reject", "accept"]
SchemaMode: TypeAlias = Literal["off", "warn", "enforce"]


class RetrySettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Back-off before an envelope that failed is delivered again."""

    base_ms: Positive = 1_000
    """Delay after the first failure."""
    factor: Annotated[float, Meta(ge=1.0, le=1_000.0)] = 2.0
    """Each further failure multiplies the delay by this."""
    max_ms: Positive = 60_000
    """Longest delay."""
    jitter: Share = 0.2
    """Share of the delay that is drawn at random, so that failures do not return together."""


class RateSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How fast envelopes may come: a bucket that time fills."""

    per_second: Annotated[float, Meta(ge=0.0001, le=1_000_000.0)]
    """Envelopes a second in the long run; may be a fraction."""
    burst: Positive | None = None
    """Envelopes at once after a pause; left out, those of one second, and at least 1."""


class StreamCaps(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings of the streams one pattern covers; a key that is left out keeps the value of `streams`."""

    default_lease_ms: Positive | UnsetType = UNSET
    max_depth: Positive | UnsetType = UNSET
    max_bytes: Positive | UnsetType = UNSET
    overflow: Overflow | UnsetType = UNSET
    redelivery: Redelivery | UnsetType = UNSET
    max_deliveries: Count | UnsetType = UNSET
    max_inflight: Count | UnsetType = UNSET
    on_disconnect: OnDisconnect | UnsetType = UNSET
    late_ack: LateAck | UnsetType = UNSET
    dedup_window: Positive | UnsetType = UNSET
    dedup_window_ms: Positive | UnsetType = UNSET
    retry: RetrySettings | UnsetType | None = UNSET
    rate: RateSettings | UnsetType | None = UNSET
    schema_mode: SchemaMode | UnsetType = UNSET
    partitioned: bool | UnsetType = UNSET
    priority: bool | UnsetType = UNSET
    priority_max_wait_ms: Positive | UnsetType = UNSET


class StreamsSection(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How streams behave."""

    default_lease_ms: Positive = 30_000
    """How long a consumer holds an envelope when it does not ask for a time of its own."""
    max_depth: Positive = 100_000
    """Envelopes of one stream: waiting, delayed and leased together."""
    max_bytes: Positive = 256 * MIB
    """Bytes of those envelopes."""
    overflow: Overflow = "reject"
    """At a bound: refuse the new envelope, or drop the oldest one that nobody holds."""
    redelivery: Redelivery = "tail"
    """Where an envelope goes that was nacked or whose lease expired."""
    max_deliveries: Count = 0
    """Failed deliveries before an envelope moves to `dlq/<stream>`; 0 means never. For dead letters themselves only a
    pattern that begins with `dlq/` sets it: beyond it they are given up for good."""
    max_inflight: Count = 0
    """Leases of one stream at once; 0 means no bound, 1 means strictly one after the other."""
    on_disconnect: OnDisconnect = "release"
    """What happens to the leases of a subscription that disconnects: back at once, or held to their end."""
    late_ack: LateAck = "reject"
    """Whether an ack counts after the lease expired, while the envelope still waits."""
    auto_create: bool = True
    """Whether an enqueue, a subscribe or a pull creates its stream; otherwise it is answered with 404."""
    assign_id: bool = False
    """Whether an envelope without an `id` is given one; otherwise it is refused."""
    dedup_window: Positive = 10_000
    """Settled ids that a stream remembers to recognise duplicates."""
    dedup_window_ms: Positive = 600_000
    """How long it remembers them."""
    retry: RetrySettings | None = None
    """Back-off after a nack without a delay; left out, the envelope returns at once."""
    rate: RateSettings | None = None
    """How fast envelopes may come into each stream, whoever sends them; left out, as fast as they like."""
    schema_mode: SchemaMode = "off"
    """Whether payloads are held against the schema that their envelope names: not at all, with a warning, or strictly."""
    partitioned: bool = False
    """Whether envelopes with the same `partitionKey` are handed out one after the other: at most one of a key is out."""
    priority: bool = False
    """Whether `headers.priority` counts (`high`, `normal`, `low`, or 0 to 9): the most urgent first. Not with `partitioned`."""
    priority_max_wait_ms: Positive = 30_000
    """With `priority`: an envelope that waited this long gets a turn, however urgent the others are."""
    per_stream_caps: dict[Text, StreamCaps] = {}
    """Other settings for some streams, by name or pattern (`*` is any run of characters, `/` included).
    An exact name wins, then the longest text before the first `*`; only one entry applies to a stream."""


class TokenSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token and what it allows."""

    token: Text
    """The token itself, `sha256:<hex>` of it, or `env:NAME` to take it from the environment."""
    scopes: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """`streams:<pattern>:<verb>` (enqueue, subscribe, read, admin, `*`), `views:<pattern>:<verb>`, `admin:*`."""
    name: Text | None = None
    """How logs call its holder; left out, the agent or a number."""
    agent: Text | None = None
    """The agent its holder speaks for: `from` is then filled and verified."""
    tenant: Text | None = None
    """The tenant its holder belongs to: what it calls stream `x` is `t/<tenant>/x`, and it reaches no other."""
    rate: RateSettings | None = None
    """How fast its holder may send; left out, `rates.perToken`."""

    def holder_name(self, number: int) -> str:
        """What its holder is called; `number` counts the tokens from 1."""
        name = self.name or self.agent or f"token-{number}"
        return name if self.tenant is None else f"{self.tenant}/{name}"


class AuthSection(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Who may come in."""

    tokens: tuple[TokenSection, ...] = ()
    """With tokens here, everybody needs one; without, peers on this machine may use the Courier verbs."""
    allow_anonymous: bool = False
    """Serve peers without a token from other machines too. Anyone who reaches the port may then read and write."""
    query_token: bool = False
    """Accept `?access_token=`; such tokens end up in the logs of proxies."""
    protect_metrics: bool = False
    """Whether `/metrics` and `/v1/metrics` ask for a token even where nothing else does."""


class RateDefaults(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How fast senders may send. Only enqueue and send are limited, never an ack, a nack or a credit."""

    per_token: RateSettings | None = None
    """Each token that has no `rate` of its own."""
    per_address: RateSettings | None = None
    """All senders without a token at one address; an IPv6 address counts by its /64 network."""


class TenantLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the streams of one tenant may hold together."""

    streams_max: Positive = 1_000
    """Streams in memory."""
    envelopes_max: Positive = 100_000
    """Envelopes in all of them."""
    bytes_max: Positive = 256 * MIB
    """Bytes of those envelopes."""
    rate: RateSettings | None = None
    """How fast all its tokens together may send; left out, as fast as they like."""


class ListenSection(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Where the doors are."""

    http: str = "localhost:8787"
    """HTTP and WebSocket: `HOST:PORT`; `localhost` means 127.0.0.1 and ::1, port 0 a free one."""
    ws: str = "off"
    """A second address that serves the same as `http`: `HOST:PORT` or `off`."""
    control: str = "127.0.0.1:9787"
    """Control v1 lines: `HOST:PORT`, `unix:PATH` or `off`."""
    requests: bool = True
    """Whether plain HTTP requests are served; `/health` and the operator always are."""
    sockets: bool = True
    """Whether WebSockets are opened."""
    origins: tuple[str, ...] = ()
    """Web pages from elsewhere that may connect, e.g. `https://app.example.com`."""
    advertise: Text | None = None
    """A Stream Kernel's `reports/router-endpoints.json`, in which we keep an entry about ourselves while we run."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` is believed, e.g. `10.0.0.0/8`."""


class JournalSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How records become durable."""

    sync: Literal["commit", "interval", "off"] = "commit"
    """When the disk is synced: at every group commit, now and then, or by the system alone."""
    linger_us: Count = 200
    """How long a record may wait for company before its commit; an idle journal commits at once."""
    seal_every_ms: Positive = 60_000
    """How often new history is moved to the Delta table `lake/events`."""
    segment_max: Positive = 64 * MIB
    """Bytes of new history that are moved without waiting for the time."""
    retention: Retention = Retention()
    """How long sealed history is kept."""


class LogsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server says about itself."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important event that is written."""
    format: Literal["auto", "json", "text"] = "auto"
    """JSON lines, short text, or text on a terminal and JSON elsewhere."""
    payload: bool = False
    """Whether events may carry payloads."""
    file: Text | None = None
    """A file to append to instead of standard error."""
    record: Text | None = None
    """A file to append every Control v1 frame to, a JSON line each: `ts`, `dir` (`in` or `out`), `frame`, `link`."""
    redact: bool = True
    """Whether tokens are left out of recorded frames."""
    events: Text | None = None
    """A file to which what happens to each envelope and connection is appended, as lines of JSON; left out, nothing is."""
    events_max_bytes: Positive = 64 * MIB
    """Size at which that file is put aside and a new one begun."""
    events_keep: Count = 5
    """Files put aside that are kept; the oldest goes first."""


class MetricsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `GET /metrics` tells Prometheus."""

    per_stream: bool = False
    """Whether each stream has figures of its own, up to `limits.metric_streams_max`; else there are only sums.
    A scrape may ask for one or the other with `?streams=1` or `?streams=0`."""


class SchemasSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What payloads look like."""

    dir: Text | None = None
    """A directory of JSON Schemas: `<namespace>/<name>@v<major>.json` or `<namespace>/<name>@v<major>.<minor>.json`."""


class GitSkill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answers `git.diff.request` envelopes with what changed between two commits."""

    root: Text | None = None
    """A directory of repositories, or one of them; left out, the skill is off. Whoever may enqueue to `stream` may read
    what is committed there."""
    stream: Text = "skills/git.diff"
    """The stream that requests come to."""
    replies: Annotated[tuple[Text, ...], Meta(min_length=1)] = ("agents/*",)
    """Patterns of the streams that answers may go to."""
    timeout_ms: Positive = 5_000
    """A git that takes longer is ended."""
    output_max: Positive = 256 * 1024
    """Bytes of a diff; what is longer is cut, and says so."""
    parallel_max: Positive = 2
    """Requests at work at once."""


class SkillsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server does for envelopes that ask for it; everything is off until it is configured."""

    git: GitSkill = GitSkill()
    """`git.diff`."""


class ConsoleSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The web console, served at `/` of the HTTP port."""

    enabled: bool = True
    """Whether there is one."""
    sql_ms: Positive = 10_000
    """How long a question to the tables may take."""
    sql_rows: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Rows of its answer; what is more is cut, and says so."""


class Sections(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    streams: StreamsSection = StreamsSection()
    triggers: tuple[Trigger, ...] = ()
    auth: AuthSection = AuthSection()
    rates: RateDefaults = RateDefaults()
    tenants: dict[Text, TenantLimits] = {}
    listen: ListenSection = ListenSection()
    limits: Limits = Limits()
    journal: JournalSection = JournalSection()
    pipeline: PipelineSection = PipelineSection()
    logs: LogsSection = LogsSection()
    metrics: MetricsSection = MetricsSection()
    schemas: SchemasSection = SchemasSection()
    skills: SkillsSection = SkillsSection()
    spaces: tuple[Text | SpaceSection, ...] = ()
    relay: RelaySection = RelaySection()
    console: ConsoleSection = ConsoleSection()
