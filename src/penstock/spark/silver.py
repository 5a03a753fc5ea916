"""Silver: every envelope and every settled record as one row each, from the rows of the journal.

Functions from DataFrame to DataFrame without state: the rows of a stretch of the journal depend on that stretch alone. Times and dates
are computed in UTC whatever the session's time zone is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.contents import parse
from penstock.spark.definitions import DELIVERIES, ENVELOPES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OWN_SENDER = "pipeline/penstock"
"""Who the pipeline is when it sends. What it sent is left out of its own input, or it would feed on itself."""
DEAD_PREFIX = "dlq/"
"""Streams of dead letters."""
OUTCOMES = {"ack": "acked", "dead": "dead", "drop": "dropped", "purge": "purged"}
"""Events that end a record, and what became of it. A `move` ends nothing: the record goes on elsewhere."""
UNNAMED_PEERS = ("anonymous", "nobody", "operator")
"""Who sends and settles without being an agent."""

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
    """One row for each envelope that was enqueued, dead letters included, with its body read."""
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = events.where("door = 'courier' and event = 'enqueue'").select(*_FROM_ROW, "body")
    return rows.mapInArrow(_read, from_arrow_schema(ENVELOPES.schema))


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where the tasks run: the rows of the table for the rows of the journal."""
    for batch in batches:
        yield envelope_rows(batch)


def envelope_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of the table `envelopes` for a batch of `enqueue` rows."""
    column = dict(zip(batch.schema.names, batch.columns, strict=True))
    bodies = [parse(data) for data in column["body"].to_pylist()]
    channels = column["channel"].to_pylist()
    recorded = column["recorded_at"].cast(pa.int64())
    made = {
        "date": recorded.cast(pa.timestamp("us")).cast(pa.date32()),
        "recorded_at": recorded,
        "type": column["kind"],
        "targets": [[body.to or channel] for body, channel in zip(bodies, channels, strict=True)],
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
    from pyspark.sql import functions as f

    ended = events.where(f.col("door").eqNullSafe("courier") & f.col("event").isin(*OUTCOMES))
    outcome = f.create_map(*[f.lit(word) for pair in OUTCOMES.items() for word in pair])
    return ended.select(
        "journal",
        "offset",
        date_of(f.col("recorded_at")).alias("date"),
        "channel",
        "seq",
        "id",
        f.col("kind").alias("type"),
        "sender",
        f.col("peer").alias("holder"),
        "corr",
        f.col("ref_at").alias("enqueued_at"),
        f.col("first_at").alias("first_delivered_at"),
        f.col("recorded_at").alias("settled_at"),
        f.col("attempt").alias("attempts"),
        wait_ms().alias("wait_ms"),
        _ms_between("first_at", "recorded_at").alias("work_ms"),
        total_ms().alias("total_ms"),
        outcome[f.col("event")].alias("outcome"),
        "reason",
    ).select(*DELIVERIES.schema.names)


def wait_ms() -> Column:
    """Of a settle row: how long the record waited for its first delivery."""
    return _ms_between("ref_at", "first_at")


def total_ms() -> Column:
    """Of a settle row: from the enqueue to the settle."""
    return _ms_between("ref_at", "recorded_at")


def _ms_between(first: str, last: str) -> Column:
    from pyspark.sql import functions as f

    passed_us = f.unix_micros(f.col(last)) - f.unix_micros(f.col(first))
    # `greatest` would take a null for nothing.
    return f.when(passed_us < 0, f.lit(0.0)).otherwise(passed_us / 1000)


def date_of(moment: Column) -> Column:
    """The date of a moment in UTC."""
    from pyspark.sql import functions as f

    return f.date_from_unix_date((_floor_us(moment, _DAY_US) / _DAY_US).cast("int"))


def minute_of(moment: Column) -> Column:
    """The start of the minute that a moment is in."""
    from pyspark.sql import functions as f

    return f.timestamp_micros(_floor_us(moment, _MINUTE_US))


def _floor_us(moment: Column, step_us: int) -> Column:
    from pyspark.sql import functions as f

    us = f.unix_micros(moment)
    return us - f.pmod(us, f.lit(step_us))


def agent_of(sender: Column) -> Column:
    """The agent that a `from` or a token's name means: `agents/sam` and `agents/sam/inbox` are `sam`; null for nobody's name."""
    from pyspark.sql import functions as f

    return f.when(~sender.isin(*UNNAMED_PEERS), f.regexp_replace(sender, _AGENT, "$1"))


def owner_of(channel: Column) -> Column:
    """The agent whose inbox a stream is; null for other streams."""
    from pyspark.sql import functions as f

    return f.when(channel.rlike(_INBOX), f.regexp_replace(channel, _INBOX, "$1"))
