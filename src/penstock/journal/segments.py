"""The segment format: a file of framed Arrow messages. The only code that knows its bytes.

    header   magic "PENSTOCK" · u16 version · u16 kind · u32 shard · u32 epoch · u64 first offset
             16 bytes journal id · u32 schema length · Arrow schema message · u32 crc32c of all before
    frame    u32 length · u32 crc32c of the payload · payload: one Arrow record-batch message

Integers are little-endian. Frames follow one another to the end of the file. A frame that is cut short, or has a wrong checksum and no
valid frame after it, is a torn tail: it was never acknowledged, and `open_and_repair.py` cuts it off. A bad frame with valid frames after
it is damage. `docs/reference/journal.md` describes the format for other implementations.

A segment is read from any offset, with a cached index of positions so that a read does not scan the whole file. The index is only valid
for its file: a file of the same name with another header is another segment and gets an empty index. Only the positions of committed rows
are cached, because only these never change.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import google_crc32c
import msgspec
import pyarrow as pa

MAGIC = b"PENSTOCK"
VERSION = 1
SHARD = 0
"""The one shard of a journal on one machine."""
KIND_LOG = 0
KIND_LIVE = 1
"""A live file: the state at an offset, in rows, instead of history."""
FRAME_MAX = 256 * 1024 * 1024
"""The longest frame: a larger length is garbage and must not cause an allocation."""

_FIXED = struct.Struct("<8sHHIIQ16sI")
_FRAME = struct.Struct("<II")
_CRC = struct.Struct("<I")


class Header(msgspec.Struct, frozen=True):
    """What all rows of a segment have in common."""

    journal: str
    """32 hex digits."""
    shard: int
    epoch: int
    first_offset: int
    kind: int = KIND_LOG

    @property
    def identity(self) -> dict[str, str | int]:
        """The columns of the table `events` that a segment does not repeat for each row."""
        return {"journal": self.journal, "shard": self.shard, "epoch": self.epoch}


class DamageError(Exception):
    """Damage in a file, with its position where it is known; never skipped."""

    def __init__(self, name: str, position: int | None, what: str, *, is_cut_short: bool = False) -> None:
        super().__init__(f"`{name}` is damaged{'' if position is None else f' at byte {position}'}: {what}")
        self.name = name
        self.position = position
        self.what = what
        self.is_cut_short = is_cut_short
        """The file ends before its header does: it was just being begun."""


def crc32c(data: bytes | memoryview | pa.Buffer) -> int:
    return int(google_crc32c.value(pa.py_buffer(data) if isinstance(data, memoryview) else data))  # without a copy


def encode_header(header: Header, schema: pa.Schema) -> bytes:
    message: bytes = schema.serialize().to_pybytes()
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        header.kind,
        header.shard,
        header.epoch,
        header.first_offset,
        bytes.fromhex(header.journal),
        len(message),
    )
    head = fixed + message
    return bytes(head + _CRC.pack(crc32c(head)))


def encode_frame(batch: pa.RecordBatch) -> bytes:
    payload = batch.serialize()
    if len(payload) > FRAME_MAX:
        raise ValueError(f"a frame of {len(payload)} bytes is longer than {FRAME_MAX} and could not be read again")
    return b"".join([_FRAME.pack(len(payload), crc32c(payload)), payload])


def decode_header(data: bytes | memoryview, name: str) -> tuple[Header, pa.Schema, int]:
    """The header, the schema, and where the frames begin."""
    if len(data) < _FIXED.size:
        raise DamageError(name, 0, "the header is cut short", is_cut_short=True)
    magic, version, kind, shard, epoch, first, journal, size = _FIXED.unpack_from(data)
    if magic != MAGIC:
        raise DamageError(name, 0, "this is not a Penstock segment")
    if version != VERSION:
        raise DamageError(name, 8, f"version {version} is not known here; a newer Penstock wrote it")
    end = _FIXED.size + size
    if len(data) < end + _CRC.size:
        # A schema length that was damaged looks the same, but has frames behind it.
        is_cut_short = not has_sound_frame(memoryview(data))
        raise DamageError(name, _FIXED.size, "the header is cut short", is_cut_short=is_cut_short)
    if crc32c(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise DamageError(name, 0, "the header's checksum is wrong")
    schema = pa.ipc.read_schema(pa.py_buffer(bytes(data[_FIXED.size : end])))
    return Header(journal.hex(), shard, epoch, first, kind), schema, end + _CRC.size


def _payload(data: memoryview, position: int) -> memoryview | None:
    """The payload of a whole and sound frame at this position."""
    if position + _FRAME.size > len(data):
        return None
    length, checksum = _FRAME.unpack_from(data, position)
    begin = position + _FRAME.size
    if not 0 < length <= FRAME_MAX or begin + length > len(data):
        return None
    payload = data[begin : begin + length]
    return payload if crc32c(payload) == checksum else None


class SegmentFrame(msgspec.Struct, frozen=True):
    """One whole frame and where it stands."""

    position: int
    end: int
    batch: pa.RecordBatch


def payloads(data: bytes | memoryview, position: int) -> Iterator[tuple[memoryview, int]]:
    """The Arrow messages of the whole and sound frames from a position on, and where each frame ends."""
    view = memoryview(data)
    while (payload := _payload(view, position)) is not None:
        position += _FRAME.size + len(payload)
        yield payload, position


class Scan:
    """Iterates over the valid frames of a segment. Afterwards `end` is the end of the last one."""

    def __init__(self, data: bytes | memoryview, name: str, *, is_last: bool, has_holes: bool = False) -> None:
        self.header, self.schema, self.start = decode_header(data, name)
        self.end = self.start
        self._data = memoryview(data)
        self.name = name
        self._is_last = is_last
        """Only the newest segment may have a torn tail."""
        self._has_holes = has_holes
        """Several frames may have been lost together, in any order: the tail begins at the first that is broken."""

    def frames(self) -> Iterator[SegmentFrame]:
        self.end = self.start
        for payload, end in payloads(self._data, self.start):
            try:
                batch = pa.ipc.read_record_batch(pa.py_buffer(payload), self.schema)
            except (pa.ArrowException, EOFError, OSError) as error:
                raise DamageError(self.name, self.end, f"a frame holds no record batch: {error}") from error
            position, self.end = self.end, end
            yield SegmentFrame(position, end, batch)
        if self.end < len(self._data):
            self._judge_tail()

    def _judge_tail(self) -> None:
        """A torn tail is accepted; damage raises. A torn write has no valid frame after it; damage in the middle has."""
        if not self._is_last:
            raise DamageError(self.name, self.end, "a frame is broken and later segments exist")
        if not self._has_holes and has_sound_frame(self._data, self.end + 1):
            raise DamageError(self.name, self.end, "a frame is broken and whole frames follow it")


def has_sound_frame(data: memoryview, position: int = 0) -> bool:
    """Whether any whole frame starts there or later. Arrow messages begin with a marker to look for."""
    raw = bytes(data[position:])
    at = raw.find(b"\xff\xff\xff\xff")
    while at >= 0:
        start = position + at - _FRAME.size
        if start >= position and _payload(data, start) is not None:
            return True
        at = raw.find(b"\xff\xff\xff\xff", at + 1)
    return False


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
