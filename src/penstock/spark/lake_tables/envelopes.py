"""The tables `envelopes`, one row for each envelope sent to a queue or into a space, `latest_per_agent`, and `agents`.

`agents` has the last thing each agent did, by which the silence rule finds agents that stopped.

The body of an envelope is parsed without Spark. Parsing never raises: an invalid body gives nulls and the reason. Nothing is re-encoded:
the payload is the sender's exact text. Unknown members, and those of the wrong type, go to `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.json_checks import depth_problem
from penstock.dialects.courier.wire.envelopes import json_problem
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake.schemas import AGENTS, ENVELOPES, LATEST_PER_AGENT
from penstock.spark.lake_tables.expressions import DEAD_PREFIX, MEW, agent_named, agent_of, owner_named, owner_of, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of a body that is parsed. The default limit of the doors is lower."""
DEPTH_MAX = 64
"""Nesting of a body that is parsed: readers of the payload have limits too."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMES_US = range(
    (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // _MICROSECOND,
    (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND,
)
"""Times that a reader in any time zone can represent."""
_IN_COLUMNS = ("id", "type", "from", "corr")
"""Members that are columns of the journal row, validated on enqueue."""
_IN_COLUMNS_MEW = ("id", "kind", "from")

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_time = msgspec.json.Decoder(Annotated[datetime, msgspec.Meta(tz=True)])
_text = msgspec.json.Decoder(str)
_texts = msgspec.json.Decoder(list[str])
_encode = msgspec.json.encode


class Contents(msgspec.Struct):
    """The members of an envelope that are not columns of its journal row."""

    to: str | None = None
    targets: list[str] | None = None
    """In a space, where `to` may be a list."""
    refs: list[str] | None = None
    tags: list[str] | None = None
    headers: list[tuple[str, str | None]] | None = None
    schema: str | None = None
    ts_us: int | None = None
    """Microseconds since 1970 by the producer's clock."""
    payload: str | None = None
    problem: str | None = None
    extra: str | None = None


def parse(data: bytes | None) -> Contents:
    """Parse the body of an envelope in a queue."""
    members = _members(data)
    if isinstance(members, str):
        return Contents(problem=members)
    payload = members.pop("payload", None)
    if payload is None:
        return Contents(problem="there is no `payload`")
    made = Contents(payload=bytes(payload).decode())
    made.to = _taken(members, "to", _text)
    made.refs = _taken(members, "refs", _texts)
    made.tags = _taken(members, "tags", _texts)
    made.schema = _taken(members, "schema", _text)
    made.headers = _headers(members)
    made.ts_us = _time_us(members)
    return _left(made, members, _IN_COLUMNS)


def parse_mew(data: bytes | None) -> Contents:
    """Parse the body of an envelope in a space. The payload is optional; `correlation_id` becomes `refs`."""
    members = _members(data)
    if isinstance(members, str):
        return Contents(problem=members)
    payload = members.pop("payload", None)
    made = Contents(payload=None if payload is None else bytes(payload).decode())
    made.targets = _listed(members, "to")
    made.refs = _listed(members, "correlation_id")
    made.ts_us = _time_us(members)
    return _left(made, members, _IN_COLUMNS_MEW)


def _left(made: Contents, members: dict[str, msgspec.Raw], known: tuple[str, ...]) -> Contents:
    """Put the remaining members into `extra`."""
    for name in known:
        members.pop(name, None)
    if members:
        made.extra = _encode(members).decode()
    return made


def _listed(members: dict[str, msgspec.Raw], name: str) -> list[str] | None:
    """Take a member that is a string or a list of strings."""
    one = _taken(members, name, _text)
    return _taken(members, name, _texts) if one is None else [one]


def _members(data: bytes | None) -> dict[str, msgspec.Raw] | str:
    """The members of an envelope, or why bytes are not one."""
    if data is None:
        return "the body was not journaled"
    if len(data) > BODY_BYTES_MAX:
        return f"the body has {len(data)} bytes and at most {BODY_BYTES_MAX} are read"
    try:
        data.decode()
        refusal = json_problem(data) or depth_problem(data, DEPTH_MAX)
        return _object.decode(data) if refusal is None else refusal.message
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        return str(error)


def _taken(members: dict[str, msgspec.Raw], name: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Take a member out if it has the right type; null counts as absent."""
    raw = members.get(name)
    if raw is None:
        return None
    try:
        value = None if bytes(raw) == b"null" else decoder.decode(raw)
    except msgspec.DecodeError:
        return None
    del members[name]
    return value


def _time_us(members: dict[str, msgspec.Raw]) -> int | None:
    """The producer's time; an invalid one stays in `extra`."""
    raw = members.get("ts")
    moment = _taken(members, "ts", _time)
    if raw is None or moment is None:
        return None
    time_us = int((moment - _EPOCH) // _MICROSECOND)
    if time_us in _TIMES_US:
        return time_us
    members["ts"] = raw
    return None


def _headers(members: dict[str, msgspec.Raw]) -> list[tuple[str, str | None]] | None:
    """Headers as text: strings as they are, other values as JSON."""
    headers: Mapping[str, msgspec.Raw] | None = _taken(members, "headers", _object)
    if headers is None:
        return None
    texts = {name: bytes(raw) for name, raw in headers.items() if bytes(raw) != b"null"}
    read = {name: _text.decode(data) if data.startswith(b'"') else data.decode() for name, data in texts.items()}
    return [(name, read.get(name)) for name in headers]


SENT = "(door = 'courier' and event = 'enqueue' or door = 'mew' and event = 'envelope')"
"""Rows of envelopes, as SQL."""
INBOXES = "event = 'enqueue' and channel like 'agents/%/inbox' and not (meta <=> '{\"moved\":true}')"
"""Rows of envelopes enqueued to inboxes, as SQL. A redriven dead letter is not new, as in the live view."""
_READ = [*(name for name in ENVELOPES.schema.names if name in FILE_SCHEMA.names), "kind", "body"]
"""Columns of a journal row that the table has too, and those that are converted."""


def envelopes(events: DataFrame) -> DataFrame:
    """One row for each envelope, dead letters included."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return sent(events).mapInArrow(parse_rows, from_arrow_schema(ENVELOPES.schema))


def sent(events: DataFrame) -> DataFrame:
    """The journal rows of envelopes, with what `parse_rows` needs of them."""
    return events.where(SENT).select(*_READ)


def parse_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Journal rows of envelopes become rows of the table."""
    return map(envelope_rows, batches)


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


def latest(events: DataFrame) -> DataFrame:
    """The newest envelope of these journal rows for each inbox, with its body."""
    return query(_LATEST, events.where(INBOXES))


_LATEST = f"""
select journal, channel as address, {owner_of("channel")} as agent, newest.* from (
  select journal, channel,
    max_by(struct(offset, seq, id, kind as type, sender, corr, recorded_at, body as payload), offset) as newest
  from {{rows}} where {owner_of("channel")} is not null group by journal, channel
)
"""


def latest_per_agent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The newest envelopes of inboxes become rows of the table, as in the live view of that name: only their bodies are parsed."""
    schema = LATEST_PER_AGENT.schema
    for batch in batches:
        payloads = [parse(body).payload for body in batch.column("payload").to_pylist()]
        arrays = [pa.array(payloads, pa.string()) if name == "payload" else batch.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(
            [one.cast(field.type) for one, field in zip(arrays, schema, strict=True)], schema=schema
        )


def newest_in_inboxes(rows: pa.Table) -> pa.Table:
    """Rows of `latest_per_agent` for the rows `INBOXES`, in memory and in order: each is newer than those before it."""
    owners = [owner_named(channel) for channel in rows.column("channel").to_pylist()]
    addresses = zip(rows.column("journal").to_pylist(), rows.column("channel").to_pylist(), strict=True)
    newest = {one: place for place, one in enumerate(addresses) if owners[place] is not None}
    rows = rows.take(pa.array(newest.values(), pa.int64()))
    made = {
        "address": rows.column("channel"),
        "agent": pa.array([owners[place] for place in newest.values()], pa.string()),
        "type": rows.column("kind"),
        "payload": pa.array([parse(body).payload for body in rows.column("body").to_pylist()], pa.string()),
    }
    schema = LATEST_PER_AGENT.schema
    return pa.table([made[name] if name in made else rows.column(name) for name in schema.names], schema=schema)


def sent_rows(rows: pa.Table) -> pa.Table:
    """Rows of `envelopes` for the rows `SENT`, in memory."""
    parts = parse_rows(iter(rows.select(_READ).to_batches()))
    return pa.Table.from_batches(parts, ENVELOPES.schema)


def agents(events: DataFrame, cluster: str | None = None) -> DataFrame:
    """The newest row of each agent: what it sent or settled last. Without a cluster, journals are kept apart."""
    return query(_AGENTS, acts(events), cluster=cluster)


_AGENTS = """
select newest.journal, agent, newest.* except (journal), cluster from (
  select coalesce(cast(:cluster as string), journal) as cluster, agent,
    max_by(struct(journal, offset, recorded_at as last_at, event, channel), struct(recorded_at, journal, offset)) as newest
  from {rows} group by cluster, agent
)
"""


def newest_acts(rows: pa.Table, cluster: str) -> pa.Table:
    """Rows of `agents` for journal rows in memory."""
    rows = rows.filter(pc.equal(rows.column("door"), "courier"))
    times = rows.column("recorded_at").cast(pa.int64())
    places = zip(times.to_pylist(), *(rows.column(name).to_pylist() for name in ("journal", "offset")), strict=True)
    acted = zip(
        *(rows.column(name).to_pylist() for name in ("event", "channel", "sender", "peer", "reason")), strict=True
    )
    newest: dict[str, dict[str, Any]] = {}
    for place, (event, channel, sender, peer, reason) in sorted(
        zip(places, acted, strict=True), key=lambda one: one[0]
    ):
        if (agent := _acting(event, channel, sender, peer, reason)) is not None:
            act = dict(zip(("last_at", "journal", "offset"), place, strict=True))
            newest[agent] = act | {"agent": agent, "event": event, "channel": channel, "cluster": cluster}
    return pa.Table.from_pylist(list(newest.values()), AGENTS.schema)


def _acting(event: str, channel: str | None, sender: str | None, peer: str | None, reason: str | None) -> str | None:
    """The agent of a row of a queue, as in `acts`."""
    if event == "enqueue":
        return None if channel is None or channel.startswith(DEAD_PREFIX) else agent_named(sender)
    if event in ("ack", "nack") or (event == "dead" and reason == "term"):
        return owner_named(channel) if peer == "anonymous" else agent_named(peer)
    return None


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
  select agent, journal, offset, unix_micros(recorded_at) as at_us,
    unix_micros(recorded_at) - lag(unix_micros(recorded_at)) over (partition by agent order by recorded_at, journal, offset) as paused_us
  from {rows}
), numbered as (
  select *, sum(if(paused_us is null or paused_us > :pause_us, 1, 0))
    over (partition by agent order by at_us, journal, offset) as turn
  from moments
)
select agent, min(at_us) as from_us, max(at_us) as to_us from numbered group by agent, turn
order by min(struct(at_us, journal, offset))
"""
