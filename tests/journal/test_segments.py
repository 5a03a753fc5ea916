"""The bytes of a segment: fixed, and damaged in every place.

Whatever happens to a file, reading it gives the right rows, or fewer at its end if it is the newest, or an error that names file and
position. It never gives other rows or leaves out rows in the middle.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.core.rows import Row, row_of
from penstock.journal.columns import MARKER, SCHEMA, decode_rows, encode_rows
from penstock.journal.disk import RealDisk
from penstock.journal.log import segment_name
from penstock.journal.open_and_repair import (
    IDENTITY,
    LIVE_PREFIX,
    WATERMARK,
    Opened,
    encode_watermark,
    live_name,
    read_live,
    segments,
)
from penstock.journal.reader import JournalReader, Mark
from penstock.journal.segments import (
    ARROW,
    FRAME_MAX,
    KIND_LIVE,
    PACKED,
    DamageError,
    Header,
    Scan,
    crc32c,
    decode_header,
    encode_frame,
    encode_header,
)
from penstock.testing.disk import LyingDisk
from tests.journal.histories import JOURNAL, START_US, ack, arrow_frame, packed_frame, publish, put, rebuilt, reopened
from tests.tiers import first_of

FRAMES = 3


def written(version: int) -> tuple[bytes, list[int], list[str | None]]:
    """A small segment, where its frames end, and the ids in it."""
    data = encode_header(Header(JOURNAL, 0, 0, 0, version=version), SCHEMA)
    encode = packed_frame if version == PACKED else arrow_frame
    ends = [len(data)]
    for n in range(FRAMES):
        data += encode([put(f"p{n}"), ack(f"a{n}")], 2 * n, START_US + n)
        ends.append(len(data))
    return data, ends, [id_ for n in range(FRAMES) for id_ in (f"p{n}", f"a{n}")]


SEGMENT, ENDS, IDS = written(PACKED)
OLD_SEGMENT, OLD_ENDS, _ = written(ARROW)
both_versions = pytest.mark.parametrize(
    ("segment", "ends"), [(SEGMENT, ENDS), (OLD_SEGMENT, OLD_ENDS)], ids=["packed", "arrow"]
)


def directory(*files: tuple[str, bytes]) -> LyingDisk:
    """A disk with these files, a sound identity, and a watermark that promises nothing."""
    disk = LyingDisk(0)
    identity = b'{"id":"%b","format":1,"epoch":0,"sync":"commit","is_clean":false}' % JOURNAL.encode()
    for name, data in (*files, (IDENTITY, identity), (WATERMARK, encode_watermark(0, 0))):
        disk.open(name).append(data)
    return disk


def rows_of(disk: LyingDisk) -> list[Row]:
    return rebuilt(disk)[2]


def flipped(data: bytes, position: int, mask: int) -> bytes:
    return data[:position] + bytes((data[position] ^ mask,)) + data[position + 1 :]


# Vectors


VECTOR_SCHEMA = pa.schema([pa.field("offset", pa.int64(), nullable=False)])
VECTOR_HEADER = bytes.fromhex(
    "50454e53544f434b"  # PENSTOCK
    "0100"  # version
    "0100"  # kind
    "07000000"  # shard
    "09000000"  # epoch
    "0807060504030201"  # first offset
    "0123456789abcdef0123456789abcdef"  # journal id
    "88000000"  # length of the schema message
    "ffffffff800000001000000000000a000c000600050008000a000000000104000c000000080008000000040008000000"
    "040000000100000014000000100014000800000007000c00000010001000000000000002100000002000000004000000"
    "00000000060000006f6666736574000008000c000800070008000000000000014000000000000000"
    "40d09142"  # crc32c of all before
)
VECTOR_FRAME = bytes.fromhex(
    "a0000000"  # length
    "f2e5e44e"  # crc32c of the payload
    "ffffffff8800000014000000000000000c0016000600050008000c000c0000000003040018000000100000000000000000000a00"
    "18000c00040008000a0000003c00000010000000020000000000000000000000020000000000000000000000000000000000000000"
    "00000000000000100000000000000000000000010000000200000000000000000000000000000005000000000000000600000000000000"
)


@pytest.mark.promise("Journal", "segments match the documented format byte by byte")
def test_the_header_is_these_bytes() -> None:
    header = Header(JOURNAL, 7, 9, 0x0102030405060708, kind=1)
    assert encode_header(header, VECTOR_SCHEMA) == VECTOR_HEADER
    assert decode_header(VECTOR_HEADER, "vector") == (header, VECTOR_SCHEMA, len(VECTOR_HEADER))


@pytest.mark.promise("Journal", "segments match the documented format byte by byte")
def test_a_frame_is_these_bytes() -> None:
    batch = pa.record_batch([pa.array([5, 6], pa.int64())], schema=VECTOR_SCHEMA)
    assert encode_frame(batch) == VECTOR_FRAME
    (frame,) = Scan(VECTOR_HEADER + VECTOR_FRAME, "vector", is_last=False).frames()
    assert (frame.position, frame.end) == (188, 356)
    assert frame.batch.to_pydict() == {"offset": [5, 6]}


def test_the_checksum_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"") == 0


def test_the_columns_are_these() -> None:
    """Columns may be added at the end, nullable; none is renamed or retyped."""
    columns = [(field.name, str(field.type), field.nullable) for field in SCHEMA]
    assert columns == [
        ("offset", "int64", False),
        ("recorded_at", "timestamp[us, tz=UTC]", False),
        ("door", "string", False),
        ("event", "string", False),
        ("channel", "string", True),
        ("seq", "int64", True),
        ("id", "string", True),
        ("kind", "string", True),
        ("sender", "string", True),
        ("peer", "string", True),
        ("corr", "string", True),
        ("attempt", "int32", True),
        ("bytes", "int32", True),
        ("recipients", "int32", True),
        ("reason", "string", True),
        ("ref_offset", "int64", True),
        ("ref_at", "timestamp[us, tz=UTC]", True),
        ("first_at", "timestamp[us, tz=UTC]", True),
        ("meta", "string", True),
        ("body", "binary", True),
    ]


def test_rows_come_back_as_they_went_in() -> None:
    rows = rows_of(directory((segment_name(0), SEGMENT)))
    assert [row.id for row in rows] == IDS
    first, second = rows[:2]
    assert (first.event, first.body, first.size, first.recorded_at) == ("enqueue", b"{}", 2, START_US)
    assert (second.event, second.peer, second.attempt, second.ref_offset) == ("ack", "worker", 1, 0)
    assert (second.ref_at, second.first_at, second.body) == (START_US, START_US, None)


# Damage


@pytest.mark.promise("Journal", "a torn tail is truncated; damage elsewhere is reported and the journal is not opened")
@both_versions
@pytest.mark.parametrize("mask", first_of([0x01, 0x80, 0xFF], 1))
def test_every_byte_of_the_newest_segment_flipped(mask: int, segment: bytes, ends: list[int]) -> None:
    for position in range(len(segment)):
        disk = directory((segment_name(0), flipped(segment, position, mask)))
        if position >= ends[-2]:  # a broken last frame cannot be distinguished from a torn one
            assert [row.id for row in rows_of(disk)] == IDS[:-2]
            continue
        with pytest.raises(DamageError) as caught:
            rows_of(disk)
        assert caught.value.name == segment_name(0) and f"`{segment_name(0)}`" in str(caught.value)
        if position >= ends[0]:
            assert caught.value.position == max(end for end in ends if end <= position)


@pytest.mark.promise("Journal", "a torn tail is truncated; damage elsewhere is reported and the journal is not opened")
@both_versions
def test_every_byte_of_an_older_segment_flipped(segment: bytes, ends: list[int]) -> None:
    newest = encode_header(Header(JOURNAL, 0, 0, 2 * FRAMES), SCHEMA)
    for position in range(len(segment)):
        damaged = flipped(segment, position, 0x10)
        disk = directory((segment_name(0), damaged), (segment_name(2 * FRAMES), newest))
        with pytest.raises(DamageError) as caught:
            rows_of(disk)
        assert caught.value.name == segment_name(0)
        assert disk.read(segment_name(0)) == damaged, "evidence is not changed"


@pytest.mark.promise("Journal", "a torn tail is truncated; damage elsewhere is reported and the journal is not opened")
@both_versions
def test_the_newest_segment_cut_anywhere_loses_only_its_end(segment: bytes, ends: list[int]) -> None:
    for size in range(len(segment) + 1):
        disk = directory((segment_name(0), segment[:size]))
        opened, _, rows = rebuilt(disk)
        whole = sum(end <= size for end in ends[1:])
        assert [row.id for row in rows] == IDS[: 2 * whole], size
        kept = max((end for end in ends if end <= size), default=0)
        assert opened.torn_bytes == size - kept
        if kept:
            assert disk.size(segment_name(0)) == kept
        else:
            assert segment_name(0) not in disk.names()


@both_versions
def test_an_older_segment_cut_anywhere_is_reported(segment: bytes, ends: list[int]) -> None:
    newest = encode_header(Header(JOURNAL, 0, 0, 2 * FRAMES), SCHEMA)
    for size in range(len(segment)):
        disk = directory((segment_name(0), segment[:size]), (segment_name(2 * FRAMES), newest))
        with pytest.raises(DamageError) as caught:
            rows_of(disk)
        assert caught.value.name == segment_name(0)


def test_a_header_that_never_reached_the_disk_is_no_damage() -> None:
    """A crash while a segment is begun may leave its length without its bytes."""
    dice = LyingDisk(1).dice
    for junk in (bytes(ENDS[0]), dice.randbytes(ENDS[0]), bytes(10), dice.randbytes(ENDS[0] - 1)):
        disk = directory((segment_name(0), SEGMENT), (segment_name(2 * FRAMES), junk))
        assert [row.id for row in rows_of(disk)] == IDS
        assert segment_name(2 * FRAMES) not in disk.names()
    too_long = bytes(ENDS[0] + 1)
    with pytest.raises(DamageError):
        rows_of(directory((segment_name(0), SEGMENT), (segment_name(2 * FRAMES), too_long)))


@pytest.mark.parametrize("length", [0, 1, 2**31 - 1, 2**31, 2**32 - 1, FRAME_MAX, FRAME_MAX + 1])
def test_an_absurd_length_is_a_torn_tail_and_allocates_nothing(length: int) -> None:
    junk = struct.pack("<II", length, 0) + b"x" * 20
    assert [row.id for row in rows_of(directory((segment_name(0), SEGMENT + junk)))] == IDS
    with pytest.raises(DamageError) as caught:
        rows_of(directory((segment_name(0), SEGMENT[: ENDS[1]] + junk + SEGMENT[ENDS[1] :])))
    assert caught.value.position == ENDS[1]


def test_a_frame_longer_than_a_reader_accepts_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.journal.segments.FRAME_MAX", 2000)
    with pytest.raises(ValueError, match="longer than 2000"):
        packed_frame([put("a", bytes(3000))], 0, START_US)


ROW = ["courier", "ack", *[None] * 16]
START = MARKER + struct.pack("<qq", 2 * FRAMES, START_US)


@both_versions
@pytest.mark.parametrize(
    "payload",
    [
        MARKER,
        MARKER + bytes(60),
        START + b"\xdd\0\0\0\0",
        START + b"\xdd\0\0\0\2" + msgspec.msgpack.encode(ROW),
        START + b"\xdd\0\0\0\1" + msgspec.msgpack.encode(ROW) * 2,
        START + b"\xdd\0\0\0\1" + msgspec.msgpack.encode(ROW[:-1]),
        START + b"\xdd\0\0\0\1" + msgspec.msgpack.encode([None, *ROW[1:]]),
        START + b"\xdd\0\0\0\1" + msgspec.msgpack.encode([*ROW[:3], 1 << 63, *ROW[4:]]),
        START + b"\xdd\0\0\0\1" + msgspec.msgpack.encode([*ROW[:9], 1 << 31, *ROW[10:]]),
    ],
)
def test_a_sound_frame_without_rows_is_damage(payload: bytes, segment: bytes, ends: list[int]) -> None:
    frame = struct.pack("<II", len(payload), crc32c(payload)) + payload
    with pytest.raises(DamageError) as caught:
        rows_of(directory((segment_name(0), segment + frame)))
    assert caught.value.position == len(segment)


def test_a_sound_frame_whose_rows_stand_elsewhere_is_damage() -> None:
    payload = START + b"\xdd\0\0\0\1" + msgspec.msgpack.encode(ROW)
    frame = struct.pack("<II", len(payload), crc32c(payload)) + payload
    assert len(rows_of(directory((segment_name(0), SEGMENT + frame)))) == len(IDS) + 1
    with pytest.raises(DamageError, match="row 6 where 4 belongs"):
        rows_of(directory((segment_name(0), SEGMENT[: ENDS[2]] + frame)))


def test_a_frame_twice_or_missing_is_damage() -> None:
    first, second = SEGMENT[ENDS[0] : ENDS[1]], SEGMENT[ENDS[1] : ENDS[2]]
    for frames in (first + first, second, first + SEGMENT[ENDS[2] :]):
        with pytest.raises(DamageError, match=r"where \d belongs"):
            rows_of(directory((segment_name(0), SEGMENT[: ENDS[0]] + frames)))


def test_a_segment_of_another_journal_or_place_is_refused() -> None:
    other = encode_header(Header("ff" * 16, 0, 0, 0), SCHEMA) + SEGMENT[ENDS[0] :]
    for name, data in ((segment_name(0), other), (segment_name(1), SEGMENT)):
        with pytest.raises(DamageError):
            rows_of(directory((name, data)))


def test_missing_segments_are_named() -> None:
    later = encode_header(Header(JOURNAL, 0, 0, 50), SCHEMA)
    with pytest.raises(DamageError, match="rows 6 to 49 are missing"):
        rows_of(directory((segment_name(0), SEGMENT), (segment_name(50), later)))
    with pytest.raises(DamageError, match="no live file is left"):
        rows_of(directory((segment_name(50), later)))


def test_segments_without_an_identity_are_not_adopted() -> None:
    disk = LyingDisk(0)
    disk.open(segment_name(0)).append(SEGMENT)
    with pytest.raises(DamageError, match="identity is missing"):
        Opened(disk, fresh_id=JOURNAL, sync="commit")


# Live files


def live_file(count: int, batch: int = 2) -> bytes:
    """A live file of so many seen ids, several frames long."""
    rows = [
        Row(
            recorded_at=START_US + n,
            event="seen",
            channel="jobs",
            seq=n + 1,
            id=f"i{n}",
            reason="acked",
            meta="1",
        )
        for n in range(count)
    ]
    rows.append(Row(offset=5, recorded_at=START_US + 99, door="server", event="tick", seq=count))
    data = encode_header(Header(JOURNAL, 0, 0, 6, KIND_LIVE), SCHEMA)
    for start in range(0, len(rows), batch):
        data += encode_frame(encode_rows(rows[start : start + batch]))
    return data


def test_every_byte_and_every_end_of_a_live_file() -> None:
    """A shorter live file would be a smaller state, so it must be whole to the last row."""
    data = live_file(4)
    assert len(read_live(data, "live")[1]) == 3
    damaged = [flipped(data, position, 0x04) for position in range(len(data))]
    for content in [*damaged, *(data[:size] for size in range(len(data)))]:
        with pytest.raises(DamageError):
            read_live(content, "live")


def test_a_damaged_live_file_is_passed_over_only_while_the_log_tells_all() -> None:
    name = live_name(2 * FRAMES)
    newest = encode_header(Header(JOURNAL, 0, 0, 2 * FRAMES), SCHEMA)
    files = ((name, live_file(4)[:-1]), (segment_name(2 * FRAMES), newest))
    _, live, tail = rebuilt(directory((segment_name(0), SEGMENT), *files))
    assert (live, [row.id for row in tail]) == ([], IDS)
    with pytest.raises(DamageError) as caught:
        rebuilt(directory(*files))
    assert caught.value.name == name and name.startswith(LIVE_PREFIX)


def test_time_goes_on_from_what_a_live_file_says() -> None:
    disk = directory((live_name(6), live_file(1)))
    log, _ = reopened(disk)
    log.commit([[put("next")]], START_US - 10)
    (row,) = rebuilt(disk)[2]
    assert (row.offset, row.recorded_at) == (6, START_US + 99)


# Versions


FACTS = [put("p"), ack("a")]


@pytest.mark.promise("Journal", "an older segment version is read; a newer one is rejected by its version")
def test_both_versions_hold_the_same_rows_and_an_older_segment_is_not_continued() -> None:
    (old, new) = (rows_of(directory((segment_name(0), data))) for data in (OLD_SEGMENT, SEGMENT))
    assert old == new
    disk = directory((segment_name(0), OLD_SEGMENT))
    log, _ = reopened(disk)
    log.commit([FACTS], START_US + 9)
    log.close()
    assert disk.read(segment_name(0)) == OLD_SEGMENT, "a segment has frames of one version"
    assert [segment.first for segment in segments(disk)] == [0, 2 * FRAMES]
    rows = rows_of(disk)
    assert (rows[:-2], [row.id for row in rows[-2:]]) == (old, ["p", "a"])


def test_a_packed_segment_with_other_columns_reads_by_their_names() -> None:
    """As a later version may write it: a column more, and one that this version does not know the type of."""
    wide = SCHEMA.append(pa.field("mood", pa.string())).append(pa.field("share", pa.float64()))
    rows = [["courier", "ack", *[None] * 11, -1, *[None] * 4, "calm", 0.5]] * 2
    payload = MARKER + struct.pack("<qq", 0, START_US) + b"\xdd\0\0\0\2" + b"".join(map(msgspec.msgpack.encode, rows))
    head = encode_header(Header(JOURNAL, 0, 0, 0, version=PACKED), wide)
    data = head + struct.pack("<II", len(payload), crc32c(payload)) + payload
    (_, second) = rows_of(directory((segment_name(0), data)))
    assert (second.event, second.ref_offset, second.ref_at, second.body) == ("ack", 0, START_US, None)
    (frame,) = Scan(data, "wide", is_last=False).frames()
    assert frame.batch.column("mood").to_pylist() == ["calm", "calm"]
    assert frame.batch.column("share").to_pylist() == [0.5, 0.5]
    assert frame.select("offset", "event").to_pydict() == {"offset": [0, 1], "event": ["ack", "ack"]}


@pytest.mark.promise("Journal", "an older segment version is read; a newer one is rejected by its version")
def test_a_segment_with_fewer_columns_reads_with_nulls() -> None:
    old = pa.schema([SCHEMA.field(name) for name in ("offset", "recorded_at", "door", "event", "channel", "id")])
    batch = encode_rows([replace(row_of(fact), offset=n, recorded_at=START_US) for n, fact in enumerate(FACTS)])
    narrow = pa.RecordBatch.from_arrays([batch.column(name) for name in old.names], schema=old)
    data = encode_header(Header(JOURNAL, 0, 0, 0), old) + encode_frame(narrow)
    first, second = rows_of(directory((segment_name(0), data)))
    assert (first.id, first.event, first.recorded_at, first.channel) == ("p", "enqueue", START_US, "jobs")
    assert (second.id, second.seq, second.body, second.meta, second.ref_at) == ("a", None, None, None, None)


def test_a_segment_with_a_column_from_the_future_reads_without_it() -> None:
    batch = encode_rows([replace(row_of(put("p")), offset=0, recorded_at=START_US)])
    wide = batch.append_column("mood", pa.array(["calm"]))
    (row,) = decode_rows(wide, JOURNAL, 0, 0)
    assert replace(row, journal="") == replace(next(decode_rows(batch, JOURNAL, 0, 0)), journal="")


@pytest.mark.promise("Journal", "an older segment version is read; a newer one is rejected by its version")
@pytest.mark.parametrize("version", [0, 3, 65535])
def test_a_newer_version_is_refused_by_name(version: int) -> None:
    head = SEGMENT[:8] + struct.pack("<H", version) + SEGMENT[10 : ENDS[0] - 4]
    data = head + struct.pack("<I", crc32c(head)) + SEGMENT[ENDS[0] :]
    with pytest.raises(DamageError, match=f"version {version} is not known here; a newer Penstock wrote it"):
        Scan(data, segment_name(0), is_last=True)
    with pytest.raises(DamageError, match="newer Penstock"):
        rows_of(directory((segment_name(0), data)))


def test_a_newer_directory_format_is_refused() -> None:
    disk = LyingDisk(0)
    disk.open(IDENTITY).append(b'{"id":"%b","format":2}' % JOURNAL.encode())
    with pytest.raises(DamageError, match="newer Penstock"):
        Opened(disk, fresh_id=JOURNAL, sync="commit")


def test_a_segment_is_entered_near_the_row_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.journal.reader.LOOKUP_BYTES", 4_000)
    monkeypatch.setattr("penstock.journal.reader.STEP_BYTES", 4_000)
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk)
    for n in range(200):
        log.commit([[put(f"e{n}-{part}", b"x" * 50) for part in range(3)]], START_US + n)
    log.close()
    publish(disk, 600)
    reader = JournalReader(tmp_path)
    everything = pa.Table.from_batches(reader.batches(0, 600))
    assert everything.column("offset").to_pylist() == list(range(600))
    read = 0
    original = os.pread

    def watched(fd: int, size: int, position: int) -> bytes:
        nonlocal read
        data = original(fd, size, position)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", watched)
    size = (tmp_path / "journal" / segments(disk)[0].name).stat().st_size
    for first in (0, 1, 299, 300, 301, 598, 599):
        before = read
        part = pa.Table.from_batches(reader.batches(first, first + 1))
        assert part.equals(everything.slice(first, 1))
        assert read - before < size // 10


def test_a_segment_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    """As after a crash without syncs: the same name and place, other rows, a new epoch."""
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk, sync="off")
    log.commit([[put("old-1"), put("old-2")]], START_US)
    publish(disk, 2)
    reader = JournalReader(tmp_path)
    names = ["offset", "id", "epoch"]
    assert [b.to_pydict()["id"] for b in reader.batches(0, 9, names)] == [["old-1", "old-2"]]
    (segment,) = segments(disk)
    disk.open(segment.name).truncate(100)  # what the disk had kept of it
    log, _ = reopened(disk, sync="off")
    log.commit([[put("new-1"), put("new-2"), put("new-3")]], START_US)
    log.close()
    disk.overwrite(WATERMARK, encode_watermark(3, 1))
    disk.unlock()
    (batch,) = reader.batches(0, 9, names)
    assert batch.to_pydict() == {
        "offset": [0, 1, 2],
        "id": ["new-1", "new-2", "new-3"],
        "epoch": [1, 1, 1],
    }
    assert reader.mark() == Mark(JOURNAL, 1, 3)
