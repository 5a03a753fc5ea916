"""The tables `envelopes`, one row for each envelope sent to a queue or into a space, and `latest_per_agent`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake.schemas import ENVELOPES
from penstock.spark.lake_tables.envelope_body import parse, parse_mew
from penstock.spark.lake_tables.expressions import MEW, owner_of, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SENT = "(door = 'courier' and event = 'enqueue' or door = 'mew' and event = 'envelope')"
"""Rows of envelopes, as SQL."""
INBOXES = "event = 'enqueue' and channel like 'agents/%/inbox' and not (meta <=> '{\"moved\":true}')"
"""Rows of envelopes enqueued to inboxes, as SQL. A redriven dead letter is not new, as in the live view."""
_READ = [*(name for name in ENVELOPES.schema.names if name in FILE_SCHEMA.names), "kind", "body"]
"""Columns of a journal row that the table has too, and those that are converted."""


def envelopes(events: DataFrame) -> DataFrame:
    """One row for each envelope, dead letters included."""
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = events.where(SENT).select(*_READ)
    return rows.mapInArrow(_read, from_arrow_schema(ENVELOPES.schema))


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in the tasks."""
    for batch in batches:
        yield envelope_rows(batch)


def envelope_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Table rows for a batch of `enqueue` rows of queues and `envelope` rows of spaces; needs no JVM."""
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


def latest_per_agent(sent: DataFrame) -> DataFrame:
    """The newest of these rows of the table `envelopes` for each inbox, as in the live view of that name."""
    return query(_LATEST, sent)


_LATEST = f"""
select journal, channel as address, {owner_of("channel")} as agent, newest.* from (
  select journal, channel,
    max_by(struct(offset, seq, id, type, sender, corr, recorded_at, payload), offset) as newest
  from {{rows}} where {owner_of("channel")} is not null group by journal, channel
)
"""
