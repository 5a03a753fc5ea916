"""The sections of the config file as types: schema, defaults and reference in one place.

The text under a field becomes its line in `docs/reference/config.md`, so write it for the operator.

The config section `relay`. A text under a field becomes its line in `docs/reference/config.md`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.core.limits import MIB, Limits
from penstock.core.queue.policy import IMMEDIATE
from penstock.core.relay.bounds import JournalMode, RelayLimits
from penstock.dialects.courier.triggers.config import Trigger
from penstock.ipc.pipeline import PipelineSection
from penstock.journal.retention import Retention
from penstock.server.config.spaces.schema import SpaceSection

Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]

Overflow: TypeAlias = Literal["reject", "drop-oldest"]
Redelivery: TypeAlias = Literal["tail", "head"]
OnDisconnect: TypeAlias = Literal["release", "hold"]
LateAck: TypeAlias = Literal["reject", "accept"]
SchemaMode: TypeAlias = Literal["off", "warn", "enforce"]

PUB = "tcp://127.0.0.1:5556"
"""Default address for subscribers; if the port is in use, the relay binds a free one."""


class RetrySettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Back-off before a failed envelope is delivered again."""

    base_ms: Positive = 1_000
    """Delay after the first failure."""
    factor: Annotated[float, Meta(ge=1.0, le=1_000.0)] = 2.0
    """Each further failure multiplies the delay by this."""
    max_ms: Positive = 60_000
    """Longest delay."""
    jitter: Share = 0.2
    """Random share of the delay, so that failed envelopes do not return at the same time."""
    immediate: Count = 0
    """Failures that are followed by a redelivery at once; the back-off starts after them."""


class RateSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A rate limit: a token bucket."""

    per_second: Annotated[float, Meta(ge=0.0001, le=1_000_000.0)]
    """Sustained envelopes per second; may be a fraction."""
    burst: Positive | None = None
    """Burst size; by default the envelopes of one second, at least 1."""


class StreamCaps(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings of the streams that match one pattern; a missing key keeps the value of `streams`."""

    default_lease_ms: Positive | UnsetType = UNSET
    max_depth: Positive | UnsetType = UNSET
    max_bytes: Positive | UnsetType = UNSET
    overflow: Overflow | UnsetType = UNSET
    redelivery: Redelivery | UnsetType = UNSET
    max_deliveries: Count | UnsetType = UNSET
    max_abandoned: Count | UnsetType = UNSET
    max_inflight: Count | UnsetType = UNSET
    on_disconnect: OnDisconnect | UnsetType = UNSET
    late_ack: LateAck | UnsetType = UNSET
    dedup_window: Positive | UnsetType = UNSET
    dedup_window_ms: Positive | UnsetType = UNSET
    retry: RetrySettings | Literal["none"] | UnsetType | None = UNSET
    rate: RateSettings | UnsetType | None = UNSET
    schema_mode: SchemaMode | UnsetType = UNSET
    partitioned: bool | UnsetType = UNSET
    priority: bool | UnsetType = UNSET
    priority_max_wait_ms: Positive | UnsetType = UNSET


class StreamsSection(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How streams behave."""

    default_lease_ms: Positive = 30_000
    """Lease of a consumer that does not request a duration."""
    max_depth: Positive = 100_000
    """Envelopes of one stream: ready, delayed and leased together."""
    max_bytes: Positive = 256 * MIB
    """Bytes of those envelopes."""
    overflow: Overflow = "reject"
    """When full: reject the new envelope, or drop the oldest one that is not leased."""
    redelivery: Redelivery = "tail"
    """Where a nacked or expired envelope returns to."""
    max_deliveries: Count = 20
    """Nacks and expired leases before an envelope moves to `dlq/<stream>`; 0 means never. For dead letters
    only a pattern that begins with `dlq/` sets it; above it they are deleted."""
    max_abandoned: Count = 100
    """Lost connections of its consumers before an envelope moves there, with the reason `abandoned`; 0 means never."""
    max_inflight: Count = 0
    """Concurrent leases of one stream; 0 means no limit, 1 means strictly one after another."""
    on_disconnect: OnDisconnect = "release"
    """What happens to the leases of a subscription that disconnects: back at once, or held to their end."""
    late_ack: LateAck = "reject"
    """Whether an ack counts after the lease expired, while the envelope still waits."""
    auto_create: bool = True
    """Whether an enqueue, a subscribe or a pull creates its stream; otherwise it is answered with 404."""
    assign_id: bool = False
    """Whether the server assigns an `id` to an envelope without one; otherwise it rejects the envelope."""
    dedup_window: Positive = 10_000
    """Settled ids that a stream remembers to detect duplicates."""
    dedup_window_ms: Positive = 600_000
    """How long it remembers them."""
    retry: RetrySettings | Literal["none"] | None = RetrySettings(max_ms=300_000, immediate=IMMEDIATE)
    """Back-off after a nack without a delay, an expired lease, and from the sixth lost connection in a row on; by default the
    first five redeliveries follow at once, then 1 s doubles to 5 min. `none` always redelivers at once."""
    rate: RateSettings | None = None
    """Rate limit of each stream, over all senders; by default none."""
    schema_mode: SchemaMode = "off"
    """Whether payloads are validated against the schema that their envelope names: not at all, with a warning, or strictly."""
    partitioned: bool = False
    """Whether envelopes with the same `partitionKey` are delivered one after another: at most one of a key is leased."""
    priority: bool = False
    """Whether `headers.priority` (`high`, `normal`, `low`, or 0 to 9) orders delivery, most urgent first. Excludes `partitioned`."""
    priority_max_wait_ms: Positive = 30_000
    """With `priority`: an envelope that has waited this long is delivered before more urgent ones."""
    per_stream_caps: dict[Text, StreamCaps] = {}
    """Settings for some streams, by name or pattern (`*` matches any characters, `/` included). An exact name wins, then the
    longest text before the first `*`; only one entry applies to a stream."""


class TokenSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token and what it allows."""

    token: Text
    """The token, its `sha256:<hex>`, or `env:NAME` to read it from the environment."""
    scopes: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """`streams:<pattern>:<verb>` (enqueue, subscribe, read, admin, `*`), `views:<pattern>:<verb>`, `admin:*`."""
    name: Text | None = None
    """Name of its holder in logs; by default the agent or a number."""
    agent: Text | None = None
    """The agent of its holder: the server fills in and verifies `from`."""
    tenant: Text | None = None
    """The tenant of its holder: its stream `x` is `t/<tenant>/x`, and it has access to no other."""
    rate: RateSettings | None = None
    """Rate limit of its holder; by default `rates.perToken`."""

    def holder_name(self, number: int) -> str:
        """The name of the holder; `number` counts the tokens from 1."""
        name = self.name or self.agent or f"token-{number}"
        return name if self.tenant is None else f"{self.tenant}/{name}"


class AuthSection(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Who may connect."""

    tokens: tuple[TokenSection, ...] = ()
    """With tokens, every client needs one. Without, clients on this machine may use the Courier verbs."""
    allow_anonymous: bool = False
    """Serve clients without a token from other machines too. Every client that reaches the port may then read and write."""
    query_token: bool = False
    """Accept `?access_token=`. Such tokens appear in the logs of proxies."""
    protect_metrics: bool = False
    """Whether `/metrics` and `/v1/metrics` require a token even where other routes do not."""


class RateDefaults(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Rate limits of senders. Only enqueue and send are limited, never an ack, a nack or a credit."""

    per_token: RateSettings | None = None
    """For each token without its own `rate`."""
    per_address: RateSettings | None = None
    """For all senders without a token at one address; IPv6 addresses are grouped by /64 network."""


class TenantLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of all streams of one tenant together."""

    streams_max: Positive = 1_000
    """Streams in memory."""
    envelopes_max: Positive = 100_000
    """Envelopes in all of them."""
    bytes_max: Positive = 256 * MIB
    """Bytes of those envelopes."""
    rate: RateSettings | None = None
    """Rate limit of all its tokens together; by default none."""


class ListenSection(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Addresses that the server listens on."""

    http: str = "localhost:8787"
    """HTTP and WebSocket: `HOST:PORT`; `localhost` means 127.0.0.1 and ::1; port 0 binds a free one."""
    ws: str = "off"
    """A second address that serves the same as `http`: `HOST:PORT` or `off`."""
    control: str = "127.0.0.1:9787"
    """Control v1 lines: `HOST:PORT`, `unix:PATH` or `off`."""
    requests: bool = True
    """Whether plain HTTP requests are served; `/health` and the operator's requests always are."""
    sockets: bool = True
    """Whether WebSockets are accepted."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may connect, e.g. `https://app.example.com`."""
    advertise: Text | None = None
    """A Stream Kernel's `reports/router-endpoints.json`; the server keeps its entry there while it runs."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` is trusted, e.g. `10.0.0.0/8`."""


class JournalSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How records become durable."""

    sync: Literal["commit", "interval", "off"] = "commit"
    """When the disk is synced: at every group commit, at intervals, or by the system only."""
    linger_us: Count = 200
    """How long a record may wait for others to share its commit; an idle journal commits at once."""
    seal_every_ms: Positive = 60_000
    """How often new history is moved to the Delta table `lake/events`."""
    segment_max: Positive = 64 * MIB
    """Bytes of new history that trigger the move before the interval ends."""
    retention: Retention = Retention()
    """How long sealed history is kept."""


class LogsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The logs of the server."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is written."""
    format: Literal["auto", "json", "text"] = "auto"
    """JSON lines, short text, or text on a terminal and JSON elsewhere."""
    payload: bool = False
    """Whether events may include payloads."""
    file: Text | None = None
    """A file to append to instead of standard error."""
    record: Text | None = None
    """A file to append every Control v1 frame to, a JSON line each: `ts`, `dir` (`in` or `out`), `frame`, `link`."""
    redact: bool = True
    """Whether tokens are removed from recorded frames."""
    events: Text | None = None
    """A file for the event log: one JSON line for each event of an envelope or connection; by default none."""
    events_max_bytes: Positive = 64 * MIB
    """Size at which that file is rotated."""
    events_keep: Count = 5
    """Rotated files that are kept."""


class MetricsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metrics of `GET /metrics`."""

    per_stream: bool = False
    """Whether each stream has its own metrics, up to `limits.metric_streams_max`; otherwise only sums are exported. A scrape may
    choose with `?streams=1` or `?streams=0`."""


class SchemasSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Schemas of payloads."""

    dir: Text | None = None
    """A directory of JSON Schemas: `<namespace>/<name>@v<major>.json` or `<namespace>/<name>@v<major>.<minor>.json`."""


class GitSkill(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answers `git.diff.request` envelopes with the diff between two commits."""

    root: Text | None = None
    """A repository or a directory of repositories; by default the skill is off. Every client that may enqueue to `stream` can read
    what is committed there."""
    stream: Text = "skills/git.diff"
    """The stream of requests."""
    replies: Annotated[tuple[Text, ...], Meta(min_length=1)] = ("agents/*",)
    """Patterns of the streams that may receive answers."""
    timeout_ms: Positive = 5_000
    """A git process that runs longer is killed."""
    output_max: Positive = 256 * 1024
    """Bytes of a diff; a longer one is truncated and marked."""
    parallel_max: Positive = 2
    """Concurrent requests."""


class SkillsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Skills that answer envelopes; all are off by default."""

    git: GitSkill = GitSkill()
    """`git.diff`."""


class ConsoleSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The web console, served at `/` of the HTTP port."""

    enabled: bool = True
    """Whether the console is served."""
    sql_ms: Positive = 10_000
    """How long a query of the tables may take."""
    sql_rows: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Rows of its answer; a longer one is truncated and marked."""


class CurveFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CURVE: encryption on TCP, and the keys that may connect."""

    secret: Text
    """The server's `*.key_secret`, made by `penstock token curve-keygen`; relative to the working directory of `up`."""
    allowed: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """Public keys that may connect, 40 characters each; `"*"` admits every client that knows the server's public key."""


class RelaySection(RelayLimits, frozen=True, forbid_unknown_fields=True):
    """StreamService: the relay of token streams, in a process of its own. It cannot read the messages."""

    enabled: bool | None = None
    """Whether the relay runs; by default it does with `penstock up`."""
    pub: Text = PUB
    """Address for subscribers: `tcp://HOST:PORT` or `ipc://PATH`; port 0 binds a free one."""
    pull: Text | None = None
    """Address for publishers; by default the socket `push.sock` in the run directory, which only its owner can reach."""
    signers: dict[Text, Text] = msgspec.field(default_factory=dict)
    """Ed25519 public keys that may register topics, by name, 64 hexadecimal digits each; the key in `run/publisher.key` may too."""
    curve: CurveFiles | None = None
    """Keys for TCP; required for an address that other machines can reach."""
    journal: JournalMode = "metadata"
    """What the journal keeps of streams: counts, also the messages, or nothing. With `off`, registrations do not survive a restart."""
    check_links: bool = False
    """Whether the relay rejects a message that does not name the preceding one. This keeps forged messages out of the history, but a
    message lost on the way to the relay ends its stream."""


class Sections(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    lake: Text | None = None
    """Where the tables are: a path, or a URL of an object store (`s3://`, `abfss://`, `gs://`). By default `lake` in the data directory,
    or where the last start placed it."""
    lake_credentials: Text | None = None
    """A file of `NAME=value` lines with the storage options and credentials of that store, such as `AWS_ACCESS_KEY_ID`; by default the
    environment. Every process that uses the tables reads it."""
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
