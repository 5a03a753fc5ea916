"""Which rows a query reads, and how they are split."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.journal import columns
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.journal.segments import ARROW, PACKED, Scan, encode_frame, encode_header, encode_packed
from penstock.journal.selection import Selection
from penstock.spark.errors import SourceError
from penstock.spark.location import open_journals
from penstock.spark.source.options import parse_options
from penstock.spark.source.partitions import cut, json_texts, plan, read_partition, texts
from tests.journal.histories import START_US
from tests.spark.journals import SECOND_US, Written, at, batch, offsets_of, stream, table


@pytest.mark.promise("Spark: source and sinks", "an empty batch has no partitions")
def test_a_batch_of_no_rows_has_no_partitions(written: Written) -> None:
    reader = stream(written.data)
    assert reader.partitions(at(written, 7), at(written, 7)) == []
    once = batch(written.data, startingOffsets=json.dumps(at(written, 30)))
    assert once.partitions() == []
    from pyspark.sql.datasource import InputPartition

    assert list(once.read(InputPartition(None))) == []
    assert table(reader, reader.partitions(at(written, 7), at(written, 8))).num_rows == 1
    filtered = stream(written.data, channel="nobody")
    assert table(filtered, filtered.partitions(at(written, 0), at(written, 30))).num_rows == 0


@pytest.mark.promise(
    "Spark: source and sinks", "a query starts and ends by offset or time, even if the clock stepped back"
)
def test_a_read_starts_and_ends_at_its_options(written: Written) -> None:
    def read(**options: object) -> list[int]:
        reader = batch(written.data, columns="offset", **options)
        return offsets_of(table(reader, reader.partitions()))

    assert read() == list(range(30)) == read(startingOffsets="earliest", endingOffsets="latest")
    assert read(startingOffsets="latest") == []
    given = {"startingOffsets": json.dumps(at(written, 8)), "endingOffsets": json.dumps(at(written, 22))}
    assert read(**given) == list(range(8, 22))
    assert read(startingOffsets=json.dumps(at(written, -2)), endingOffsets=json.dumps(at(written, -1))) == list(
        range(30)
    )
    for text, expected in (
        (str(START_US // 1000), 0),
        (str((START_US + 12 * SECOND_US) // 1000), 12),
        (str((START_US + 12 * SECOND_US) // 1000 + 1), 13),
        (str((START_US + 25 * SECOND_US) // 1000), 25),
        ("2999-01-01", 30),
        ("1999-01-01T00:00:00+02:00", 0),
    ):
        assert read(startingTimestamp=text) == list(range(expected, 30))
        assert read(endingTimestamp=text) == list(range(expected))
        assert stream(written.data, startingTimestamp=text).initialOffset() == at(written, expected)
    with pytest.raises(SourceError, match="which ends at 30"):
        read(endingOffsets=json.dumps(at(written, 31)))
    with pytest.raises(SourceError, match="begins at row 9 and ends before it, at 3"):
        read(startingOffsets=json.dumps(at(written, 9)), endingOffsets=json.dumps(at(written, 3)))


def test_large_batches_are_cut_where_files_begin() -> None:
    assert cut(0, 100, [0, 30, 60, 90], 50) == [(0, 30), (30, 60), (60, 100)]
    assert cut(10, 100, [0, 30, 60], 90) == [(10, 100)]
    assert cut(0, 100, [], 30) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert cut(5, 5, [], 30) == []


@pytest.mark.parametrize("version", [ARROW, PACKED])
def test_an_old_segment_and_an_old_file_give_nulls_for_columns_they_lack(tmp_path: Path, version: int) -> None:
    old = pa.schema([field for field in columns.SCHEMA if field.name != "meta"])
    journal = Written(tmp_path / "data")
    journal.add(5)
    [segment] = (journal.data / "journal").glob("log-*")
    scan = Scan(segment.read_bytes(), segment.name, is_last=True)
    frames = list(scan.frames())
    encoded = [encode_header(replace(scan.header, version=version), old)]
    for frame in frames:
        [row] = frame.rows()
        fields = [getattr(row, "size" if name == "bytes" else name) for name in old.names[columns.PACKED_FROM :]]
        packed = encode_packed(row.offset, row.recorded_at, 1, [memoryview(msgspec.msgpack.encode(fields))])
        encoded.append(encode_frame(frame.batch.select(old.names)) if version == ARROW else packed)
    segment.write_bytes(b"".join(encoded))
    reader = batch(journal.data)
    rows = table(reader, reader.partitions())
    assert (rows.column("meta").to_pylist(), rows.column("offset").to_pylist()) == ([None] * 5, list(range(5)))
    journal.seal()
    assert table(reader, reader.partitions()).column("meta").to_pylist() == [None] * 5


def test_bodies_that_do_not_fit_are_null() -> None:
    bodies = pa.array(
        [b'{"a":1}', b"plain", b"\xff\xfe", None, b"", b"[" * 100_000, b"NaN", b'"\xc3\xa9"'], pa.binary()
    )
    assert texts(bodies).to_pylist()[:5] == ['{"a":1}', "plain", None, None, ""]
    assert json_texts(bodies).to_pylist() == ['{"a":1}', None, None, None, None, None, None, '"é"']
    assert texts(bodies.slice(7)).to_pylist() == ['"é"']


@pytest.mark.promise("Spark: source and sinks", "9: a range that is split or read again in any way gives the same rows")
def test_a_replayed_batch_gives_identical_rows(written: Written) -> None:
    """Invariant 9, with the rows moving from segments to the table in between."""
    reader = stream(written.data, includePipeline="true")
    before = table(reader, reader.partitions(at(written, 5), at(written, 30)))
    spans = reader.partitions(at(written, 5), at(written, 30))
    written.seal()
    written.add(3)
    copy = pickle.loads(pickle.dumps((reader, spans)))
    assert table(*copy).equals(before)
    assert table(reader, reader.partitions(at(written, 5), at(written, 30))).equals(before)
    assert offsets_of(before) == list(range(5, 30))


@pytest.mark.promise("Spark: source and sinks", "9: a range that is split or read again in any way gives the same rows")
@settings(max_examples=60)
@given(data=st.data())
def test_any_split_of_any_range_gives_the_rows_of_one_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    journal = _mixed(tmp_path_factory)
    first = data.draw(st.integers(0, journal.end))
    end = data.draw(st.integers(first, journal.end))
    rows = data.draw(st.integers(1, 40))
    seams = data.draw(st.lists(st.integers(0, journal.end), unique=True).map(sorted))
    parts = cut(first, end, seams, rows)
    assert [one for part in parts for one in range(*part)] == list(range(first, end))
    assert all(high - low <= rows + rows // 2 or not seams for low, high in parts)
    choice = Selection(
        tuple(data.draw(st.lists(st.sampled_from(["courier", "server"]), max_size=1))),
        tuple(data.draw(st.lists(st.sampled_from(["jobs", "a/*", "*/b", "*", "none"]), max_size=2))),
        tuple(data.draw(st.lists(st.sampled_from(["enqueue", "ack"]), max_size=1))),
        data.draw(st.booleans()),
    )
    options = parse_options({"path": str(journal.data), "minPartitions": str(data.draw(st.integers(1, 9)))})
    journals = open_journals(options.locations)
    spans = plan(options, journals, {journal.id: (first, end)})
    split = [one for span in spans for one in read_partition(options, choice, span)]
    whole = pa.Table.from_batches(journals[journal.id].batches(first, end), FILE_SCHEMA)
    kept = [choice.passed(one) for one in whole.to_batches()]
    expected = pa.Table.from_batches(kept, FILE_SCHEMA)
    assert pa.Table.from_batches(split, FILE_SCHEMA).equals(expected)
    pairs = [(span.first, span.end) for span in spans]
    assert [one for pair in pairs for one in range(*pair)] == list(range(first, end))
    assert len(pairs) >= min(options.partitions_min or 0, end - first)


_kept: list[Written] = []


def _mixed(factory: pytest.TempPathFactory) -> Written:
    """Sealed and hot rows of several channels and senders, made once."""
    if not _kept:
        journal = Written(factory.mktemp("mixed") / "data")
        for number, channel in enumerate(["jobs", "a/b", "a/c", "jobs"]):
            journal.add(20, channel=channel, sender="pipeline/own" if number % 2 else None, each=number + 1)
            if number < 2:
                journal.seal()
        _kept.append(journal)
    return _kept[0]


@pytest.mark.promise("Spark: source and sinks", "a journal can grow and be sealed while it is read")
def test_a_journal_that_grows_and_is_sealed_while_read_gives_every_row_once(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data")
    journal.add(1)
    reader = stream(journal.data, startingOffsets="earliest", columns="offset,id")
    start = reader.initialOffset()
    seen: list[int] = []
    for turn in range(40):
        journal.add(turn % 5, each=2)
        end = reader.latestOffset(start, ReadMaxRows(6))
        spans = reader.partitions(start, end)
        if turn % 7 == 3:
            journal.seal()  # between planning and reading
        rows = table(reader, spans)
        assert rows.column("id").to_pylist() == [f"e{offset}" for offset in offsets_of(rows)]
        seen += offsets_of(rows)
        start = end
    assert seen == list(range(start["journals"][journal.id]["0"])) and len(seen) > 70
