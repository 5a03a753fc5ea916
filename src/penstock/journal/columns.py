"""Facts as Arrow record batches, and back as rows: the columns of a segment.

A segment's header holds what is the same for all its rows (journal, shard, epoch); a batch holds the rest. Columns
may be added at the end, nullable; none is ever renamed or retyped. Encoding reads only the immutable parts of a fact, so it
runs on the journal thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from penstock.core.records import Applied, Entry, Fact, Note, Record, Ruled, Settle
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


_ABOUT_NO_RECORD = (Note, Applied, Ruled, Entry)


def encode_facts(
    facts: Sequence[Fact], first_offset: int, recorded_us: int, begun: dict[int, int] | None = None
) -> pa.RecordBatch:
    """A record batch of facts, dense from `first_offset`; `begun` knows the records of a longer run that these are part of."""
    kinds = set(map(type, facts))
    if not kinds.isdisjoint(_ABOUT_NO_RECORD):
        return _encode_mixed(facts, first_offset, recorded_us)
    count = len(facts)
    records = [fact if isinstance(fact, Record) else fact.record for fact in facts]  # type: ignore[union-attr]
    settles = [fact if isinstance(fact, Settle) else None for fact in facts]
    references = [None if settle is None else settle.record.offset for settle in settles]
    if -1 in references:
        begun = begun or _begun(facts, first_offset)  # those that begin in this very batch
        references = [
            begun.get(id(settle.record)) if settle is not None and offset == -1 else offset
            for settle, offset in zip(settles, references, strict=True)
        ]
    times = [  # when their records were recorded; one that has an offset and no time begins in this very batch
        (settle.record.recorded_us or recorded_us) if settle is not None and offset is not None else None
        for settle, offset in zip(settles, references, strict=True)
    ]
    text, whole, short = pa.string(), pa.int64(), pa.int32()
    columns: list[pa.Array] = [
        _counting(first_offset, count),
        pa.repeat(pa.scalar(recorded_us, _TIME), count),
        _common(["courier"] * count, text),
        _common([settle.event if settle else "enqueue" for settle in settles], text),
        _common([record.channel.name for record in records], text),
        pa.array([record.seq for record in records], whole),
        pa.array([record.id for record in records], text),
        _common([record.kind for record in records], text),
        _common([record.sender for record in records], text),
        _common([settle.peer if settle else None for settle in settles], text),
        _common([record.corr for record in records], text),
        _common([settle.attempt if settle else None for settle in settles], short),
        pa.array([len(record.body) for record in records], short),
        pa.nulls(count, short),
        _common([settle.reason if settle else None for settle in settles], text),
        pa.array(references, whole),
        pa.array(times, _TIME),
        pa.array([(settle.first_wall_us or None) if settle else None for settle in settles], _TIME),
        _common([fact.meta for fact in facts], text),
        pa.array(
            [None if settle else record.body for record, settle in zip(records, settles, strict=True)], pa.binary()
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _begun(facts: Sequence[Fact], first_offset: int) -> dict[int, int]:
    """Where the records of a batch begin, by their identity."""
    return {id(fact): first_offset + index for index, fact in enumerate(facts) if isinstance(fact, Record)}


def _encode_mixed(facts: Sequence[Fact], first_offset: int, recorded_us: int) -> pa.RecordBatch:
    """Facts among which a few are about no single record: these are encoded as rows, the many between them as ever."""
    parts: list[pa.RecordBatch] = []
    begun = _begun(facts, first_offset)  # a record and what became of it may stand on two sides of a note
    for is_note, group in groupby(facts, lambda fact: isinstance(fact, _ABOUT_NO_RECORD)):
        run = list(group)
        if is_note:
            rows = [
                replace(row_of(fact), offset=first_offset + index, recorded_at=recorded_us)
                for index, fact in enumerate(run)
            ]
            parts.append(encode_rows(rows))
        else:
            parts.append(encode_facts(run, first_offset, recorded_us, begun))
        first_offset += len(run)
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


_COMMON_MIN = 32
_COMMON_MAX = 4096
"""Between these many rows, a column that repeats one value is cut from a longer one that is kept."""
_COMMON_VALUES_MAX = 64
_common_columns: dict[object, pa.Array] = {}
_COUNTING_MIN = 256


def _common(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column of few different values, which often are one: a stream, a type, an event."""
    count = len(values)
    first = values[0]
    if not _COMMON_MIN <= count <= _COMMON_MAX or values[-1] != first or values.count(first) != count:
        return pa.array(values, kind)
    if first is None:
        return pa.nulls(count, kind)
    made = _common_columns.get(first)
    if made is None or made.type != kind:
        if len(_common_columns) >= _COMMON_VALUES_MAX:
            _common_columns.clear()
        made = _common_columns[first] = pa.array([first] * _COMMON_MAX, kind)
    return made.slice(0, count)


def _counting(first: int, count: int) -> pa.Array:
    """The numbers from `first` on."""
    if not _COUNTING_MIN <= count <= _COMMON_MAX:
        return pa.array(range(first, first + count), pa.int64())
    return pc.add(_numbers().slice(0, count), first)


@cache
def _numbers() -> pa.Array:
    """Made when first needed: `pa.array` imports pandas where that is installed, which readers do without."""
    return pa.array(range(_COMMON_MAX), pa.int64())


def encode_rows(rows: Sequence[Row]) -> pa.RecordBatch:
    """A record batch of rows that carry their own offsets and times."""
    names = ["size" if name == "bytes" else name for name in SCHEMA.names]
    arrays = [
        pa.array([getattr(row, name) for row in rows], field.type) for name, field in zip(names, SCHEMA, strict=True)
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


def fitted(batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, object] | None = None) -> pa.RecordBatch:
    """A batch with exactly these columns: `constants` are repeated, and those that an older file lacks are null."""
    if constants is None and batch.schema.equals(schema):
        return batch
    known, count = constants or {}, batch.num_rows
    present = {name: index for index, name in enumerate(batch.schema.names)}
    arrays = [
        pa.repeat(pa.scalar(known[field.name], field.type), count)
        if field.name in known
        else batch.column(present[field.name]).cast(field.type)
        if field.name in present
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
