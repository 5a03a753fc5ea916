"""The lake tables: names, keys, columns. Frozen: columns may be added at the end, nullable, never renamed or retyped.

Spark's and Delta's schemas are derived from the Arrow schema. Sealing writes `events`, whose columns are defined in
`penstock.journal.parquet_table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from penstock.journal.parquet_table import TABLE_SCHEMA as EVENTS_SCHEMA

TIME = pa.timestamp("us", tz="UTC")
TEXT = pa.string()
TEXTS = pa.list_(TEXT)
WHOLE = pa.int64()
SHORT = pa.int32()
REAL = pa.float64()
FLAG = pa.bool_()


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


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


EVENTS = TableDefinition("events", EVENTS_SCHEMA, ("journal", "shard", "offset"), "append", ("date",))

ENVELOPES = TableDefinition(
    "envelopes",
    _schema(
        journal=TEXT,
        offset=WHOLE,
        date=pa.date32(),
        recorded_at=TIME,
        door=TEXT,
        channel=TEXT,
        seq=WHOLE,
        id=TEXT,
        type=TEXT,
        sender=TEXT,
        targets=TEXTS,
        corr=TEXT,
        refs=TEXTS,
        tags=TEXTS,
        headers=pa.map_(TEXT, TEXT),
        schema=TEXT,
        producer_ts=TIME,
        payload=TEXT,
        payload_error=TEXT,
        extra=TEXT,
        bytes=SHORT,
    ),
    ("journal", "offset"),
    "append",
    ("date",),
)

DELIVERIES = TableDefinition(
    "deliveries",
    _schema(
        journal=TEXT,
        offset=WHOLE,
        date=pa.date32(),
        channel=TEXT,
        seq=WHOLE,
        id=TEXT,
        type=TEXT,
        sender=TEXT,
        holder=TEXT,
        corr=TEXT,
        enqueued_at=TIME,
        first_delivered_at=TIME,
        settled_at=TIME,
        attempts=SHORT,
        wait_ms=REAL,
        work_ms=REAL,
        total_ms=REAL,
        outcome=TEXT,
        reason=TEXT,
    ),
    ("journal", "channel", "seq"),
    "append",
    ("date",),
)

FRAMES = TableDefinition(
    "frames",
    _schema(
        journal=TEXT,
        offset=WHOLE,
        date=pa.date32(),
        recorded_at=TIME,
        space=TEXT,
        stream_id=TEXT,
        seq=WHOLE,
        sender=TEXT,
        targets=TEXTS,
        recipients=SHORT,
        participants=SHORT,
        bytes=SHORT,
        body=pa.binary(),
    ),
    ("journal", "offset"),
    "append",
    ("date",),
)

TOKEN_CHUNKS = TableDefinition(
    "token_chunks",
    _schema(
        journal=TEXT,
        offset=WHOLE,
        date=pa.date32(),
        recorded_at=TIME,
        topic_hash=TEXT,
        seq=WHOLE,
        format=TEXT,
        bytes=SHORT,
        replayed=FLAG,
        held=FLAG,
        subscribers=SHORT,
        chunks=WHOLE,
    ),
    ("journal", "offset"),
    "append",
    ("date",),
)

GAPS = TableDefinition(
    "gaps",
    _schema(journal=TEXT, from_offset=WHOLE, to_offset=WHOLE, reason=TEXT),
    ("journal", "from_offset"),
    "append",
)

QUEUE_MINUTES = TableDefinition(
    "queue_minutes",
    _schema(
        journal=TEXT,
        date=pa.date32(),
        minute=TIME,
        channel=TEXT,
        enqueued=WHOLE,
        delivered=WHOLE,
        redelivered=WHOLE,
        acked=WHOLE,
        nacked=WHOLE,
        timed_out=WHOLE,
        dead=WHOLE,
        dropped=WHOLE,
        purged=WHOLE,
        duplicates=WHOLE,
        rejected=WHOLE,
        bytes_in=WHOLE,
        ready=WHOLE,
        leased=WHOLE,
        delayed=WHOLE,
        oldest_ms=REAL,
        wait_p50_ms=REAL,
        wait_p95_ms=REAL,
        wait_p99_ms=REAL,
        total_p95_ms=REAL,
        final=FLAG,
    ),
    ("journal", "channel", "minute"),
    "merge",
    ("date",),
)

TRIGGER_MINUTES = TableDefinition(
    "trigger_minutes",
    _schema(
        journal=TEXT,
        date=pa.date32(),
        minute=TIME,
        trigger=TEXT,
        hook=TEXT,
        fired=WHOLE,
        failed=WHOLE,
        suppressed=WHOLE,
        sent=WHOLE,
        streams=SHORT,
        final=FLAG,
    ),
    ("journal", "trigger", "minute"),
    "merge",
    ("date",),
)

FANOUT_MINUTES = TableDefinition(
    "fanout_minutes",
    _schema(
        journal=TEXT,
        date=pa.date32(),
        minute=TIME,
        space=TEXT,
        streams=WHOLE,
        frames=WHOLE,
        bytes=WHOLE,
        deliveries=WHOLE,
        broadcast_deliveries=WHOLE,
        saved=WHOLE,
        final=FLAG,
    ),
    ("journal", "space", "minute"),
    "merge",
    ("date",),
)

LATEST_PER_AGENT = TableDefinition(
    "latest_per_agent",
    _schema(
        journal=TEXT,
        address=TEXT,
        agent=TEXT,
        offset=WHOLE,
        seq=WHOLE,
        id=TEXT,
        type=TEXT,
        sender=TEXT,
        corr=TEXT,
        recorded_at=TIME,
        payload=TEXT,
    ),
    ("journal", "address"),
    "merge",
    newest="offset",
)

TOKEN_STREAMS = TableDefinition(
    "token_streams",
    _schema(
        journal=TEXT,
        topic_hash=TEXT,
        started_at=TIME,
        ended_at=TIME,
        chunks=WHOLE,
        bytes=WHOLE,
        chunks_per_s=REAL,
        resumes=SHORT,
        replayed=SHORT,
        gaps=SHORT,
        max_gap_ms=REAL,
        ended=TEXT,
        tokens=WHOLE,
        tokens_per_s=REAL,
        finish_reason=TEXT,
        chain_ok=FLAG,
        perplexity=REAL,
        entropy=REAL,
        lost=WHOLE,
        journaled=WHOLE,
        forged=WHOLE,
        breaks=WHOLE,
        last_at=TIME,
        expired_at=TIME,
        mark=TEXT,
    ),
    ("journal", "topic_hash", "started_at"),
    "merge",
)

CONVERSATIONS = TableDefinition(
    "conversations",
    _schema(
        journal=TEXT,
        corr=TEXT,
        root_id=TEXT,
        started_at=TIME,
        last_at=TIME,
        envelopes=SHORT,
        agents_count=SHORT,
        depth=SHORT,
        settled=SHORT,
        dead=SHORT,
        unsettled=SHORT,
        agents=TEXTS,
        doors=TEXTS,
        duration_ms=REAL,
        critical_path=TEXTS,
        critical_path_ms=REAL,
        final=FLAG,
    ),
    ("journal", "corr"),
    "merge",
)

ALERTS = TableDefinition(
    "alerts",
    _schema(
        journal=TEXT,
        id=TEXT,
        rule=TEXT,
        severity=TEXT,
        subject=TEXT,
        window_start=TIME,
        window_end=TIME,
        value=REAL,
        threshold=REAL,
        message=TEXT,
        state=TEXT,
        fired_at=TIME,
        resolved_at=TIME,
        envelope_id=TEXT,
    ),
    ("id",),
    "merge",
)

AGENTS = TableDefinition(
    "agents",
    _schema(journal=TEXT, agent=TEXT, offset=WHOLE, last_at=TIME, event=TEXT, channel=TEXT),
    ("journal", "agent"),
    "merge",
    newest="offset",
)
"""The last row of each agent, for the silence rule."""

TABLES = {
    table.name: table
    for table in (
        EVENTS,
        ENVELOPES,
        DELIVERIES,
        FRAMES,
        TOKEN_CHUNKS,
        GAPS,
        QUEUE_MINUTES,
        TRIGGER_MINUTES,
        FANOUT_MINUTES,
        LATEST_PER_AGENT,
        TOKEN_STREAMS,
        CONVERSATIONS,
        ALERTS,
        AGENTS,
    )
}
