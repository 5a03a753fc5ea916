"""The settings of the data pipeline: read by the server, obeyed by the Spark process, known to both.

A text under a field becomes its line in `docs/reference/config.md`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
RuleId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]


class AlertRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """What is watched for."""

    id: RuleId
    """Name of the rule; no two share one."""
    severity: Literal["info", "warning", "critical"] = "warning"
    """How bad it is; goes into the alert as it is."""


class RateRule(AlertRule, frozen=True, tag="rate"):
    """More envelopes enqueued in a minute than expected."""

    above: Annotated[float, Meta(ge=0)] = 1_000.0
    """Envelopes a minute."""
    channel: Text = "*"
    """Streams it looks at; `*` is any run of characters."""


class LatencyRule(AlertRule, frozen=True, tag="latency"):
    """Envelopes of a minute that waited too long for their first delivery; judged when the minute is over."""

    above: Annotated[float, Meta(ge=0)] = 1_000.0
    """Milliseconds, at the 95th percentile of what was settled in that minute."""
    channel: Text = "*"
    """Streams it looks at."""


class DeadLetterRule(AlertRule, frozen=True, tag="dead_letters"):
    """Envelopes that went to the dead letters in a minute."""

    above: Annotated[float, Meta(ge=0)] = 0.0
    """Dead letters a minute."""
    channel: Text = "*"
    """Streams it looks at."""


class SilenceRule(AlertRule, frozen=True, tag="silence"):
    """An agent that sent and settled nothing for a while, by the clock on the wall."""

    for_ms: Positive = 300_000
    """How long it may be silent."""
    agent: Text = "*"
    """Agents it looks at; `*` is any run of characters. An agent is known once it did something."""


class TriggerFailureRule(AlertRule, frozen=True, tag="trigger_failures"):
    """Firings of a trigger that failed in a minute; nobody else is told of them."""

    above: Annotated[float, Meta(ge=0)] = 0.0
    """Failed firings a minute."""
    trigger: Text = "*"
    """Triggers it looks at; `*` is any run of characters."""


AnyAlertRule: TypeAlias = RateRule | LatencyRule | DeadLetterRule | SilenceRule | TriggerFailureRule


class AlertsSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is worth telling somebody."""

    rules: tuple[AnyAlertRule, ...] = (DeadLetterRule("dead-letters"),)
    """What is watched for. Alerts become rows of the table `alerts`."""
    to: Text | None = None
    """Agent or stream that alerts are also sent to as envelopes; left out, none are sent."""


class PipelineSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The Spark pipeline that turns the journal into tables."""

    enabled: bool = True
    """Whether `penstock up` runs it, where pyspark is installed."""
    master: Text = "local[2]"
    """Where Spark runs: `local[N]`, or the address of a cluster."""
    memory: Text = "768m"
    """Heap of Spark's driver, which in local mode is all of Spark."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 10
    """How far it steps back when the doors need the processor."""
    trigger_ms: Positive = 500
    """How often new rows are looked for."""
    watch_ms: Positive = 5_000
    """How often the rules of `alerts` are."""
    batch_rows_max: Positive = 500_000
    """Journal rows of one batch."""
    tables: tuple[Text, ...] = ()
    """Python files with tables of your own."""
    queries: tuple[Text, ...] = ()
    """Python files with streaming queries of your own, run in the pipeline's session: each has a function `start(spark, place, checkpoint)`."""
    alerts: AlertsSection = AlertsSection()
    """What is watched for, and who is told."""
    token_keys: Text | None = None
    """A file with keys of token streams, one JSON object a line, for `tokens` and `chain_ok` in `token_streams`; left out, no stream is looked into."""


class QueryStatus(msgspec.Struct):
    """How far one query has come."""

    offset: int = 0
    """Rows before this are in its tables."""
    batches: int = 0
    """Batches of this run."""
    rows: int = 0
    """Journal rows of its latest batch."""
    batch_ms: int = 0
    """How long its latest batch took."""
    at_us: int = 0
    """When that ended."""


class PipelineStatus(msgspec.Struct, omit_defaults=True):
    """What the pipeline says about itself, in `run/pipeline.json`."""

    state: Literal["off", "starting", "running", "stopped", "failed", "halted"]
    """`failed` is tried again; `halted` waits for a person, and `hint` says what to do."""
    pid: int = 0
    at_us: int = 0
    journal: str = ""
    end: int = 0
    """The offset behind the journal's last row, when this was written."""
    queries: dict[str, QueryStatus] = {}
    behind: dict[str, int] = {}
    """Tables that lag behind their query, and how far they are."""
    own: dict[str, str] = {}
    """The queries of `pipeline.queries`: `running`, or why not."""
    restarts: int = 0
    code: str | None = None
    message: str | None = None
    hint: str | None = None
    ui: str | None = None
    """Where Spark shows what it does."""

    @property
    def offset(self) -> int:
        """Rows before this are in every table."""
        return min([query.offset for query in self.queries.values()] + list(self.behind.values()), default=0)

    @property
    def lag(self) -> int:
        """Journal rows that are not in every table yet."""
        return max(self.end - self.offset, 0)


STATUS_FILE = "pipeline.json"
"""Its name, in the run directory."""
EXIT_HALTED = 4
"""Exit code of the pipeline's process when a restart would fail in the same way."""

HALT_HINTS = {
    "JournalChanged": "`penstock pipeline reset` forgets the checkpoints; tables keep the rows of the other journal",
    "JournalRewound": "`penstock pipeline rebuild` with the names of the tables makes them anew, then `penstock pipeline reset`",
    "DataLoss": "`penstock pipeline reset --accept-loss` records the gap and continues at the oldest row that is kept",
    "BadTable": "correct the file that `pipeline.tables` names, then start again",
    "BadQuery": "correct the file that `pipeline.queries` names, then start again",
    "BadKeys": "correct the file that `pipeline.token_keys` names, then start again",
    "NoJava": "`penstock doctor` shows which Java was found",
    "SchemaChanged": "`penstock pipeline rebuild TABLE` makes the table anew",
    "CheckpointUnusable": "`penstock pipeline reset QUERY` forgets its checkpoint; the tables keep their rows and offsets",
}
"""What to do about each failure that halts the pipeline, by its code: the `code` of the exception's class."""


class PipelineTask(msgspec.Struct):
    """What the pipeline's process is told on its standard input; it ends when that is closed."""

    data: str
    settings: PipelineSection
    url: str | None = None
    """HTTP door that alerts are sent through."""
    once: bool = False
    read_url: str | None = None
    """Read the journal from this door instead of the directory; for executors on other machines."""
    token: str | None = None
    conf: dict[str, str] = {}
    """Settings for Spark."""
