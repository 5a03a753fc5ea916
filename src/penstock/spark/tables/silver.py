"""Silver: every envelope and every settled record as one row each, from the rows of the journal.

Functions from DataFrame to DataFrame without state: the rows of a stretch of the journal depend on that stretch alone. Times and dates
are computed in UTC whatever the session's time zone is. Expressions are SQL text: a batch comes every second, and building the same from
Python costs a call into the JVM for every word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.lake.schemas import ENVELOPES
from penstock.spark.tables.envelope_columns import parse, parse_mew

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWN_SENDER = "pipeline/penstock"
"""Who the pipeline is when it sends. What it sent is left out of its own input, or it would feed on itself."""
DEAD_PREFIX = "dlq/"
"""Streams of dead letters."""
OUTCOMES = {"ack": "acked", "dead": "dead", "drop": "dropped", "purge": "purged"}
"""Events that end a record, and what became of it. A `move` ends nothing: the record goes on elsewhere."""
UNNAMED_PEERS = ("anonymous", "nobody", "operator")
"""Who sends and settles without being an agent."""

MEW = "mew"
"""The door of spaces."""
SENT = "(door = 'courier' and event = 'enqueue' or door = 'mew' and event = 'envelope')"
"""Rows of envelopes that somebody sent, as SQL."""
BEGUN = "if(door = 'mew', id, null)"
"""The conversation that an envelope without a `corr` begins, as SQL: in a space answers name the id of what they answer."""
TOUCHED = f"coalesce(corr, if(event = 'envelope', {BEGUN}, null))"
"""The conversation that a row of the journal is about, as SQL."""

_DAY_US = 86_400_000_000
_MINUTE_US = 60_000_000
_AGENT = "^agents/([^/]+)(/.*)?$"
_INBOX = "^agents/([^/]+)/inbox$"
_FROM_ROW = (
    "journal",
    "offset",
    "recorded_at",
    "door",
    "channel",
    "seq",
    "id",
    "kind",
    "sender",
    "corr",
    "bytes",
)


def without_own(events: DataFrame) -> DataFrame:
    """The rows without those of envelopes that the pipeline itself sent."""
    return events.where(f"sender is null or sender != '{OWN_SENDER}'")


def envelopes(events: DataFrame) -> DataFrame:
    """One row for each envelope that was sent to a queue or into a space, dead letters included, with its body read."""
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = events.where(SENT).select(*_FROM_ROW, "body")
    return rows.mapInArrow(_read, from_arrow_schema(ENVELOPES.schema))


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where the tasks run: the rows of the table for the rows of the journal."""
    for batch in batches:
        yield envelope_rows(batch)


def envelope_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of the table `envelopes` for a batch of `enqueue` rows of queues and `envelope` rows of spaces."""
    column = dict(zip(batch.schema.names, batch.columns, strict=True))
    doors, channels = column["door"].to_pylist(), column["channel"].to_pylist()
    bodies = [
        parse_mew(data) if door == MEW else parse(data)
        for door, data in zip(doors, column["body"].to_pylist(), strict=True)
    ]
    recorded = column["recorded_at"].cast(pa.int64())
    made = {
        "date": recorded.cast(pa.timestamp("us")).cast(pa.date32()),
        "recorded_at": recorded,
        "type": column["kind"],
        "targets": [
            (body.targets or []) if door == MEW else [body.to or channel]
            for door, body, channel in zip(doors, bodies, channels, strict=True)
        ],
        "refs": [body.refs for body in bodies],
        "tags": [body.tags for body in bodies],
        "headers": [body.headers for body in bodies],
        "schema": [body.schema for body in bodies],
        "producer_ts": [body.ts_us for body in bodies],
        "payload": [body.payload for body in bodies],
        "payload_error": [body.problem for body in bodies],
        "extra": [body.extra for body in bodies],
    }
    arrays = []
    for field in ENVELOPES.schema:
        values = made[field.name] if field.name in made else column[field.name]
        is_array = isinstance(values, pa.Array)
        arrays.append(values.cast(field.type) if is_array else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=ENVELOPES.schema)


def deliveries(events: DataFrame) -> DataFrame:
    """One row for each record that was settled: who held it, how long it waited, how long the work took.

    `wait_ms` is from the enqueue to the first delivery, `work_ms` from there to the settle, `total_ms` the whole; the first two are null
    for a record that nobody was given. A clock that was set back meanwhile counts as no time.
    """
    return events.where(f"door <=> 'courier' and event in {tuple(OUTCOMES)}").selectExpr(*_DELIVERY)


def ms_between(first: str, last: str) -> str:
    """Milliseconds from one time to another; none when a clock was set back."""
    passed_us = f"(unix_micros({last}) - unix_micros({first}))"
    # `greatest` would take a null for nothing.
    return f"case when {passed_us} < 0 then 0D else {passed_us} / 1000 end"


def date_of(moment: str) -> str:
    """The date of a moment in UTC."""
    return f"date_from_unix_date(cast({_floor_us(moment, _DAY_US)} / {_DAY_US} as int))"


def minute_of(moment: str) -> str:
    """The start of the minute that a moment is in."""
    return f"timestamp_micros({_floor_us(moment, _MINUTE_US)})"


def _floor_us(moment: str, step_us: int) -> str:
    return f"(unix_micros({moment}) - pmod(unix_micros({moment}), {step_us}))"


def agent_of(sender: str) -> str:
    """The agent that a `from` or a token's name means: `agents/sam` and `agents/sam/inbox` are `sam`; null for nobody's name."""
    return f"case when {sender} not in {UNNAMED_PEERS} then regexp_replace({sender}, '{_AGENT}', '$1') end"


def owner_of(channel: str) -> str:
    """The agent whose inbox a stream is; null for other streams."""
    return f"case when {channel} rlike '{_INBOX}' then regexp_replace({channel}, '{_INBOX}', '$1') end"


WAIT_MS = ms_between("ref_at", "first_at")
"""Of a settle row: how long the record waited for its first delivery."""
TOTAL_MS = ms_between("ref_at", "recorded_at")
"""Of a settle row: from the enqueue to the settle."""

_CASES = " ".join(f"when '{event}' then '{outcome}'" for event, outcome in OUTCOMES.items())
_DELIVERY = (
    "journal",
    "offset",
    f"{date_of('recorded_at')} as date",
    "channel",
    "seq",
    "id",
    "kind as type",
    "sender",
    "peer as holder",
    "corr",
    "ref_at as enqueued_at",
    "first_at as first_delivered_at",
    "recorded_at as settled_at",
    "attempt as attempts",
    f"{WAIT_MS} as wait_ms",
    f"{ms_between('first_at', 'recorded_at')} as work_ms",
    f"{TOTAL_MS} as total_ms",
    f"case event {_CASES} end as outcome",
    "reason",
)
