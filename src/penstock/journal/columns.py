"""Facts as rows of a log segment, and those as Arrow record batches or as `Row`.

A segment's header holds what is the same for all its rows (journal, shard, epoch); a frame holds the rest. Columns may be added at the
end, nullable; none is ever renamed or retyped. Facts are packed row by row as MessagePack: that costs the server a third of what columns
cost, and readers and the sealer make columns elsewhere. Packing reads only the immutable parts of a fact, so it may run on any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.records import Fact, Record, Settle
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


Packed = list[memoryview]
"""Rows as MessagePack: their arrays one after another, in a few pieces."""
PACKED_FROM = SCHEMA.get_field_index("door")
"""The first column of a packed row. A frame has its first offset and its time once."""
_PIECE_ROWS = 256
"""Rows that are packed in one call: so few that the memory of their tuples is used again for the next."""
_REFERENCE = SCHEMA.get_field_index("ref_offset") - PACKED_FROM
"""The place of `ref_offset` in a packed row; `ref_at` follows it."""
_FIELDS = tuple("size" if name == "bytes" else name for name in SCHEMA.names[PACKED_FROM:])
_encode = msgspec.msgpack.Encoder().encode


def pack_facts(facts: Sequence[Fact]) -> Packed:
    """The rows of facts that are recorded together."""
    pieces: Packed = []
    begun: dict[int, int] | None = None
    for start in range(0, len(facts), _PIECE_ROWS):
        rows: list[tuple[Any, ...]] = []
        for fact in facts[start : start + _PIECE_ROWS]:
            if type(fact) is Record:
                has_meta = fact.scheduled_wall_us or fact.reserved or fact.check is not None
                rows.append((
                    "courier", "enqueue", fact.channel.name, fact.seq, fact.id, fact.kind, fact.sender, None, fact.corr,
                    None, len(fact.body), None, None, None, None, None, fact.meta if has_meta else None, fact.body,
                ))  # fmt: skip
            elif isinstance(fact, Settle):
                record = fact.record
                offset: int | None = record.offset
                if offset == -1:  # the record begins in this very commit: count back to it
                    begun = begun or {id(each): number for number, each in enumerate(facts)}
                    place = begun.get(id(record))
                    offset = None if place is None else place - start - len(rows)
                rows.append((
                    "courier", fact.event, record.channel.name, record.seq, record.id, record.kind, record.sender,
                    fact.peer, record.corr, fact.attempt, len(record.body), None, fact.reason,
                    offset, record.recorded_us or None, fact.first_wall_us or None, fact.meta, None,
                ))  # fmt: skip
            else:
                row = row_of(fact)
                rows.append(tuple([getattr(row, name) for name in _FIELDS]))
        # Without the header of this list: the frame has one for all its rows.
        pieces.append(memoryview(_encode(rows))[1 if len(rows) < 16 else 3 :])
    return pieces


class RowRun(msgspec.Struct, frozen=True):
    """The rows of one packed frame."""

    first_offset: int
    recorded_us: int
    rows: list[tuple[Any, ...]]
    """In the columns of their segment from `PACKED_FROM` on. A `ref_offset` below 0 counts back to a row of the same frame."""


MARKER = b"\xff\xff\xff\xff"
"""The beginning of a packed frame, as of an Arrow message: a search for whole frames looks for it."""
_RUN_HEAD, _RUN_COUNT = struct.Struct("<4sqq"), struct.Struct(">BI")
_ARRAY_32 = 0xDD  # of MessagePack


def run_head(first_offset: int, recorded_us: int, count: int) -> bytes:
    """What comes before the rows in a packed frame."""
    return _RUN_HEAD.pack(MARKER, first_offset, recorded_us) + _RUN_COUNT.pack(_ARRAY_32, count)


def read_run_head(payload: memoryview) -> tuple[int, int, int]:
    """The first offset, the time and the number of rows of a packed frame; raises ValueError when it is none."""
    if len(payload) < _RUN_HEAD.size + _RUN_COUNT.size:
        raise ValueError("it is too short")
    marker, first_offset, recorded_us = _RUN_HEAD.unpack_from(payload)
    kind, count = _RUN_COUNT.unpack_from(payload, _RUN_HEAD.size)
    if marker != MARKER or kind != _ARRAY_32 or not count or first_offset < 0:
        raise ValueError("it does not begin as rows do")
    return first_offset, recorded_us, count


def unpack_run(payload: memoryview, schema: pa.Schema) -> RowRun:
    """A packed frame; raises ValueError when it is none."""
    first_offset, recorded_us, _ = read_run_head(payload)
    return RowRun(first_offset, recorded_us, _decoder(schema).decode(payload[_RUN_HEAD.size :]))


@lru_cache(maxsize=8)
def _decoder(schema: pa.Schema) -> msgspec.msgpack.Decoder[list[tuple[Any, ...]]]:
    whole, small = (Annotated[int, msgspec.Meta(ge=-(1 << bits), le=(1 << bits) - 1)] for bits in (63, 31))
    plain: dict[pa.DataType, Any]
    plain = {pa.string(): str, pa.binary(): bytes, pa.int32(): small, pa.int64(): whole, _TIME: whole}
    types = [(plain.get(field.type, Any), field.nullable) for field in list(schema)[PACKED_FROM:]]
    columns = tuple(kind | None if nullable else kind for kind, nullable in types)
    return msgspec.msgpack.Decoder(list[tuple[columns]])  # type: ignore[valid-type]


def run_rows(run: RowRun, schema: pa.Schema, journal: str, shard: int, epoch: int) -> Iterator[Row]:
    """The rows of a frame, without a detour over columns where these are the known ones."""
    if schema.names != SCHEMA.names:
        yield from decode_rows(to_batch([run], schema), journal, shard, epoch)
        return
    for offset, row in enumerate(run.rows, run.first_offset):
        if (back := row[_REFERENCE]) is not None and back < 0:
            row = (*row[:_REFERENCE], offset + back, run.recorded_us, *row[_REFERENCE + 2 :])
        yield Row(journal, shard, epoch, offset, run.recorded_us, *row)


def to_batch(runs: Sequence[RowRun], schema: pa.Schema, names: Sequence[str] | None = None) -> pa.RecordBatch:
    """The rows of several frames as columns, or those columns that are named."""
    offsets = [offset for run in runs for offset in range(run.first_offset, run.first_offset + len(run.rows))]
    times = [run.recorded_us for run in runs for _ in run.rows]
    values = [offsets, times, *zip(*chain.from_iterable(run.rows for run in runs), strict=True)]
    named = dict(zip(schema.names, values, strict=True))
    chosen = pa.schema([field for field in schema if names is None or field.name in names])
    arrays = {field.name: pa.array(named[field.name], field.type) for field in chosen}
    if not {"ref_offset", "ref_at"}.isdisjoint(arrays) and "ref_offset" in named:
        back = pa.array(named["ref_offset"], pa.int64())
        is_near = pc.fill_null(pc.less(back, 0), False)
        if pc.any(is_near).as_py():
            near = {"ref_offset": pc.add(pa.array(offsets, pa.int64()), back), "ref_at": pa.array(times, _TIME)}
            arrays |= {name: pc.if_else(is_near, near[name], arrays[name]) for name in near.keys() & arrays.keys()}
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=chosen)


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
