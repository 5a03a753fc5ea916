"""The bytes in `docs/reference/journal.md` are bytes that the code reads and writes."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.core.records import Note
from penstock.journal.columns import SCHEMA, decode_rows, pack_facts
from penstock.journal.open_and_repair import encode_watermark
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.journal.segments import (
    FRAME_MAX,
    PACKED,
    DamageError,
    Header,
    Scan,
    SegmentFrame,
    crc32c,
    encode_frame,
    encode_header,
    encode_packed,
)
from tests.paths import ROOT

TEXT = (ROOT / "docs/reference/journal.md").read_text()
SEGMENT, FRAME, MARK = (
    bytes.fromhex("".join(line[4:].replace(" ", "") for line in block.splitlines()))
    for block in re.findall(r"^```hex\n(.*?)^```$", TEXT, re.M | re.S)
)


def read() -> tuple[Scan, list[SegmentFrame]]:
    scan = Scan(SEGMENT, "log-41.seg", is_last=False)
    return scan, list(scan.frames())


def test_the_example_reads_as_the_text_says() -> None:
    scan, (frame,) = read()
    assert scan.header == Header("000102030405060708090a0b0c0d0e0f", shard=0, epoch=2, first_offset=41)
    assert (scan.start, frame.position, frame.end) == (348, 348, len(SEGMENT))
    (row,) = decode_rows(frame.batch, scan.header.journal, scan.header.shard, scan.header.epoch)
    assert (row.offset, row.recorded_at, row.door, row.event) == (41, 1_767_225_600_000_000, "server", "tick")
    assert row.body is None and row.epoch == 2


@pytest.mark.promise("Journal", "segments match the documented format byte by byte")
def test_the_example_is_what_is_written() -> None:
    scan, (frame,) = read()
    head = encode_header(scan.header, scan.schema)
    # Arrow may lay out a message otherwise one day; all around it is ours.
    assert head[:44] == SEGMENT[:44]
    again = Scan(head + encode_frame(frame.batch), "again", is_last=False)
    assert [each.batch for each in again.frames()] == [frame.batch]


@pytest.mark.promise("Journal", "segments match the documented format byte by byte")
def test_the_packed_frame_is_the_same_row() -> None:
    scan, (frame,) = read()
    header = replace(scan.header, version=PACKED)
    data = encode_header(header, scan.schema) + FRAME
    (packed,) = Scan(data, "packed", is_last=False).frames()
    assert (packed.batch, list(packed.rows())) == (frame.batch, list(frame.rows()))
    (piece,) = pack_facts([Note("tick", "server")])
    again = encode_packed(41, 1_767_225_600_000_000, 1, [piece])
    (row,) = Scan(encode_header(header, SCHEMA) + again, "again", is_last=False).frames()
    assert again[8:33] == FRAME[8:33], "all before the row"
    assert [one.event for one in row.rows()] == ["tick"]


def test_the_fields_stand_where_the_tables_say() -> None:
    size = int.from_bytes(SEGMENT[44:48], "little")
    assert size == 296 and f"({size} bytes, 48 to {47 + size})" in TEXT
    assert int.from_bytes(SEGMENT[48 + size : 52 + size], "little") == crc32c(SEGMENT[: 48 + size])
    assert pa.ipc.read_schema(pa.py_buffer(SEGMENT[48 : 48 + size])).names == SCHEMA.names[:4]
    frame = SEGMENT[348:]
    assert int.from_bytes(frame[:4], "little") == len(frame) - 8
    assert int.from_bytes(frame[4:8], "little") == crc32c(frame[8:]) and frame[8:12] == b"\xff" * 4
    assert f"{FRAME_MAX:,}" in TEXT
    assert encode_watermark(42, 2) == MARK


@pytest.mark.parametrize("position", range(0, len(SEGMENT), 7))
def test_no_byte_of_the_example_can_change_unnoticed(position: int) -> None:
    broken = bytearray(SEGMENT)
    broken[position] ^= 0x10
    with pytest.raises(DamageError):
        list(Scan(bytes(broken), "broken", is_last=False).frames())


def test_every_column_is_described() -> None:
    rows = TEXT.split("## Rows")[1].split("*Facts*")[0]
    named = {name for line in rows.splitlines() if line.startswith("| `") for name in _names(line)}
    assert named == set(FILE_SCHEMA.names)


def _names(line: str) -> list[str]:
    return re.findall(r"`(\w+)`", line.split("|")[1])
