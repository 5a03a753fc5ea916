"""The segment format: a file of framed rows. The only code that knows its bytes.

    header   magic "PENSTOCK" · u16 version · u16 kind · u32 shard · u32 epoch · u64 first offset
             16 bytes journal id · u32 schema length · Arrow schema message · u32 crc32c of all before
    frame    u32 length · u32 crc32c of the payload · payload
             version 1: one Arrow record-batch message
             version 2: ff ff ff ff · u64 first offset · u64 time · rows as a MessagePack array of arrays

Integers are little-endian. Log segments are written in version 2 and live files in version 1; both are read in both. Frames follow one
another to the end of the file. A frame that is cut short, or has a wrong checksum and no valid frame after it, is a torn tail: it was never
acknowledged, and `open_and_repair.py` cuts it off. A bad frame with valid frames after it is damage. `docs/reference/journal.md` describes
the format for other implementations.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import google_crc32c
import msgspec
import pyarrow as pa

from penstock.core.rows import Row
from penstock.journal.columns import (
    MARKER,
    Packed,
    RowRun,
    decode_rows,
    run_head,
    run_rows,
    to_batch,
    unpack_run,
)

MAGIC = b"PENSTOCK"
ARROW, PACKED = 1, 2
"""Versions of a segment: frames are Arrow record batches, or rows as MessagePack."""
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
    version: int = ARROW

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
        header.version,
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
    """A frame of version 1."""
    return _framed([batch.serialize()])


def encode_packed(first_offset: int, recorded_us: int, count: int, rows: Packed) -> bytes:
    """A frame of version 2."""
    return _framed([run_head(first_offset, recorded_us, count), *rows])


def _framed(pieces: Sequence[bytes | memoryview | pa.Buffer]) -> bytes:
    size = sum(map(len, pieces))
    if size > FRAME_MAX:
        raise ValueError(f"a frame of {size} bytes is longer than {FRAME_MAX} and could not be read again")
    checksum = 0
    for piece in pieces:
        checksum = google_crc32c.extend(checksum, pa.py_buffer(piece))
    return b"".join([_FRAME.pack(size, checksum), *pieces])


def decode_header(data: bytes | memoryview, name: str) -> tuple[Header, pa.Schema, int]:
    """The header, the schema, and where the frames begin."""
    if len(data) < _FIXED.size:
        raise DamageError(name, 0, "the header is cut short", is_cut_short=True)
    magic, version, kind, shard, epoch, first, journal, size = _FIXED.unpack_from(data)
    if magic != MAGIC:
        raise DamageError(name, 0, "this is not a Penstock segment")
    if version not in (ARROW, PACKED):
        raise DamageError(name, 8, f"version {version} is not known here; a newer Penstock wrote it")
    end = _FIXED.size + size
    if len(data) < end + _CRC.size:
        # A schema length that was damaged looks the same, but has frames behind it.
        is_cut_short = not has_sound_frame(memoryview(data))
        raise DamageError(name, _FIXED.size, "the header is cut short", is_cut_short=is_cut_short)
    if crc32c(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise DamageError(name, 0, "the header's checksum is wrong")
    schema = pa.ipc.read_schema(pa.py_buffer(bytes(data[_FIXED.size : end])))
    return Header(journal.hex(), shard, epoch, first, kind, version), schema, end + _CRC.size


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


UNREADABLE = (pa.ArrowException, EOFError, OSError, ValueError)
"""What bytes raise that are not the rows of a frame. `msgspec.DecodeError` is a ValueError."""


class SegmentFrame(msgspec.Struct, frozen=True):
    """One whole frame and where it stands."""

    position: int
    end: int
    scan: Scan
    held: pa.RecordBatch | RowRun

    @property
    def batch(self) -> pa.RecordBatch:
        return to_batch([self.held], self.scan.schema) if isinstance(self.held, RowRun) else self.held

    @property
    def first_offset(self) -> int:
        held = self.held
        return held.first_offset if isinstance(held, RowRun) else held.column("offset")[0].as_py()

    @property
    def count(self) -> int:
        return len(self.held.rows) if isinstance(self.held, RowRun) else self.held.num_rows

    def select(self, *names: str) -> pa.RecordBatch:
        """Some of its columns."""
        held = self.held
        return to_batch([held], self.scan.schema, names) if isinstance(held, RowRun) else held.select(names)

    def rows(self) -> Iterator[Row]:
        held, header = self.held, self.scan.header
        if isinstance(held, RowRun):
            return run_rows(held, self.scan.schema, header.journal, header.shard, header.epoch)
        return decode_rows(held, header.journal, header.shard, header.epoch)


def payloads(data: bytes | memoryview, position: int) -> Iterator[tuple[memoryview, int]]:
    """The payloads of the whole and sound frames from a position on, and where each frame ends."""
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
                held = (
                    unpack_run(payload, self.schema)
                    if self.header.version == PACKED
                    else pa.ipc.read_record_batch(pa.py_buffer(payload), self.schema)
                )
            except UNREADABLE as error:
                raise DamageError(self.name, self.end, f"a frame holds no rows: {error}") from error
            position, self.end = self.end, end
            yield SegmentFrame(position, end, self, held)
        if self.end < len(self._data):
            self._judge_tail()

    def _judge_tail(self) -> None:
        """A torn tail is accepted; damage raises. A torn write has no valid frame after it; damage in the middle has."""
        if not self._is_last:
            raise DamageError(self.name, self.end, "a frame is broken and later segments exist")
        if not self._has_holes and has_sound_frame(self._data, self.end + 1):
            raise DamageError(self.name, self.end, "a frame is broken and whole frames follow it")


def has_sound_frame(data: memoryview, position: int = 0) -> bool:
    """Whether any whole frame starts there or later. Payloads begin with a marker to look for."""
    raw = bytes(data[position:])
    at = raw.find(MARKER)
    while at >= 0:
        start = position + at - _FRAME.size
        if start >= position and _payload(data, start) is not None:
            return True
        at = raw.find(MARKER, at + 1)
    return False


BATCH_ROWS = 4096


def batches(frames: Iterable[SegmentFrame]) -> Iterator[pa.RecordBatch]:
    """The rows of frames as columns: of many small packed frames at once, because columns of few rows are costly."""
    held: list[RowRun] = []
    schema: pa.Schema = None
    for frame in frames:
        if not isinstance(frame.held, RowRun):
            yield frame.held
            continue
        held.append(frame.held)
        schema = frame.scan.schema
        if held[-1].first_offset - held[0].first_offset + frame.count >= BATCH_ROWS:
            yield to_batch(held, schema)
            held = []
    if held:
        yield to_batch(held, schema)
