"""The contract between the server and the Spark process: settings, task, status and codes of failures.

The text under a field of the settings becomes its line in `docs/reference/config.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, assert_never

import msgspec
from msgspec import Meta

from penstock.core.health import PartHealth, State

Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
RuleId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]


class AlertRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A condition that raises an alert."""

    id: RuleId
    """Unique name of the rule."""
    severity: Literal["info", "warning", "critical"] = "warning"
    """Severity of its alerts."""


class RateRule(AlertRule, frozen=True, tag="rate"):
    """More envelopes enqueued in a minute than expected."""

    above: Annotated[float, Meta(ge=0)] = 1_000.0
    """Envelopes per minute."""
    channel: Text = "*"
    """Pattern of streams; `*` matches any characters."""


class LatencyRule(AlertRule, frozen=True, tag="latency"):
    """Envelopes of a minute that waited too long for their first delivery; evaluated at the end of the minute."""

    above: Annotated[float, Meta(ge=0)] = 1_000.0
    """Milliseconds, at the 95th percentile of what was settled in that minute."""
    channel: Text = "*"
    """Pattern of streams."""


class DeadLetterRule(AlertRule, frozen=True, tag="dead_letters"):
    """Envelopes moved to the dead letters in a minute."""

    above: Annotated[float, Meta(ge=0)] = 0.0
    """Dead letters per minute."""
    channel: Text = "*"
    """Pattern of streams."""


class SilenceRule(AlertRule, frozen=True, tag="silence"):
    """An agent that has sent and settled nothing for some time, by wall-clock time."""

    for_ms: Positive = 300_000
    """How long it may be silent."""
    agent: Text = "*"
    """Pattern of agents; `*` matches any characters. An agent is known after its first action."""


class TriggerFailureRule(AlertRule, frozen=True, tag="trigger_failures"):
    """Failed firings of a trigger in a minute."""

    above: Annotated[float, Meta(ge=0)] = 0.0
    """Failed firings per minute."""
    trigger: Text = "*"
    """Pattern of triggers; `*` matches any characters."""


AnyAlertRule: TypeAlias = RateRule | LatencyRule | DeadLetterRule | SilenceRule | TriggerFailureRule


class AlertsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Alerts of the pipeline."""

    rules: tuple[AnyAlertRule, ...] = (DeadLetterRule("dead-letters"),)
    """Rules. Their alerts become rows of the table `alerts`."""
    to: Text | None = None
    """Agent or stream that also receives alerts as envelopes; by default none."""


class PipelineSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Spark pipeline that turns the journal into tables."""

    enabled: bool = True
    """Whether `penstock up` runs it, if pyspark is installed."""
    master: Text = "local[2]"
    """Where Spark runs: `local[N]`, or the address of a cluster."""
    memory: Text = "768m"
    """Heap of Spark's driver, which in local mode is all of Spark."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 10
    """Nice value of its process, so that the server gets the CPU first."""
    trigger_ms: Positive = 500
    """How often it reads new rows."""
    watch_ms: Positive = 5_000
    """How often it evaluates the rules of `alerts`."""
    batch_rows_max: Positive = 500_000
    """Journal rows of one batch."""
    tables: tuple[Text, ...] = ()
    """Python files with your own tables."""
    queries: tuple[Text, ...] = ()
    """Python files with your own streaming queries, run in the session of the pipeline; each defines `start(spark, place, checkpoint)`."""
    retention: dict[str, Text] = {}
    """Tables whose old rows are removed, with their age in days, e.g. `{frames: 90d}`; by default rows stay."""
    alerts: AlertsSection = AlertsSection()
    """Alert rules, and the recipient of alerts."""
    token_keys: Text | None = None
    """A file with keys of token streams, one JSON object a line, for `tokens` and `chain_ok` in `token_streams`. Default: none."""
    schemas: Text | None = None
    """A directory of JSON Schemas: payloads of each become the table `types_<name>_v<major>`. Default: `schemas.dir`."""


class BatchStatus(msgspec.Struct):
    """One batch of a query, and where its time went."""

    at_us: int
    """When it ended."""
    rows: int
    ms: int
    steps: dict[str, int]
    """Milliseconds by step: `read` and, for each table, `<table>.rows` and `<table>.commit`. Tables are written side by side."""
    written: dict[str, int] = {}
    """Rows that each table got, or that replaced others."""


BATCHES_MAX = 20
"""Batches of a query that the status keeps."""


class TableStatus(msgspec.Struct):
    """The size and the progress of one table."""

    rows: int
    files: int
    bytes: int
    version: int
    at_us: int
    """When its last version was committed."""
    ends: dict[str, int]
    """It holds the rows before these offsets, by journal."""
    lag_rows: int = 0
    lag_seconds: float = 0.0
    """The age of the oldest row that it lacks."""
    batch_ms: int = 0
    """How long it took in the latest batch of its query."""
    batch_rows: int = 0
    """Rows that this batch wrote to it."""


class QueryStatus(msgspec.Struct):
    """Progress of one query."""

    offset: int = 0
    """Its tables hold all rows before this offset."""
    batches: int = 0
    """Batches of this run."""
    rows: int = 0
    """Journal rows of its latest batch."""
    batch_ms: int = 0
    """How long its latest batch took."""
    at_us: int = 0
    """When the latest batch ended."""
    recent: list[BatchStatus] = []
    """The latest batches, newest last."""
    input_rate: float = 0.0
    """Rows a second that arrive: of the pipeline's own batches, or by Spark's last report of a query of yours."""
    trigger: dict[str, int] = {}
    """Milliseconds of the phases of Spark's last trigger; `addBatch` is the batch itself."""

    def ended(self, batch: BatchStatus) -> None:
        """Note a batch; its rows arrived since the one before."""
        passed_us = batch.at_us - self.at_us if self.at_us else 0
        self.input_rate = round(batch.rows * 1e6 / passed_us, 1) if passed_us > 0 else 0.0
        self.batches += 1
        self.rows, self.batch_ms, self.at_us = batch.rows, batch.ms, batch.at_us
        self.recent = [*self.recent[1 - BATCHES_MAX :], batch]


class BatchFailure(msgspec.Struct):
    """Batches that failed in one step."""

    query: str
    table: str
    """The table that the step fills; empty for a step of the whole batch, such as `read`, and for a query of a user."""
    step: str
    count: int = 0
    """Failures since the server started."""
    at_us: int = 0
    cause: str = ""
    """When the last one was, and why."""


class ExpectationStatus(msgspec.Struct):
    """Rows of a user's table that failed an expectation."""

    table: str
    name: str
    on_fail: Literal["drop", "warn", "fail"]
    failed: int = 0
    """Rows since the pipeline started."""
    sample: str = ""
    """The key of one of them."""


PipelineState: TypeAlias = Literal["off", "starting", "running", "stopped", "failed", "halted"]


class PipelineStatus(msgspec.Struct, omit_defaults=True):
    """The status of the pipeline, in `run/pipeline.json`."""

    state: PipelineState
    """A `failed` pipeline is restarted, and stays `failed` until it runs; a `halted` one waits for an operator."""
    pid: int = 0
    at_us: int = 0
    journal: str = ""
    end: int = 0
    """The offset behind the last row of the journal, at the time of writing; of several journals the sum."""
    ends: dict[str, int] = {}
    """The same by journal."""
    queries: dict[str, QueryStatus] = {}
    behind: dict[str, int] = {}
    """Tables that lag behind their query, with their offsets."""
    own: dict[str, str] = {}
    """The queries of `pipeline.queries`: `running`, or the reason why not."""
    own_queries: dict[str, QueryStatus] = {}
    """Their progress, as Spark reports it; their steps are the phases of Spark's trigger."""
    failed: list[BatchFailure] = []
    """The steps in which batches failed, the latest last."""
    stopped: dict[str, str] = {}
    """Users' tables that stopped while the others run on, with the reason."""
    expectations: list[ExpectationStatus] = []
    restarts: int = 0
    code: str | None = None
    message: str | None = None
    hint: str | None = None
    ui: str | None = None
    """Address of the Spark UI."""
    since_us: int = 0
    """When it entered this state."""
    failures: int = 0
    """Failures since it last ran for `STABLE_US`."""
    failed_us: int = 0
    failure: str = ""
    """The last failure and its time; they stay when it runs again."""
    tables: dict[str, TableStatus] = {}
    """The tables as they are."""
    stored: int = 0
    """The least progress of the tables, by their own transactions; counts while the pipeline is down."""

    @property
    def offset(self) -> int:
        """Every table holds all rows before this offset."""
        offsets = [query.offset for query in self.queries.values()] + list(self.behind.values())
        if self.state == "running" and offsets:
            # The tables may be newer than the report, or the report than the last look.
            newest = max(min((query.offset for query in self.queries.values()), default=0), self.stored)
            return min([newest, *self.behind.values()])
        return self.stored if self.tables else min(offsets, default=0)

    @property
    def lag(self) -> int:
        """Journal rows that are not in every table yet."""
        return max(self.end - self.offset, 0)

    def reach(self, ends: Mapping[str, int]) -> None:
        """Take the present ends of journals; those of a journal that was replaced are forgotten."""
        known = {} if self.ends.keys().isdisjoint(ends) else self.ends
        self.ends = {**known, **ends}
        self.end = sum(self.ends.values())

    def show(self, tables: dict[str, TableStatus]) -> None:
        """Take the tables as they are, and the time that each took in the latest batch."""
        self.tables = tables
        # A table that the first batch has not made yet lacks every row; those of alerts exist only if there are rules.
        expected = [name for name in FILLED_TABLES if name in tables or name not in WATCHED_TABLES]
        self.stored = min(sum(tables[name].ends.values()) if name in tables else 0 for name in expected)
        for query in self.queries.values():
            latest = query.recent[-1] if query.recent else BatchStatus(0, 0, 0, {})
            took = latest.steps
            for name, table in tables.items():
                if any(step.startswith(f"{name}.") for step in took):
                    table.batch_ms = took.get(f"{name}.rows", 0) + took.get(f"{name}.commit", 0)
                    table.batch_rows = latest.written.get(name, 0)

    def enter(self, state: PipelineState, at_us: int) -> None:
        """Change the state."""
        if state != self.state or not self.since_us:
            self.state, self.since_us = state, at_us
        if state == "running":
            self.code = self.message = self.hint = None
            if at_us - self.since_us >= STABLE_US:
                self.failures = 0

    def fail(self, at_us: int, code: str, message: str, hint: str, *, is_halted: bool = False) -> None:
        """Note a failure; one that a restart cannot fix halts the pipeline."""
        self.enter("halted" if is_halted else "failed", at_us)
        self.code, self.message, self.hint, self.pid = code, message, hint, 0
        self.failure, self.failed_us = message, at_us
        self.failures += 1

    def fail_batch(self, at_us: int, query: str, step: str | None, cause: str) -> None:
        """Count a batch that failed; a step of a table is `<table>.<part>`."""
        table, _, part = (step or "").rpartition(".")
        known = {(one.query, one.table, one.step): one.count for one in self.failed}
        count = 1 + known.get((query, table, part), 0)
        self.failed = [one for one in self.failed if (one.query, one.table, one.step) != (query, table, part)]
        self.failed.append(BatchFailure(query, table, part, count, at_us, cause))

    def finding(self) -> PartHealth:
        """The pipeline as a part of the server's health."""
        failure = (self.failed_us, self.failure) if self.failed_us else None
        state, reason, action = self._explained()
        return PartHealth(state, reason, action, failure, self.since_us)

    def _explained(self) -> tuple[State, str, str]:
        lag = f"rows not in every table yet: {self.lag}"
        match self.state:
            case "off":
                return "off", f"no pipeline has run; {lag}", _START
            case "stopped":
                return "off", f"stopped; {lag}", _START
            case "starting":
                return "starting", f"Spark is starting; {lag}", ""
            case "failed" | "halted":
                times = "" if self.failures < 2 else f"; {self.failures} failures in a row"
                return "failed", f"{self.message}{times}; {lag}", self.hint or ""
            case "running":
                if self.stopped:
                    return "degraded", "; ".join([*self.stopped.values(), lag]), _TABLE
                ended = [f"query `{name}`: {state}" for name, state in self.own.items() if state != "running"]
                if ended:
                    return "degraded", "; ".join([*ended, lag]), _QUERY
                if self.failures:
                    reason = f"runs again after {self.failures} failures, the last: {self.failure}; {lag}"
                    return "degraded", reason, "watch whether it stays up"
                return "ok", f"running; {lag}", ""
            case _:
                assert_never(self.state)


_START = "`penstock up` runs one, and `penstock pipeline run --once` fills the tables now"
_TABLE = "correct the table or its expectation in the file that `pipeline.tables` names, then restart the server"
_QUERY = "correct the file that `pipeline.queries` names"
STABLE_US = 120_000_000
"""A pipeline that has run this long is no longer failing."""
WATCHED_TABLES = ("agents", "alerts")
FILLED_TABLES = (
    "queue_minutes", "envelopes", "deliveries", "frames", "token_chunks", "latest_per_agent", "trigger_minutes",
    "fanout_minutes", "token_streams", "conversations", *WATCHED_TABLES,
)  # fmt: skip
"""The tables whose progress is that of the pipeline."""
WORKSHOP = "_rebuild"
"""The directory in the lake in which new tables are built, and the lock of commands that fill or erase tables."""
STATUS_FILE = "pipeline.json"
"""Name of the status file in the run directory."""
LOG_FILE = "pipeline.log"
"""Name of the file in the run directory with the output of the latest run."""
READ_LOG = f"read `run/{LOG_FILE}` in the data directory, the output of its latest run; `{LOG_FILE}.1` is that of the run before"
EXIT_HALTED = 4
"""Exit code of the pipeline's process when a restart would fail in the same way."""

HALT_HINTS = {
    "JournalChanged": "`penstock pipeline reset` forgets the checkpoints; tables keep the rows of the other journal",
    "JournalRewound": "`penstock pipeline rebuild` with the names of the tables rebuilds them, then `penstock pipeline reset`",
    "DataLoss": "`penstock pipeline reset --accept-loss` records the gap and continues at the oldest row that is kept",
    "BadTable": "correct the file that `pipeline.tables` names, then start again",
    "BadQuery": "correct the file that `pipeline.queries` names, then start again",
    "BadKeys": "correct the file that `pipeline.token_keys` names, then start again",
    "NoJava": "install Java 17 or newer, or correct JAVA_HOME where the server is started; then restart the server",
    "SchemaChanged": "`penstock pipeline rebuild TABLE` rebuilds the table",
    "CheckpointUnusable": "`penstock pipeline reset QUERY` forgets its checkpoint; the tables keep their rows and offsets",
}
"""What to do about each failure that halts the pipeline, by its code: the `code` of the exception's class."""


class PipelineTask(msgspec.Struct):
    """The task of the pipeline's process."""

    data: str
    settings: PipelineSection
    url: str | None = None
    """HTTP address that alerts are sent to."""
    once: bool = False
    read_url: str | None = None
    """Read the journal from this HTTP address instead of the directory, for executors on other machines."""
    token: str | None = None
    journals: tuple[str, ...] = ()
    """Further data directories whose journals fill the same tables."""
    cluster: str | None = None
    """The id that their rows share in `conversations` and `agents`; by default that of the first journal."""
    conf: dict[str, str] = {}
    """Settings for Spark."""
    before: PipelineStatus | None = None
    """The status of the run before, if that one failed."""
