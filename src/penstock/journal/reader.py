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

from penstock.journal.columns import fitted, read_run_head, to_batch, unpack_run
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
STEP_BYTES = 1024 * 1024
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
            place = self._nearest(first)
            while place.offset < stop:
                gulp = self._gulp(fd, place)
                if not gulp.ends:
                    what = f"rows {place.offset} to {stop - 1} are missing"
                    raise DamageError(self._path.name, place.position, what)
                is_before = place.offset < first
                table, counts = self._decode(gulp, head, ["offset"] if is_before else names, place, stop)
                end = place.offset + table.num_rows
                following = self._remember(head, gulp, counts, place, stop)
                if end > first:
                    if is_before:
                        table, _ = self._decode(gulp, head, names, place, stop)
                    begin = max(first, place.offset)
                    yield SegmentRows(
                        head.header, begin, table.combine_chunks().slice(begin - place.offset, min(stop, end) - begin)
                    )
                if end >= stop:
                    return
                place = following
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

    def _gulp(self, fd: int, place: IndexEntry) -> _Gulp:
        """The whole frames from a place on: about as many as are read at a time, and one at least where there is one."""
        size = READ_BYTES
        while True:
            data = os.pread(fd, size, place.position)
            found = list(payloads(data, 0))
            if found or len(data) < size:
                break
            size *= 4  # a frame that is longer than what was read
        return _Gulp([payload for payload, _ in found], [place.position + end for _, end in found])

    def _decode(
        self, gulp: _Gulp, head: _Head, names: Sequence[str], place: IndexEntry, stop: int
    ) -> tuple[pa.Table, list[int]]:
        """The wanted columns of all frames at once, and the rows of each frame; what is not committed yet is not judged."""
        try:
            read = _read_packed if head.header.version == PACKED else _read_arrow
            table, counts = read(gulp.payloads, head, names)
        except UNREADABLE as error:
            what = f"a frame holds no rows: {error}"
            raise DamageError(self._path.name, place.position, what) from error
        offsets = table.column("offset")
        count = min(table.num_rows, stop - place.offset)
        first, last = offsets[0].as_py(), offsets[count - 1].as_py()
        if (first, last) != (place.offset, place.offset + count - 1):
            what = f"rows {first} to {last} stand where row {place.offset} belongs"
            raise DamageError(self._path.name, place.position, what)
        return table, counts

    def _remember(self, head: _Head, gulp: _Gulp, counts: list[int], place: IndexEntry, stop: int) -> IndexEntry:
        """Where the frames end whose rows are all committed."""
        end, offset = place, place.offset
        for count, position in zip(counts, gulp.ends, strict=True):
            offset += count
            if offset > stop:
                break
            end = IndexEntry(offset, position)
        if head is not self._head:
            return end  # another file has the name by now, and another read found out
        if end.offset > self._newest.offset:
            self._newest = end
        if end.position - self._index[-1].position >= STEP_BYTES:
            self._index.append(end)
        return end


def _read_arrow(found: list[memoryview], head: _Head, names: Sequence[str]) -> tuple[pa.Table, list[int]]:
    included = [head.schema.get_field_index(name) for name in names if name in head.schema.names]
    options = pa.ipc.IpcReadOptions(included_fields=sorted(included))
    with pa.ipc.open_stream(pa.py_buffer(b"".join([head.message, *found])), options=options) as stream:
        table = stream.read_all()
    return table, [len(chunk) for chunk in table.column("offset").chunks]


def _read_packed(found: list[memoryview], head: _Head, names: Sequence[str]) -> tuple[pa.Table, list[int]]:
    if names == ["offset"]:  # rows that are passed over
        heads = [read_run_head(payload) for payload in found]
        offsets = [first + number for first, _, count in heads for number in range(count)]
        return pa.table({"offset": pa.array(offsets, pa.int64())}), [count for _, _, count in heads]
    runs = [unpack_run(payload, head.schema) for payload in found]
    return pa.Table.from_batches([to_batch(runs, head.schema, names)]), [len(run.rows) for run in runs]
