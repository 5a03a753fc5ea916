"""Read a segment from any offset, with a cached index of positions so that a read does not scan the whole file.

The index is only valid for its file: a file of the same name with another header is another segment and gets an empty index. Only the positions of
committed rows are cached, because only these never change.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.journal.segments import DamageError, Header, decode_header, payloads

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

    stream: bytes
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
                gulp = self._gulp(fd, head, place)
                if not gulp.ends:
                    what = f"rows {place.offset} to {stop - 1} are missing"
                    raise DamageError(self._path.name, place.position, what)
                is_before = place.offset < first
                table = self._decode(gulp, head, ["offset"] if is_before else names, place, stop)
                end = place.offset + table.num_rows
                following = self._remember(head, gulp, table.column("offset"), place, stop)
                if end > first:
                    if is_before:
                        table = self._decode(gulp, head, names, place, stop)
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

    def _gulp(self, fd: int, head: _Head, place: IndexEntry) -> _Gulp:
        """The whole frames from a place on: about as many as are read at a time, and one at least where there is one."""
        size = READ_BYTES
        while True:
            data = os.pread(fd, size, place.position)
            found = list(payloads(data, 0))
            if found or len(data) < size:
                break
            size *= 4  # a frame that is longer than what was read
        stream = b"".join([head.message, *(payload for payload, _ in found)])
        return _Gulp(stream, [place.position + end for _, end in found])

    def _decode(self, gulp: _Gulp, head: _Head, names: Sequence[str], place: IndexEntry, stop: int) -> pa.Table:
        """The wanted columns of all frames at once; what is not committed yet is not judged."""
        included = [head.schema.get_field_index(name) for name in names if name in head.schema.names]
        options = pa.ipc.IpcReadOptions(included_fields=sorted(included))
        try:
            with pa.ipc.open_stream(pa.py_buffer(gulp.stream), options=options) as stream:
                table = stream.read_all()
        except (pa.ArrowException, EOFError, OSError) as error:
            what = f"a frame holds no record batch: {error}"
            raise DamageError(self._path.name, place.position, what) from error
        offsets = table.column("offset")
        count = min(table.num_rows, stop - place.offset)
        first, last = offsets[0].as_py(), offsets[count - 1].as_py()
        if (first, last) != (place.offset, place.offset + count - 1):
            what = f"rows {first} to {last} stand where row {place.offset} belongs"
            raise DamageError(self._path.name, place.position, what)
        return table

    def _remember(self, head: _Head, gulp: _Gulp, offsets: pa.ChunkedArray, place: IndexEntry, stop: int) -> IndexEntry:
        """Where the frames end whose rows are all committed."""
        end = place
        if place.offset + len(offsets) <= stop:
            end = IndexEntry(place.offset + len(offsets), gulp.ends[-1])
        else:
            offset = place.offset
            for chunk, position in zip(offsets.chunks, gulp.ends, strict=True):
                offset += len(chunk)
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
