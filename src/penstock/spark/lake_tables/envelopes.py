"""The tables `envelopes`, one row for each envelope sent to a queue or into a space, `latest_per_agent`, and `agents`.

`agents` has the last thing each agent did, by which the silence rule finds agents that stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake.schemas import ENVELOPES
from penstock.spark.lake_tables.envelope_body import parse, parse_mew
from penstock.spark.lake_tables.expressions import MEW, agent_of, owner_of, query

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


def agents(events: DataFrame) -> DataFrame:
    """The newest row of each agent: what it sent or settled last."""
    return query(_AGENTS, acts(events))


_AGENTS = """
select journal, agent, newest.* from (
  select journal, agent, max_by(struct(offset, recorded_at as last_at, event, channel), offset) as newest
  from {rows} group by journal, agent
)
"""


def acts(events: DataFrame) -> DataFrame:
    """Rows in which an agent sent or settled something, with its name as `agent`.

    The name of a settler is that of its token. Without tokens, the owner of an inbox is taken as the settler of its records.
    """
    acted = events.where("door = 'courier' and not (channel like 'dlq/%' and event = 'enqueue')")
    return acted.selectExpr("*", f"{_AGENT} as agent").where("agent is not null")


# Not `dead` by too many attempts: the holder may hang, and must not count as active.
_SETTLES = "(event in ('ack', 'nack') or (event = 'dead' and reason = 'term'))"
_AGENT = f"""case when event = 'enqueue' then {agent_of("sender")}
  when {_SETTLES} and peer = 'anonymous' then {owner_of("channel")}
  when {_SETTLES} then {agent_of("peer")} end"""


def turns(events: DataFrame, pause_ms: int) -> DataFrame:
    """When agents were active, as (agent, from, to) in microseconds, in order; pauses up to `pause_ms` are bridged."""
    return query(_TURNS, acts(events), pause_us=pause_ms * 1000)


_TURNS = """
with moments as (
  select agent, offset, unix_micros(recorded_at) as at_us,
    unix_micros(recorded_at) - lag(unix_micros(recorded_at)) over (partition by agent order by offset) as paused_us
  from {rows}
), numbered as (
  select *, sum(if(paused_us is null or paused_us > :pause_us, 1, 0)) over (partition by agent order by offset) as turn
  from moments
)
select agent, min(at_us) as from_us, max(at_us) as to_us from numbered group by agent, turn order by min(offset)
"""
