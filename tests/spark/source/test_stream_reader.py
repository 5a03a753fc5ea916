"""The streaming reader: offsets, limits, journals that join, and rows that are lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows, ReadMinRows

from penstock.journal import named_readers
from penstock.journal.disk import RealDisk
from penstock.journal.retention import Retention
from penstock.spark.errors import DataLossError, GoneError, SourceError
from penstock.spark.source import stream_reader
from penstock.spark.source.stream_reader import share_limit
from tests.spark.journals import (
    ALL,
    OTHER,
    SECOND_US,
    Written,
    at,
    batch,
    offsets_of,
    stream,
    table,
)


@pytest.mark.promise("Spark: source and sinks", "one query can read two journals")
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
    assert steps == 5 and sorted(seen) == sorted([(written.id, n) for n in range(30)] + [(OTHER, n) for n in range(10)])
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


@pytest.mark.promise(
    "Spark: source and sinks",
    "admission control and AvailableNow work, and an idle query reads only the watermark",
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
    "Spark: source and sinks",
    "admission control and AvailableNow work, and an idle query reads only the watermark",
)
def test_a_batch_waits_for_enough_rows_but_not_for_ever(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(stream_reader.time, "monotonic", lambda: clock[0])
    reader = stream(written.data, minOffsetsPerTrigger=20, maxOffsetsPerTrigger=25, maxTriggerDelay="1m")
    assert reader.latestOffset(at(written, 20), ReadMaxRows(25)) == at(written, 30), "the first waits for nothing"
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
    "Spark: source and sinks",
    "admission control and AvailableNow work, and an idle query reads only the watermark",
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
    "Spark: source and sinks",
    "admission control and AvailableNow work, and an idle query reads only the watermark",
)
def test_an_idle_query_looks_at_the_watermark_alone(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stream(written.data)
    start = reader.latestOffset(at(written, 0), ALL)
    from penstock.journal.parquet_table import EventsTable
    from penstock.journal.reader import IndexedSegment

    def looked(*_: object) -> None:
        raise AssertionError("this is not cheap")

    monkeypatch.setattr(EventsTable, "files", looked)
    monkeypatch.setattr(EventsTable, "sealed_end", looked)
    monkeypatch.setattr(IndexedSegment, "rows", looked)
    assert reader.latestOffset(start, ALL) == start
    written.add(1)
    assert reader.latestOffset(start, ALL) == at(written, 31)


@pytest.mark.promise(
    "Spark: source and sinks",
    "rows lost to retention under a paused reader are reported, held or skipped, as configured",
)
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
    with pytest.raises(GoneError, match="DATA_LOSS: rows 5 to 19 are no longer kept; the oldest is 20") as caught:
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


@pytest.mark.promise(
    "Spark: source and sinks",
    "rows lost to retention under a paused reader are reported, held or skipped, as configured",
)
def test_a_named_reader_holds_from_its_first_row(written: Written) -> None:
    reader = stream(written.data, reader="nightly", startingOffsets="earliest")
    disk = RealDisk(written.data / "journal")
    reader.initialOffset()
    assert [(one.name, one.offset) for one in named_readers.list_readers(disk)] == [("nightly", 0)]
    reader.commit(at(written, 12))
    assert [(one.name, one.offset) for one in named_readers.list_readers(disk)] == [("nightly", 12)]


@pytest.mark.promise("Spark: source and sinks", "a recreated journal fails a checkpoint and never restarts it")
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


@pytest.mark.promise("Spark: source and sinks", "a recreated journal fails a checkpoint and never restarts it")
def test_rows_that_a_crash_took_back_are_noticed(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data", sync="off")
    journal.add(10)
    journal.seal()
    journal.add(5)
    reader = stream(journal.data)
    seen = reader.latestOffset(at(journal, 0), ALL)
    assert seen == at(journal, 15)
    segment = sorted((journal.data / "journal").glob("log-*"))[-1]
    RealDisk(segment.parent).open(segment.name).truncate(segment.stat().st_size - 100)  # what the disk had kept
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
