"""The source without Spark: what its readers answer, and the rows that they give."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from penstock.journal import named_readers
from penstock.journal.disk import RealDisk
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.journal.retention import Retention
from penstock.journal.selection import Selection
from penstock.spark.source import stream_reader
from penstock.spark.source.datasource import PenstockSource
from penstock.spark.source.errors import DataLossError, GoneError, SourceError, source_errors
from penstock.spark.source.location import JournalLocation, open_journals, open_one
from penstock.spark.source.options import NAMES, parse_options
from penstock.spark.source.partition_reader import json_texts, read_partition, texts
from penstock.spark.source.partitions import cut, plan
from penstock.spark.source.stream_reader import share_limit
from tests.journal.histories import START_US
from tests.spark.journals import SECOND_US, Written, batch, declared, stream, table

ALL = ReadAllAvailable()
OTHER = "cd" * 16


def offsets_of(rows: pa.Table) -> list[int]:
    return rows.column("offset").to_pylist()


def at(journal: Written, offset: int) -> dict[str, Any]:
    return {"v": 1, "journals": {journal.id: {"0": offset}}}


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Thirty rows: ten sealed twice, ten hot."""
    journal = Written(tmp_path / "data")
    for _ in range(2):
        journal.add(10)
        journal.seal()
    journal.add(10)
    return journal


# Rows and schemas


@pytest.mark.promise(
    "Spark: source and sinks", "found without registration; Arrow batches with exactly the declared schema"
)
def test_every_batch_has_exactly_the_declared_schema(written: Written) -> None:
    for columns in (None, "offset", "body,offset,recorded_at", "journal", "ref_at,meta"):
        for body_as in ("binary", "string", "json"):
            options = {"bodyAs": body_as} | ({"columns": columns} if columns else {})
            reader = batch(written.data, **options)
            rows = table(reader, reader.partitions())
            assert rows.num_rows == 30
            assert rows.schema.equals(declared(written.data, **options))
    assert declared(written.data).equals(FILE_SCHEMA)
    assert declared(written.data, columns="seq,id").names == ["seq", "id"]


def test_an_old_segment_and_an_old_file_give_nulls_for_columns_they_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.journal import columns, log

    old = pa.schema([field for field in columns.SCHEMA if field.name != "meta"])
    encode = columns.encode_facts
    with monkeypatch.context() as patch:
        patch.setattr(log, "SCHEMA", old)
        patch.setattr(log, "encode_facts", lambda *args: encode(*args).select(old.names))
        journal = Written(tmp_path / "data")
        journal.add(5)
    reader = batch(journal.data)
    assert table(reader, reader.partitions()).column("meta").to_pylist() == [None] * 5
    journal.seal()
    assert table(reader, reader.partitions()).column("meta").to_pylist() == [None] * 5


def test_bodies_that_do_not_fit_are_null() -> None:
    bodies = pa.array(
        [b'{"a":1}', b"plain", b"\xff\xfe", None, b"", b"[" * 100_000, b"NaN", b'"\xc3\xa9"'], pa.binary()
    )
    assert texts(bodies).to_pylist()[:5] == ['{"a":1}', "plain", None, None, ""]
    assert json_texts(bodies).to_pylist() == ['{"a":1}', None, None, None, None, None, None, '"é"']
    assert texts(bodies.slice(7)).to_pylist() == ['"é"']


@pytest.mark.promise("Spark: source and sinks", "9: a range cut or read again in any way gives the same rows")
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


@pytest.mark.promise("Spark: source and sinks", "an empty batch")
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


@pytest.mark.promise("Spark: source and sinks", "9: a range cut or read again in any way gives the same rows")
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
    journals = open_journals(options)
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


# Options


@pytest.mark.promise("Spark: source and sinks", "wrong options, paths, rights and schemas say the cure")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "latest"}, "no option `startingOffset`; did you mean `startingOffsets`?"),
        ({"wrong": "1"}, "no option `wrong`; options: url, token"),
        ({"startingOffsets": "soon"}, "write `earliest`, `latest` or offsets as JSON"),
        ({"startingOffsets": '{"v":2,"journals":{}}'}, "offsets of version 2"),
        ({"startingOffsets": '{"v":1,"journals":{"x":{"0":-3}}}'}, "the least is -2"),
        ({"startingOffsets": '{"v":1,"journals":{"x":{"1":3}}}'}, "has only shard 0"),
        ({"startingOffsets": "[1]"}, "`startingOffsets` holds no offsets"),
        ({"endingOffsets": "earliest"}, "write `latest` or offsets as JSON"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number of 1 or more"),
        ({"maxTriggerDelay": "soon"}, "write a duration like"),
        ({"columns": "ofset"}, "did you mean `offset`?"),
        ({"columns": "offset,offset"}, "once"),
        ({"bodyAs": "xml"}, "one of binary, string, json"),
        ({"failOnDataLoss": "maybe"}, "one of true, false"),
        ({"reader": "a/b"}, "a reader's name has"),
        ({"token": "secret-1"}, "a token is for a server"),
        ({"url": "http://localhost:1"}, "either a data directory"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_with_its_cure(options: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_options({"path": "somewhere"} | options)
    assert message in str(caught.value) and "secret" not in str(caught.value)


def test_options_are_read_in_any_case_and_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = PenstockSource(
        {"PATH": "one, file:///two/three", "STARTINGOFFSETS": "Latest", "maxtriggerdelay": "2 min"}
    )
    monkeypatch.chdir("/")
    options = parse_options(source.options)
    assert [location.path for location in options.locations] == [str(tmp_path / "one"), "/two/three"]
    assert (options.starting, options.delay_s, options.fails_on_loss) == (-1, 120.0, True)
    assert {"startingOffsets", "maxTriggerDelay", "path"} == options.given <= set(NAMES)


def test_options_that_would_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="`endingOffsets` means nothing for a stream"):
        stream(tmp_path, endingOffsets="latest")
    with pytest.raises(SourceError, match="`maxOffsetsPerTrigger` means nothing for a batch read"):
        batch(tmp_path, maxOffsetsPerTrigger=5)


def test_tokens_come_from_where_they_are_said_to_be_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_TOKEN", "secret-2")
    (tmp_path / "token").write_text("secret-3\n")
    url = {"url": "http://one:1, https://two"}
    for secret, token in (
        ({"token": "secret-1"}, "secret-1"),
        ({"token": "env:JOURNAL_TOKEN"}, "secret-2"),
        ({"tokenFile": str(tmp_path / "token")}, "secret-3"),
    ):
        options = parse_options(url | secret)
        assert [(location.url, location.token) for location in options.locations] == [
            ("http://one:1", token),
            ("https://two", token),
        ]
        assert "secret" not in repr(options) + str(options.locations)
        assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(SourceError, match="the variable `MISSING` is not set"):
        parse_options(url | {"token": "env:MISSING"})
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        parse_options(url | {"tokenFile": str(tmp_path / "none")})
    with pytest.raises(SourceError, match="`one:1` is not the URL") as caught:
        parse_options({"url": "http://me:secret-4@one:1"})
    assert "secret" not in str(caught.value)


@pytest.mark.promise("Spark: source and sinks", "wrong options, paths, rights and schemas say the cure")
def test_a_schema_of_ones_own_is_refused(tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    source = PenstockSource({"path": str(tmp_path), "columns": "offset"})
    source.streamReader(source.schema())
    source.reader(StructType([StructField("offset", LongType(), False)]))
    for kind in ("reader", "streamReader"):
        with pytest.raises(SourceError, match="choose columns with the option `columns`"):
            getattr(source, kind)(StructType([StructField("offset", StringType())]))


# Where


@pytest.mark.promise("Spark: source and sinks", "wrong options, paths, rights and schemas say the cure")
def test_places_that_hold_no_journal_say_what_to_name(tmp_path: Path, written: Written) -> None:
    for path, message in (
        (tmp_path / "none", "there is no directory"),
        (tmp_path, "name the directory that has `journal` and `lake` in it"),
        (written.data / "lake", f"did you mean `{written.data}`?"),
    ):
        with pytest.raises(SourceError) as caught:
            stream(path).initialOffset()
        assert message in str(caught.value)
    twice = stream(written.data, Path(f"{written.data}/../data"), startingOffsets="earliest")
    assert table(twice, twice.partitions(twice.initialOffset(), at(written, 30))).num_rows == 30
    (tmp_path / "empty" / "journal").mkdir(parents=True)
    with pytest.raises(SourceError, match="holds no journal yet; start a server"):
        batch(tmp_path / "empty").partitions()


def test_a_copied_directory_is_the_same_journal(tmp_path: Path, written: Written) -> None:
    import shutil

    shutil.copytree(written.data, tmp_path / "copy")
    with pytest.raises(SourceError, match="its rows would come twice"):
        stream(written.data, tmp_path / "copy").initialOffset()


@pytest.mark.promise("Spark: source and sinks", "two journals in one query")
def test_two_journals_are_read_as_one_and_share_the_limit(tmp_path: Path, written: Written) -> None:
    other = Written(tmp_path / "other", OTHER)
    other.add(10)
    reader = stream(written.data, other.data, startingOffsets="earliest", columns="journal,offset")
    start = reader.initialOffset()
    assert start == {"v": 1, "journals": {written.id: {"0": 0}, OTHER: {"0": 0}}}
    seen: list[tuple[str, int]] = []
    steps = 0
    while (end := reader.latestOffset(start, ReadMaxRows(8))) != start:
        rows = table(reader, reader.partitions(start, end))
        assert 0 < rows.num_rows <= 8
        seen += zip(rows.column("journal").to_pylist(), offsets_of(rows), strict=True)
        start, steps = end, steps + 1
    assert steps == 5 and sorted(seen) == sorted(
        [(written.id, n) for n in range(30)] + [(OTHER, n) for n in range(10)]
    )
    with pytest.raises(SourceError, match=f"has no offset for journal {OTHER}"):
        batch(written.data, other.data, startingOffsets=json.dumps(at(written, 0))).partitions()
    with pytest.raises(SourceError, match=f"names journal {OTHER}, which is not read here"):
        batch(written.data, startingOffsets=json.dumps(at(other, 0))).partitions()


def test_a_journal_that_joins_a_query_is_read_from_its_oldest_row(tmp_path: Path, written: Written) -> None:
    other = Written(tmp_path / "other", OTHER)
    other.add(4)
    reader = stream(written.data, other.data, columns="journal,offset")
    end = reader.latestOffset(at(written, 30), ALL)
    rows = table(reader, reader.partitions(at(written, 30), end))
    assert (rows.column("journal").unique().to_pylist(), offsets_of(rows)) == ([OTHER], [0, 1, 2, 3])


# From, to


@pytest.mark.promise(
    "Spark: source and sinks", "starting and ending by offset and time; the clock stepped back"
)
def test_a_read_begins_and_ends_where_it_is_told(written: Written) -> None:
    def read(**options: object) -> list[int]:
        reader = batch(written.data, columns="offset", **options)
        return offsets_of(table(reader, reader.partitions()))

    assert read() == list(range(30)) == read(startingOffsets="earliest", endingOffsets="latest")
    assert read(startingOffsets="latest") == []
    given = {"startingOffsets": json.dumps(at(written, 8)), "endingOffsets": json.dumps(at(written, 22))}
    assert read(**given) == list(range(8, 22))
    assert read(
        startingOffsets=json.dumps(at(written, -2)), endingOffsets=json.dumps(at(written, -1))
    ) == list(range(30))
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


@pytest.mark.promise(
    "Spark: source and sinks", "starting and ending by offset and time; the clock stepped back"
)
def test_a_clock_that_is_stepped_back_leaves_times_in_order(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data")
    journal.add(5)
    journal.seal()
    journal.now_us -= 3 * SECOND_US  # to that of the row at offset 2
    journal.add(5)
    reader = batch(journal.data)
    times = table(reader, reader.partitions()).column("recorded_at").cast(pa.int64()).to_pylist()
    assert times == sorted(times)
    assert times == [
        START_US + min(max(n, 0), 4) * SECOND_US if n < 8 else START_US + (n - 3) * SECOND_US
        for n in range(10)
    ]
    opened = open_one(journal.data)
    for n in range(10):
        moment = opened.time_of(n)
        assert moment == times[n] and opened.offset_at(moment) == times.index(moment)
        assert opened.offset_at(moment + 1) == len([time for time in times if time <= moment])


def test_the_defaults_differ_between_batches_and_streams(written: Written) -> None:
    assert stream(written.data).initialOffset() == at(written, 30)
    written.add(2, sender="pipeline/alerts")
    written.add(1, sender=None)
    once = batch(written.data)
    assert offsets_of(table(once, once.partitions())) == list(range(33))
    for options, expected in (({}, [32]), ({"includePipeline": "true"}, [30, 31, 32])):
        reader = stream(written.data, **options)
        assert offsets_of(table(reader, reader.partitions(at(written, 30), at(written, 33)))) == expected
    without = batch(written.data, includePipeline="false")
    assert offsets_of(table(without, without.partitions())) == [*range(30), 32]


# How much


@pytest.mark.promise(
    "Spark: source and sinks", "admission control, AvailableNow, an idle query looks at the watermark alone"
)
def test_the_latest_offset_obeys_every_limit(written: Written) -> None:
    reader = stream(written.data, maxOffsetsPerTrigger=7)
    assert reader.getDefaultReadLimit() == ReadMaxRows(7)
    assert reader.latestOffset(at(written, 0), ReadMaxRows(7)) == at(written, 7)
    assert reader.latestOffset(at(written, 25), ReadMaxRows(7)) == at(written, 30)
    assert reader.latestOffset(at(written, 0), ALL) == at(written, 30) == reader.reportLatestOffset()
    filtered = stream(written.data, channel="nobody")
    assert filtered.latestOffset(at(written, 0), ReadMaxRows(7)) == at(written, 7)
    assert stream(written.data, minOffsetsPerTrigger=3).getDefaultReadLimit() == ReadMinRows(3)


@pytest.mark.promise(
    "Spark: source and sinks", "admission control, AvailableNow, an idle query looks at the watermark alone"
)
def test_a_batch_waits_for_enough_rows_but_not_for_ever(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(stream_reader.time, "monotonic", lambda: clock[0])
    reader = stream(written.data, minOffsetsPerTrigger=20, maxOffsetsPerTrigger=25, maxTriggerDelay="1m")
    assert reader.latestOffset(at(written, 20), ReadMaxRows(25)) == at(written, 30), (
        "the first waits for nothing"
    )
    written.add(5)
    assert reader.latestOffset(at(written, 30), ReadMaxRows(25)) == at(written, 30)
    assert reader.latestOffset(at(written, 30), ALL) == at(written, 35), "who wants all gets all"
    clock[0] += 61
    assert reader.latestOffset(at(written, 30), ReadMaxRows(25)) == at(written, 35)
    written.add(40)
    assert reader.latestOffset(at(written, 35), ReadMaxRows(25)) == at(written, 60)
    frozen = stream(written.data, minOffsetsPerTrigger=1_000)
    frozen.prepareForTriggerAvailableNow()
    assert frozen.latestOffset(at(written, 70), ReadMinRows(1_000)) == at(written, 75)


@pytest.mark.promise(
    "Spark: source and sinks", "admission control, AvailableNow, an idle query looks at the watermark alone"
)
def test_available_now_never_passes_its_end(written: Written) -> None:
    reader = stream(written.data)
    reader.prepareForTriggerAvailableNow()
    written.add(50)
    start, ends = at(written, 0), []
    while (end := reader.latestOffset(start, ReadMaxRows(9))) != start:
        ends.append(end["journals"][written.id]["0"])
        start = end
    assert ends == [9, 18, 27, 30]
    assert reader.reportLatestOffset() == at(written, 80)


def test_shares_of_a_limit_follow_what_waits() -> None:
    assert share_limit({"a": 0, "b": 100}, {"a": 90, "b": 110}, 10) == {"a": 9, "b": 101}
    assert share_limit({"a": 0, "b": 0}, {"a": 3, "b": 3}, 10) == {"a": 3, "b": 3}
    assert share_limit({"a": 0, "b": 0, "c": 5}, {"a": 1, "b": 1, "c": 5}, 1) == {"a": 1, "b": 0, "c": 5}


@pytest.mark.promise(
    "Spark: source and sinks", "admission control, AvailableNow, an idle query looks at the watermark alone"
)
def test_an_idle_query_looks_at_the_watermark_alone(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream(written.data)
    start = reader.latestOffset(at(written, 0), ALL)
    from penstock.journal.parquet_table import EventsTable
    from penstock.journal.segment_index import IndexedSegment

    def looked(*_: object) -> None:
        raise AssertionError("this is not cheap")

    monkeypatch.setattr(EventsTable, "files", looked)
    monkeypatch.setattr(EventsTable, "sealed_end", looked)
    monkeypatch.setattr(IndexedSegment, "rows", looked)
    assert reader.latestOffset(start, ALL) == start
    written.add(1)
    assert reader.latestOffset(start, ALL) == at(written, 31)


def test_large_batches_are_cut_where_files_begin() -> None:
    assert cut(0, 100, [0, 30, 60, 90], 50) == [(0, 30), (30, 60), (60, 100)]
    assert cut(10, 100, [0, 30, 60], 90) == [(10, 100)]
    assert cut(0, 100, [], 30) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert cut(5, 5, [], 30) == []


# Loss


@pytest.mark.promise("Spark: source and sinks", "retention under a paused reader: named, held or left out")
def test_rows_under_a_paused_reader_are_named_held_or_left_out(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data")
    for _ in range(4):
        journal.add(10)
        journal.seal()
    brief = Retention(age_ms=1, bytes_max=0)
    journal.now_us += 3_600 * SECOND_US
    held = stream(journal.data, reader="nightly", columns="offset")
    held.commit(at(journal, 20))
    assert journal.seal(brief).removed_files == 2, "what the reader has"
    paused = stream(journal.data, columns="offset")
    with pytest.raises(
        GoneError, match="DATA_LOSS: rows 5 to 19 are no longer kept; the oldest is 20"
    ) as caught:
        paused.partitions(at(journal, 5), at(journal, 40))
    assert "`failOnDataLoss`" in str(caught.value) and "`reader`" in str(caught.value)
    assert offsets_of(table(held, held.partitions(at(journal, 20), at(journal, 40)))) == list(range(20, 40))
    careless = stream(journal.data, failOnDataLoss="false", columns="offset")
    spans = careless.partitions(at(journal, 5), at(journal, 40))
    assert offsets_of(table(careless, spans)) == list(range(20, 40))
    assert careless.partitions(at(journal, 5), at(journal, 15)) == []
    # The reader comes on, retention follows, and what was planned before is gone when it is read.
    strict = held.partitions(at(journal, 20), at(journal, 40))
    held.commit(at(journal, 30))
    assert journal.seal(brief).removed_files == 1
    assert offsets_of(table(careless, spans)) == list(range(30, 40))
    with pytest.raises(DataLossError, match="rows 20 to 29 are no longer kept"):
        table(held, strict)
    once = batch(journal.data, columns="offset")
    assert offsets_of(table(once, once.partitions())) == list(range(30, 40)), "earliest is what there is"


@pytest.mark.promise("Spark: source and sinks", "retention under a paused reader: named, held or left out")
def test_a_named_reader_holds_from_its_first_row(written: Written) -> None:
    reader = stream(written.data, reader="nightly", startingOffsets="earliest")
    disk = RealDisk(written.data / "journal")
    reader.initialOffset()
    assert [(one.name, one.offset) for one in named_readers.list_readers(disk)] == [("nightly", 0)]
    reader.commit(at(written, 12))
    assert [(one.name, one.offset) for one in named_readers.list_readers(disk)] == [("nightly", 12)]


@pytest.mark.promise("Spark: source and sinks", "a recreated journal fails a checkpoint, never restarts")
def test_a_recreated_journal_fails_a_checkpoint_and_never_restarts(written: Written) -> None:
    reader = stream(written.data)
    reader.latestOffset(at(written, 0), ALL)
    spans = reader.partitions(at(written, 0), at(written, 30))
    fresh = written.remake(OTHER)
    fresh.add(100)
    for attempt in (
        lambda: reader.latestOffset(at(written, 30), ALL),
        lambda: reader.partitions(at(written, 0), at(written, 30)),
        lambda: table(reader, spans),
        lambda: stream(written.data, failOnDataLoss="false").latestOffset(at(written, 30), ALL),
    ):
        with pytest.raises(DataLossError) as caught:
            attempt()
        text = str(caught.value)
        assert "DATA_LOSS" in text and written.id in text and OTHER in text
        assert "new checkpoint" in text and "penstock pipeline reset" in text


@pytest.mark.promise("Spark: source and sinks", "a recreated journal fails a checkpoint, never restarts")
def test_rows_that_a_crash_took_back_are_noticed(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data", sync="off")
    journal.add(10)
    journal.seal()
    journal.add(5)
    reader = stream(journal.data)
    seen = reader.latestOffset(at(journal, 0), ALL)
    assert seen == at(journal, 15)
    segment = sorted((journal.data / "journal").glob("log-*"))[-1]
    RealDisk(segment.parent).open(segment.name).truncate(
        segment.stat().st_size * 2 // 3
    )  # what the disk had kept
    again = Written(journal.data, sync="off")
    again.publish()
    lost = again.end
    assert 10 < lost < 15
    with pytest.raises(DataLossError, match=f"rows {lost} to 14 of the journal at .* were lost"):
        reader.latestOffset(seen, ALL)
    again.add(20)
    with pytest.raises(DataLossError, match=f"rows {lost} to 14 of the journal at .* were lost"):
        reader.latestOffset(seen, ALL)
    careless = stream(journal.data, failOnDataLoss="false", columns="offset,epoch")
    end = careless.latestOffset(seen, ReadMaxRows(2))
    assert end == at(journal, lost + 2) | {"epochs": {journal.id: {"0": 1}}}
    assert careless.latestOffset(end, ALL) == at(journal, lost + 20) | {"epochs": {journal.id: {"0": 1}}}
    # A query that had read less than what was lost goes on, and says from then on in which epoch it reads.
    assert reader.latestOffset(at(journal, lost), ALL)["epochs"] == {journal.id: {"0": 1}}
    given = stream(journal.data, startingOffsets=json.dumps(at(journal, 20)))
    start = given.initialOffset()
    assert given.latestOffset(start, ALL) == at(journal, lost + 20) | {"epochs": {journal.id: {"0": 1}}}


def test_a_journal_that_ends_before_the_checkpoint_is_an_older_copy(written: Written) -> None:
    with pytest.raises(DataLossError, match="rows 30 to 39"):
        stream(written.data).latestOffset(at(written, 40), ALL)
    spans = stream(written.data).partitions(at(written, 28), at(written, 40))
    with pytest.raises(DataLossError, match=r"rows 30 to 39 .* have disappeared"):
        table(stream(written.data), spans)


def test_damage_is_named_and_not_skipped(written: Written) -> None:
    segment = sorted((written.data / "journal").glob("log-*"))[-1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    reader = batch(written.data)
    with pytest.raises(SourceError, match=r"are missing, in the journal at .*`penstock log check`"):
        table(reader, reader.partitions())


def test_a_directory_that_goes_away_says_so(written: Written) -> None:
    import shutil

    reader = stream(written.data)
    reader.latestOffset(at(written, 0), ALL)
    written.close()
    shutil.rmtree(written.data)
    with pytest.raises(SourceError, match="no longer exists"):
        reader.latestOffset(at(written, 30), ALL)


@pytest.mark.promise("Spark: source and sinks", "wrong options, paths, rights and schemas say the cure")
def test_a_file_that_may_not_be_read_says_who_may() -> None:
    with (
        pytest.raises(SourceError, match=r"no access to `/x/watermark`.* Run Spark as that user"),
        source_errors("`/x`"),
    ):
        raise PermissionError(13, "Permission denied", "/x/watermark")


# A growing journal


@pytest.mark.promise("Spark: source and sinks", "a journal growing and sealed while it is read")
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


def test_threads_that_share_a_journal_do_not_disturb_one_another(written: Written) -> None:
    opened = open_one(written.data)

    def read(seed: int) -> bool:
        dice = Random(seed)
        for _ in range(40):
            first = dice.randrange(30)
            found = [n for b in opened.batches(first, 30, ["offset"]) for n in b.column(0).to_pylist()]
            if found != list(range(first, 30)) or opened.time_of(first) != START_US + first * SECOND_US:
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, range(4)))


def test_places_are_kept_open_and_bounded(tmp_path: Path) -> None:
    from penstock.spark.source import location

    journals = []
    for number in range(location.OPENED_MAX + 2):
        journal = Written(tmp_path / str(number), f"{number:032x}")
        journal.add(1)
        journals.append(JournalLocation(path=str(journal.data)))
    opened = journals[0].open()
    assert journals[0].open() is opened
    assert [location.open().id for location in journals] == [f"{n:032x}" for n in range(len(journals))]
    assert len(location._opened) == location.OPENED_MAX
    assert journals[0].open() is not opened
