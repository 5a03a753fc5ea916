"""Reading a journal from any process of this machine: sealed history and hot segments as one sequence of rows.

Takes no lock and disturbs nobody: sees what is below the writer's watermark, and when the sealer moves rows from a segment
to the table under its eyes, finds them there. The same range read twice gives the same rows (invariant 9).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.journal.bronze import FILE_SCHEMA, Bronze, with_identity
from penstock.journal.directory import Identity, Segment, read_identity, read_watermark, segments
from penstock.journal.disk import RealDisk
from penstock.journal.segments import DamageError, Header, decode_header, walk

RACES_MAX = 100
"""How often a range may move under a reader before that is no race but a fault."""


class JournalError(Exception):
    """A journal that cannot be read as asked; the message says what to do."""


class Bounds(msgspec.Struct):
    """What can be read."""

    journal: str
    shard: int
    epoch: int
    first: int
    """The oldest row that is still kept."""
    sealed_end: int
    """Rows before this are in the Delta table."""
    end: int
    """The offset behind the last committed row."""


class _Place(msgspec.Struct, frozen=True):
    """Where a read of a segment ended, so that the next one need not begin at its beginning."""

    header: Header
    schema: pa.Schema
    position: int
    offset: int


class JournalReader:
    """A read-only view of `DIR/journal` and `DIR/lake`."""

    def __init__(self, data: Path, shard: int = 0) -> None:
        self._journal = data / "journal"
        if not self._journal.is_dir():
            raise JournalError(f"there is no journal in `{data}`; is this the data directory of a server?")
        self._disk = RealDisk(self._journal)
        self._bronze = Bronze(data / "lake")
        self._shard = shard
        self._places: dict[str, _Place] = {}

    def identity(self) -> Identity:
        identity = read_identity(self._disk)
        if identity is None:
            raise JournalError(f"`{self._journal}` holds no journal yet; start a server on it first")
        return identity

    def bounds(self) -> Bounds:
        """How far the journal reaches, now."""
        identity = self.identity()
        # Segments first: what the sealer moves meanwhile is then seen twice, and never not at all.
        hot = segments(self._disk)
        files = self._bronze.files()
        sealed_end = self._bronze.sealed_end(identity.id, self._shard)
        for _ in range(RACES_MAX):
            mark = read_watermark(self._disk)
            if mark is not None:
                break
        else:
            raise JournalError(f"`{self._journal}` has no watermark; start a server on it to mend it")
        first = min([file.first for file in files[:1]] + [one.first for one in hot[:1]], default=mark[0])
        return Bounds(identity.id, self._shard, mark[1], first, sealed_end, mark[0])

    def batches(self, first: int, end: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows `first` to `end - 1`, in order, with the columns of the table `events` without its date."""
        unknown = [name for name in columns or () if name not in FILE_SCHEMA.names]
        if unknown:
            raise JournalError(f"there is no column `{unknown[0]}`; columns: {', '.join(FILE_SCHEMA.names)}")
        races = 0
        while first < end:
            bounds = self.bounds()
            end = min(end, bounds.end)
            if first >= end:
                return
            if first < bounds.first:
                raise JournalError(
                    f"rows {first} to {bounds.first - 1} are no longer kept; the oldest is {bounds.first}"
                )
            before = first
            try:
                source = (
                    self._bronze.batches(first, min(end, bounds.sealed_end), columns)
                    if first < bounds.sealed_end
                    else _selected(self._hot(first, end), columns)
                )
                for batch in source:
                    yield batch
                    first += batch.num_rows
            except FileNotFoundError:
                pass  # sealed or removed between our look and our read: look again
            races = races + 1 if first == before else 0
            if races > RACES_MAX:
                raise JournalError(
                    f"rows from {first} on cannot be found, though the journal reaches to {end}"
                )

    def _hot(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Rows that are only in segments so far."""
        for segment in segments(self._disk):
            if segment.first >= end or (segment.limit is not None and segment.limit <= first):
                continue
            if segment.first > first:  # sealed since the caller looked
                raise FileNotFoundError(f"rows {first} to {segment.first - 1} are in no segment")
            stop = end if segment.limit is None else min(end, segment.limit)
            yield from self._segment(segment, first, stop)
            first = max(first, stop)

    def _segment(self, segment: Segment, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows of one segment. The writer may be at work on it: only what is below the watermark is looked at."""
        place = self._places.get(segment.name)
        if place is None or place.offset > first:
            data = self._disk.read(segment.name)
            header, schema, position = decode_header(data, segment.name)
            place = _Place(header, schema, position, segment.first)
            start, base = position, 0
        else:
            data = self._disk.read(segment.name, place.position)
            start, base = 0, place.position
        header = place.header
        for frame in walk(data, start, place.schema, segment.name, base):
            batch, offset = frame.batch, place.offset
            begin, behind = max(first - offset, 0), min(stop - offset, batch.num_rows)
            if behind > begin:
                part = batch.slice(begin, behind - begin)
                yield with_identity(part, header.journal, header.shard, header.epoch)
            if offset + batch.num_rows > stop:
                break
            place = _Place(header, place.schema, frame.end, offset + batch.num_rows)
            if place.offset == stop:
                break
        else:
            raise DamageError(segment.name, place.position, f"rows {place.offset} to {stop - 1} are missing")
        self._places = {segment.name: place}  # whoever follows the journal goes on from here


def _selected(batches: Iterator[pa.RecordBatch], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    return batches if columns is None else (batch.select(list(columns)) for batch in batches)
