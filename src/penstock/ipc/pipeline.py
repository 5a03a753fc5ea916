"""The contract between the server and the Spark process: settings, task, status and codes of failures.

The text under a field of the settings becomes its line in `docs/reference/config.md`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

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
    alerts: AlertsSection = AlertsSection()
    """Alert rules, and the recipient of alerts."""
    token_keys: Text | None = None
    """A file with keys of token streams, one JSON object a line, for `tokens` and `chain_ok` in `token_streams`; by default no stream is decrypted."""


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


class PipelineStatus(msgspec.Struct, omit_defaults=True):
    """The status of the pipeline, in `run/pipeline.json`."""

    state: Literal["off", "starting", "running", "stopped", "failed", "halted"]
    """A `failed` pipeline is restarted; a `halted` one waits for an operator, and `hint` says what to do."""
    pid: int = 0
    at_us: int = 0
    journal: str = ""
    end: int = 0
    """The offset behind the last row of the journal, at the time of writing."""
    queries: dict[str, QueryStatus] = {}
    behind: dict[str, int] = {}
    """Tables that lag behind their query, with their offsets."""
    own: dict[str, str] = {}
    """The queries of `pipeline.queries`: `running`, or the reason why not."""
    restarts: int = 0
    code: str | None = None
    message: str | None = None
    hint: str | None = None
    ui: str | None = None
    """Address of the Spark UI."""

    @property
    def offset(self) -> int:
        """Every table holds all rows before this offset."""
        return min([query.offset for query in self.queries.values()] + list(self.behind.values()), default=0)

    @property
    def lag(self) -> int:
        """Journal rows that are not in every table yet."""
        return max(self.end - self.offset, 0)


STATUS_FILE = "pipeline.json"
"""Name of the status file in the run directory."""
EXIT_HALTED = 4
"""Exit code of the pipeline's process when a restart would fail in the same way."""

HALT_HINTS = {
    "JournalChanged": "`penstock pipeline reset` forgets the checkpoints; tables keep the rows of the other journal",
    "JournalRewound": "`penstock pipeline rebuild` with the names of the tables rebuilds them, then `penstock pipeline reset`",
    "DataLoss": "`penstock pipeline reset --accept-loss` records the gap and continues at the oldest row that is kept",
    "BadTable": "correct the file that `pipeline.tables` names, then start again",
    "BadQuery": "correct the file that `pipeline.queries` names, then start again",
    "BadKeys": "correct the file that `pipeline.token_keys` names, then start again",
    "NoJava": "`penstock doctor` shows which Java was found",
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
    conf: dict[str, str] = {}
    """Settings for Spark."""
