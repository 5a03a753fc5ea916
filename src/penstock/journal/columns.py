"""Facts as Arrow record batches, and back as rows: the columns of a segment.

A segment's header holds what is the same for all its rows (journal, shard, epoch); a batch holds the rest. Columns
may be added at the end, nullable; none is ever renamed or retyped. Encoding reads only what never changes of a fact, so it
runs off the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from msgspec.structs import replace

from penstock.core.records import Fact, Note, Record, Settle
from penstock.core.rows import Row, row_of

_TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("recorded_at", _TIME, nullable=False),
        pa.field("door", pa.string(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("channel", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("sender", pa.string()),
        pa.field("peer", pa.string()),
        pa.field("corr", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("bytes", pa.int32()),
        pa.field("recipients", pa.int32()),
        pa.field("reason", pa.string()),
        pa.field("ref_offset", pa.int64()),
        pa.field("ref_at", _TIME),
        pa.field("first_at", _TIME),
        pa.field("meta", pa.string()),
        pa.field("body", pa.binary()),
    ]
)


def encode_facts(facts: Sequence[Fact], first_offset: int, recorded_us: int) -> pa.RecordBatch:
    """A record batch of facts, dense from `first_offset`."""
    if any(isinstance(fact, Note) for fact in facts):  # a few a minute
        rows = [row_of(fact) for fact in facts]
        return encode_rows(
            [
                replace(row, offset=first_offset + index, recorded_at=recorded_us)
                for index, row in enumerate(rows)
            ]
        )
    count = len(facts)
    records = [fact if isinstance(fact, Record) else fact.record for fact in facts]  # type: ignore[union-attr]
    settles = [fact if isinstance(fact, Settle) else None for fact in facts]
    has_settles = any(settle is not None for settle in settles)
    has_records = any(settle is None for settle in settles)
    text, whole = pa.string(), pa.int64()
    columns: list[pa.Array] = [
        pa.array(range(first_offset, first_offset + count), whole),
        pa.array([recorded_us] * count, _TIME),
        pa.repeat(pa.scalar("courier"), count),
        pa.array([settle.event if settle else "enqueue" for settle in settles], text)
        if has_settles
        else pa.repeat(pa.scalar("enqueue"), count),
        pa.array([record.channel.name for record in records], text),
        pa.array([record.seq for record in records], whole),
        pa.array([record.id for record in records], text),
        pa.array([record.kind for record in records], text),
        pa.array([record.sender for record in records], text),
        pa.array([settle.peer if settle else None for settle in settles], text)
        if has_settles
        else pa.nulls(count, text),
        pa.array([record.corr for record in records], text),
        pa.array([settle.attempt if settle else None for settle in settles], pa.int32())
        if has_settles
        else pa.nulls(count, pa.int32()),
        pa.array([len(record.body) for record in records], pa.int32()),
        pa.nulls(count, pa.int32()),
    ]
    if has_settles:
        columns += [
            pa.array([settle.reason if settle else None for settle in settles], text),
            pa.array([settle.record.offset if settle else None for settle in settles], whole),
            pa.array([settle.record.arrived_wall_us if settle else None for settle in settles], _TIME),
            pa.array([(settle.first_wall_us or None) if settle else None for settle in settles], _TIME),
        ]
    else:
        columns += [pa.nulls(count, text), pa.nulls(count, whole), pa.nulls(count, _TIME), pa.nulls(count, _TIME)]
    metas = [fact.meta for fact in facts]
    columns.append(pa.array(metas, text) if any(metas) else pa.nulls(count, text))
    if has_records:
        bodies = [None if settle else record.body for record, settle in zip(records, settles, strict=True)]
        columns.append(pa.array(bodies, pa.binary()))
    else:
        columns.append(pa.nulls(count, pa.binary()))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def encode_rows(rows: Sequence[Row]) -> pa.RecordBatch:
    """A record batch of rows that carry their own offsets and times."""
    names = ["size" if name == "bytes" else name for name in SCHEMA.names]
    arrays = [
        pa.array([getattr(row, name) for row in rows], field.type)
        for name, field in zip(names, SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def decode_rows(batch: pa.RecordBatch, journal: str, shard: int, epoch: int) -> Iterator[Row]:
    """The rows of a batch. Columns that an older segment lacks are null."""
    present = {name: index for index, name in enumerate(batch.schema.names)}
    values = []
    for name in SCHEMA.names:
        index = present.get(name)
        if index is None:
            values.append([None] * batch.num_rows)
            continue
        column = batch.column(index)
        values.append((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())
    for row in zip(*values, strict=True):
        yield Row(journal, shard, epoch, *row)
