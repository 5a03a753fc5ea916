"""The lake tables: names, keys, columns. Frozen: columns may be added at the end, nullable, never renamed or retyped.

Spark's and Delta's schemas are derived from the Arrow schema. Sealing writes `events`, whose columns are defined in
`penstock.journal.parquet_table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import pyarrow as pa

from penstock.journal.parquet_table import TABLE_SCHEMA as EVENTS_SCHEMA

TYPES = {
    "string": pa.string(),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "binary": pa.binary(),
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""The column types, by their names in Delta Lake."""
BATCH_ROWS = 4_096
"""Rows of one Arrow batch that a task makes."""


@dataclass(frozen=True)
class TableDefinition:
    """The name, columns and key of a table."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    write: Literal["append", "merge"]
    """`append` adds rows; `merge` replaces the rows of the same key."""
    partition_by: tuple[str, ...] = ()
    newest: str | None = None
    """For `merge`: a row replaces only a row whose value in this column is not greater."""

    @property
    def filters(self) -> tuple[str, ...]:
        """Columns with a Bloom filter in each file: the ids of appended rows, and keys that say nothing about the time of a row."""
        names = ("id", "corr") if self.write == "append" else () if self.partition_by else self.key
        texts = [field.name for field in self.schema if pa.types.is_string(field.type)]
        return tuple(name for name in names if name in texts and name not in ("journal", "cluster"))

    def batches(self, rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        """Rows of the table as Arrow batches."""
        left = iter(rows)
        while part := list(islice(left, BATCH_ROWS)):
            yield pa.RecordBatch.from_pylist(part, self.schema)


def _table(
    name: str, write: Literal["append", "merge"], key: tuple[str, ...], columns: str, newest: str | None = None
) -> TableDefinition:
    """A table from its columns, `name type` pairs separated by commas. One with a date is partitioned by it."""
    types = dict(column.split() for column in columns.split(", "))
    schema = pa.schema([pa.field(column, TYPES[kind]) for column, kind in types.items()])
    return TableDefinition(name, schema, key, write, ("date",) if "date" in types else (), newest)


EVENTS = TableDefinition("events", EVENTS_SCHEMA, ("journal", "shard", "offset"), "append", ("date",))

ENVELOPES = _table(
    "envelopes",
    "append",
    ("journal", "offset"),
    "journal string, offset long, date date, recorded_at timestamp, door string, channel string, seq long, "
    "id string, type string, sender string, targets array<string>, corr string, refs array<string>, "
    "tags array<string>, headers map<string,string>, schema string, producer_ts timestamp, payload string, "
    "payload_error string, extra string, bytes int",
)

DELIVERIES = _table(
    "deliveries",
    "append",
    ("journal", "channel", "seq"),
    "journal string, offset long, date date, channel string, seq long, id string, type string, sender string, "
    "holder string, corr string, enqueued_at timestamp, first_delivered_at timestamp, settled_at timestamp, "
    "attempts int, wait_ms double, work_ms double, total_ms double, outcome string, reason string",
)

FRAMES = _table(
    "frames",
    "append",
    ("journal", "offset"),
    "journal string, offset long, date date, recorded_at timestamp, space string, stream_id string, seq long, "
    "sender string, targets array<string>, recipients int, participants int, bytes int, body binary",
)

TOKEN_CHUNKS = _table(
    "token_chunks",
    "append",
    ("journal", "offset"),
    "journal string, offset long, date date, recorded_at timestamp, topic_hash string, seq long, "
    "format string, bytes int, replayed boolean, held boolean, subscribers int, chunks long",
)

GAPS = _table(
    "gaps", "append", ("journal", "from_offset"), "journal string, from_offset long, to_offset long, reason string"
)

QUEUE_MINUTES = _table(
    "queue_minutes",
    "merge",
    ("journal", "channel", "minute"),
    "journal string, date date, minute timestamp, channel string, enqueued long, delivered long, "
    "redelivered long, acked long, nacked long, timed_out long, dead long, dropped long, purged long, "
    "duplicates long, rejected long, bytes_in long, ready long, leased long, delayed long, oldest_ms double, "
    "wait_p50_ms double, wait_p95_ms double, wait_p99_ms double, total_p95_ms double, final boolean",
)

TRIGGER_MINUTES = _table(
    "trigger_minutes",
    "merge",
    ("journal", "trigger", "minute"),
    "journal string, date date, minute timestamp, trigger string, hook string, fired long, failed long, "
    "suppressed long, sent long, streams int, final boolean",
)

FANOUT_MINUTES = _table(
    "fanout_minutes",
    "merge",
    ("journal", "space", "minute"),
    "journal string, date date, minute timestamp, space string, streams long, frames long, bytes long, "
    "deliveries long, broadcast_deliveries long, saved long, final boolean",
)

LATEST_PER_AGENT = _table(
    "latest_per_agent",
    "merge",
    ("journal", "address"),
    "journal string, address string, agent string, offset long, seq long, id string, type string, "
    "sender string, corr string, recorded_at timestamp, payload string",
    newest="offset",
)

TOKEN_STREAMS = _table(
    "token_streams",
    "merge",
    ("journal", "topic_hash", "started_at"),
    "journal string, topic_hash string, started_at timestamp, ended_at timestamp, chunks long, bytes long, "
    "chunks_per_s double, resumes int, replayed int, gaps int, max_gap_ms double, ended string, tokens long, "
    "tokens_per_s double, finish_reason string, chain_ok boolean, perplexity double, entropy double, "
    "lost long, journaled long, forged long, breaks long, last_at timestamp, expired_at timestamp, "
    "mark string",
)

CONVERSATIONS = _table(
    "conversations",
    "merge",
    ("cluster", "corr"),
    "journal string, corr string, root_id string, started_at timestamp, last_at timestamp, envelopes int, "
    "agents_count int, depth int, settled int, dead int, unsettled int, agents array<string>, "
    "doors array<string>, duration_ms double, critical_path array<string>, critical_path_ms double, "
    "final boolean, cluster string",
)

ALERTS = _table(
    "alerts",
    "merge",
    ("id",),
    "journal string, id string, rule string, severity string, subject string, window_start timestamp, "
    "window_end timestamp, value double, threshold double, message string, state string, fired_at timestamp, "
    "resolved_at timestamp, envelope_id string",
)

AGENTS = _table(
    "agents",
    "merge",
    ("cluster", "agent"),
    "journal string, agent string, offset long, last_at timestamp, event string, channel string, cluster string",
)
"""The last row of each agent, for the silence rule."""

_TABLES = (
    EVENTS, ENVELOPES, DELIVERIES, FRAMES, TOKEN_CHUNKS, GAPS, QUEUE_MINUTES, TRIGGER_MINUTES, FANOUT_MINUTES,
    LATEST_PER_AGENT, TOKEN_STREAMS, CONVERSATIONS, ALERTS, AGENTS,
)  # fmt: skip
TABLES = {table.name: table for table in _TABLES}
