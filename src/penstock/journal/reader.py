"""Reading a journal from any process of this machine: sealed history and hot segments as one sequence of rows.

Takes no lock and does not disturb the writer: it reads below the watermark, and follows rows that the sealer moves from a segment to the
table. The same range read twice gives the same rows (invariant 9).

A segment is read from any offset, with a cached index of positions so that a read does not scan the whole file. The index is only valid
for its file: a file of the same name with another header is another segment and gets an empty index. Only the positions of committed rows
are cached, because only these never change.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.journal.columns import RowRun, fitted, read_run_head, to_batch, unpack_run
from penstock.journal.disk import RealDisk
from penstock.journal.lake_location import lake_of
from penstock.journal.open_and_repair import Identity, read_identity, segments, settled_watermark
from penstock.journal.parquet_table import BATCH_BYTES, BATCH_ROWS, FILE_SCHEMA, EventsTable
from penstock.journal.sealed_reader import Part, SealedRows, SealedView
from penstock.journal.segments import PACKED, SHARD, UNREADABLE, DamageError, Header, decode_header, payloads
from penstock.journal.selection import Selection

RACES_MAX = 100
"""How often a range may move during a read before that counts as an error."""


class JournalError(Exception):
    """A journal that cannot be read as asked; the message says what to do."""


class RangeGoneError(JournalError):
    """Rows that are no longer kept."""

    def __init__(self, first: int, oldest: int) -> None:
        super().__init__(f"rows {first} to {oldest - 1} are no longer kept; the oldest is {oldest}")
        self.first = first
        self.oldest = oldest


class Mark(msgspec.Struct, frozen=True):
    """How far a journal's committed rows reach: cheap to ask for."""

    journal: str
    epoch: int
    end: int


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


class JournalReader:
    """A read-only view of `DIR/journal` and the lake. For one thread."""

    def __init__(self, data: Path) -> None:
        self._journal = data / "journal"
        if not self._journal.is_dir():
            raise JournalError(f"there is no journal in `{data}`; is this the data directory of a server?")
        self._disk = RealDisk(self._journal)
        self._sealed = SealedRows(EventsTable(lake_of(data)))
        self._segments: dict[str, IndexedSegment] = {}

    def identity(self) -> Identity:
        identity = read_identity(self._disk)
        if identity is None:
            raise JournalError(f"`{self._journal}` holds no journal yet; start a server on it first")
        return identity

    def mark(self) -> Mark:
        """The end of the journal, without listing its files."""
        identity = self.identity()
        end, epoch = self._watermark()
        return Mark(identity.id, epoch, end)

    def bounds(self) -> Bounds:
        """What can be read, now."""
        return self._look()[0]

    def _look(self) -> tuple[Bounds, SealedView]:
        identity = self.identity()
        # Segments first: rows that the sealer moves meanwhile are then seen twice, never missed.
        hot = segments(self._disk)
        view = self._sealed.view(identity.id)
        end, epoch = self._watermark()
        first = min([file.first for file in view.files[:1]] + [one.first for one in hot[:1]], default=end)
        return Bounds(identity.id, SHARD, epoch, first, view.end, end), view

    def _watermark(self) -> tuple[int, int]:
        if (mark := settled_watermark(self._disk)) is not None:
            return mark
        raise JournalError(f"`{self._journal}` has no watermark; start a server on it to repair it")

    def seams(self) -> list[int]:
        """Offsets at which sealed files begin: a range that is cut there is read without waste."""
        return [file.first for file in self._look()[1].files]

    def around(self, time_us: int) -> tuple[int, int]:
        """The first row that is not before a time is one of these, or the second of them."""
        bounds, view = self._look()
        low, high = self._sealed.around(view, time_us)
        return max(low or 0, bounds.first), min(bounds.end if high is None else high, bounds.end)

    def batches(
        self, first: int, end: int, columns: Sequence[str] | None = None, selection: Selection | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows `first` to `end - 1` in order, or those that pass the selection, with columns of the table `events`."""
        names = list(FILE_SCHEMA.names if columns is None else columns)
        unknown = [name for name in names if name not in FILE_SCHEMA.names]
        if unknown:
            raise JournalError(f"there is no column `{unknown[0]}`; columns: {', '.join(FILE_SCHEMA.names)}")
        wanted = selection if selection is not None and selection.columns else None
        parts = self._parts(first, end, names, wanted)
        yield from _gathered(part.batch for part in parts if part.batch is not None)

    def _parts(self, first: int, end: int, columns: list[str], selection: Selection | None) -> Iterator[Part]:
        """The range step by step, wherever its rows are when their turn comes."""
        races = 0
        while first < end:
            bounds, view = self._look()
            end = min(end, bounds.end)
            if first >= end:
                return
            if first < bounds.first:
                raise RangeGoneError(first, bounds.first)
            before = first
            try:
                source = (
                    self._sealed.parts(view, first, min(end, view.end), columns, selection)
                    if first < view.end
                    else self._hot(first, end, columns, selection)
                )
                for part in source:
                    yield part
                    first = part.following
            except FileNotFoundError:
                self._sealed.forget()  # sealed or removed since the listing: list again
            races = races + 1 if first == before else 0
            if races > RACES_MAX:
                raise JournalError(f"rows from {first} on cannot be found, though the journal reaches to {end}")

    def _hot(self, first: int, end: int, columns: list[str], selection: Selection | None) -> Iterator[Part]:
        """Rows that are only in segments so far. The writer may be at work: only what is below the watermark counts."""
        read = list(dict.fromkeys([*columns, *(selection.columns if selection is not None else [])]))
        found = segments(self._disk)
        self._segments = {
            one.name: self._segments.get(one.name) or IndexedSegment(self._journal / one.name) for one in found
        }
        schema = pa.schema([FILE_SCHEMA.field(name) for name in read])
        for segment in found:
            if segment.first >= end or (segment.limit is not None and segment.limit <= first):
                continue
            if segment.first > first:  # sealed since the caller looked
                raise FileNotFoundError(f"rows {first} to {segment.first - 1} are in no segment")
            stop = end if segment.limit is None else min(end, segment.limit)
            for rows in self._segments[segment.name].rows(first, stop, read):
                [batch] = rows.table.to_batches()
                batch = fitted(batch, schema, rows.header.identity)
                if selection is not None:
                    batch = selection.passed(batch).select(columns)
                yield Part(rows.first + rows.table.num_rows, batch)
            first = max(first, stop)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Few large batches instead of many small ones: commits and sealed files may be of a few rows each."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if held and (rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES):
                yield _joined(held)
                held, rows, size = [], 0, 0
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    except RangeGoneError:
        if held:
            yield _joined(held)  # what was read before the rest went is read
        raise
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


READ_BYTES = 1024 * 1024
"""Bytes of frames that are read and decoded together."""
LOOKUP_ROWS, LOOKUP_BYTES = 256, 128 * 1024
"""For so few rows, such as one whose time is asked, so many bytes at a time."""
STEP_BYTES = 64 * 1024
"""About how far two remembered places are apart."""
HEAD_BYTES = 64 * 1024
"""More than any header has."""


class IndexEntry(msgspec.Struct, frozen=True):
    """Where a row begins that is the first of its frame."""

    offset: int
    position: int


class SegmentRows(msgspec.Struct, frozen=True):
    """Committed rows of a segment, as they stand in it."""

    header: Header
    first: int
    table: pa.Table


class _Head(msgspec.Struct, frozen=True):
    """The beginning of a segment, as bytes and as what they mean."""

    data: bytes
    header: Header
    schema: pa.Schema
    message: bytes
    """The schema as the Arrow message that begins a stream."""


class _Gulp(msgspec.Struct, frozen=True):
    """A run of whole frames."""

    payloads: list[memoryview]
    ends: list[int]
    """Where each frame ends in the file."""


class IndexedSegment:
    """One segment file. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head: _Head | None = None
        self._index: list[IndexEntry] = []
        self._newest = IndexEntry(0, 0)
        """Where the last read ended: who follows the journal goes on from here."""

    def rows(self, first: int, stop: int, columns: Sequence[str]) -> Iterator[SegmentRows]:
        """Rows `first` to `stop - 1`, which are committed, with these columns where the segment has them, and `offset`."""
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = self._recognise(fd)
            names = ["offset", *(name for name in columns if name != "offset")]
            size = READ_BYTES if stop - first > LOOKUP_ROWS else LOOKUP_BYTES
            place = self._nearest(first)
            while place.offset < stop:
                gulp = self._gulp(fd, place, size)
                if not gulp.ends:
                    what = f"rows {place.offset} to {stop - 1} are missing"
                    raise DamageError(self._path.name, place.position, what)
                read = _read_packed if head.header.version == PACKED else _read_arrow
                try:
                    begin, table, counts = read(gulp.payloads, head, names, place.offset, range(first, stop))
                except UNREADABLE as error:
                    raise DamageError(self._path.name, place.position, f"a frame holds no rows: {error}") from error
                end = place.offset + sum(counts)
                if table is not None:
                    start = max(first, begin)
                    count = min(stop, begin + table.num_rows) - start
                    yield SegmentRows(head.header, start, table.combine_chunks().slice(start - begin, count))
                place = self._remember(head, gulp, counts, place, stop)
                if end >= stop:
                    return
        finally:
            os.close(fd)

    def _recognise(self, fd: int) -> _Head:
        """The head of the file; what was known of another file of this name is forgotten."""
        known = self._head
        if known is not None and os.pread(fd, len(known.data), 0) == known.data:
            return known
        data = os.pread(fd, HEAD_BYTES, 0)
        header, schema, start = decode_header(data, self._path.name)
        self._head = _Head(data[:start], header, schema, schema.serialize().to_pybytes())
        self._newest = IndexEntry(header.first_offset, start)
        self._index = [self._newest]
        return self._head

    def _nearest(self, offset: int) -> IndexEntry:
        """The last known place at or before a row."""
        if self._newest.offset <= offset:
            return self._newest
        return self._index[max(bisect_right(self._index, offset, key=lambda place: place.offset) - 1, 0)]

    def _gulp(self, fd: int, place: IndexEntry, size: int) -> _Gulp:
        """The whole frames from a place on: about as many bytes as are read at a time, and one frame at least where there is one."""
        while True:
            data = os.pread(fd, size, place.position)
            found = list(payloads(data, 0))
            if found or len(data) < size:
                break
            size *= 4  # a frame that is longer than what was read
        return _Gulp([payload for payload, _ in found], [place.position + end for _, end in found])

    def _remember(self, head: _Head, gulp: _Gulp, counts: list[int], place: IndexEntry, stop: int) -> IndexEntry:
        """Where the frames end whose rows are all committed."""
        end = place
        for count, position in zip(counts, gulp.ends, strict=False):  # frames that are not committed are not counted
            if end.offset + count > stop:
                break
            end = IndexEntry(end.offset + count, position)
            if head is self._head and position - self._index[-1].position >= STEP_BYTES:
                self._index.append(end)
        if head is self._head and end.offset > self._newest.offset:
            self._newest = end  # else another file has the name by now, and another read found out
        return end


def _check_place(first: int, count: int, expected: int) -> None:
    if first != expected:
        raise ValueError(f"rows {first} to {first + count - 1} stand where row {expected} belongs")


def _read_arrow(
    found: list[memoryview], head: _Head, names: Sequence[str], place: int, wanted: range
) -> tuple[int, pa.Table | None, list[int]]:
    """The columns of some frames, the first row that they have, and the rows of each frame."""
    included = [head.schema.get_field_index(name) for name in names if name in head.schema.names]
    options = pa.ipc.IpcReadOptions(included_fields=sorted(included))
    with pa.ipc.open_stream(pa.py_buffer(b"".join([head.message, *found])), options=options) as stream:
        table = stream.read_all()
    offsets = table.column("offset")
    last = min(table.num_rows, wanted.stop - place) - 1  # what is not committed yet is not judged
    _check_place(offsets[0].as_py(), last + 1, place)
    _check_place(offsets[last].as_py(), 1, place + last)
    return place, table if place + table.num_rows > wanted.start else None, [len(chunk) for chunk in offsets.chunks]


def _read_packed(
    found: list[memoryview], head: _Head, names: Sequence[str], place: int, wanted: range
) -> tuple[int, pa.Table | None, list[int]]:
    """The same; only frames with wanted rows are decoded."""
    runs: list[RowRun] = []
    counts: list[int] = []
    for payload in found:
        if place >= wanted.stop:
            break
        first, _, count = read_run_head(payload)
        _check_place(first, count, place)
        place += count
        counts.append(count)
        if place > wanted.start:
            runs.append(unpack_run(payload, head.schema))
    if not runs:
        return place, None, counts
    return runs[0].first_offset, pa.Table.from_batches([to_batch(runs, head.schema, names)]), counts
