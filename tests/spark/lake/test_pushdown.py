"""Filters of a query as bounds, and what the readers of both formats open with them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.journal.selection import Selection
from penstock.spark.errors import HintedError
from penstock.spark.lake.delta_format import PenstockDelta
from penstock.spark.lake.delta_readers import DeltaReader, FilteredDeltaReader
from penstock.spark.lake.pushdown import bounds_of, names_of
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.source.datasource import FilteredJournalReader, PenstockSource
from tests.journal.histories import START_US
from tests.spark.journals import Written, offsets_of, table
from tests.spark.lakes import APP, NOTES, START, notes, offsets

COLUMNS = pa.schema({"n": pa.int64(), "at": pa.timestamp("us", "UTC"), "day": pa.date32(), "name": pa.string()})
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([GreaterThan(("n",), 3), LessThanOrEqual(("n",), 9), IsNotNull(("n",))], {"n": (3, 9)}),
        ([GreaterThanOrEqual(("n",), 3), EqualTo(("n",), 5)], {"n": (5, 5)}),
        ([In(("name",), ["b", None, "a"])], {"name": ("a", "b")}),
        (
            [LessThan(("at",), NOON), EqualTo(("day",), NOON.date())],
            {"at": (None, NOON), "day": (date(2026, 3, 1),) * 2},
        ),
        ([EqualTo(("at",), NOON.replace(tzinfo=None)), EqualTo(("n",), 1.5), EqualTo(("other",), 1)], {}),
        ([Not(EqualTo(("n",), 3)), EqualTo(("n", "inner"), 3)], {}),
    ],
)
def test_bounds_contain_every_row_that_passes(filters: list[Filter], bounds: dict[str, Any]) -> None:
    assert bounds_of(filters, COLUMNS) == bounds


def test_names_are_those_that_a_selection_takes() -> None:
    assert names_of([EqualTo(("event",), "ack"), EqualTo(("door",), "mew")], "door") == ("mew",)
    assert names_of([In(("channel",), ["a", None, "b"])], "channel") == ("a", "b")
    assert names_of([StringStartsWith(("channel",), "agents/")], "channel") == ("agents/*",)
    assert names_of([EqualTo(("channel",), "a*"), Not(EqualTo(("channel",), "x"))], "channel") == ()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data files that are opened."""
    names: list[str] = []
    real = pq.ParquetFile

    def counting(source: Any, *more: Any, **options: Any) -> Any:
        names.append(str(source))
        return real(source, *more, **options)

    monkeypatch.setattr(pq, "ParquetFile", counting)
    return names


@pytest.mark.promise("Spark: source and sinks", "with `pushdown`, a batch read opens only what its filters leave")
def test_a_batch_read_of_a_journal_opens_only_what_its_filters_leave(written: Written, opened: list[str]) -> None:
    """Ten rows in each of two sealed files and ten hot ones, one a second."""

    def read(*filters: Filter, **options: str) -> list[int]:
        opened.clear()
        source = PenstockSource({"path": str(written.data), "pushdown": "true", **options})
        reader = source.reader(source.schema())
        assert isinstance(reader, FilteredJournalReader)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return offsets_of(table(reader, reader.partitions()))

    assert (read(), len(opened)) == (list(range(30)), 2)
    assert (read(GreaterThanOrEqual(("offset",), 25)), opened) == (list(range(25, 30)), [])
    assert (read(LessThan(("offset",), 3)), len(opened)) == (list(range(4)), 1)
    since = datetime.fromtimestamp(START_US / 1e6, UTC)
    middle = since + timedelta(seconds=12), since + timedelta(seconds=14)
    found = read(GreaterThanOrEqual(("recorded_at",), middle[0]), LessThanOrEqual(("recorded_at",), middle[1]))
    assert (found, len(set(opened))) == ([12, 13, 14], 1)
    assert read(EqualTo(("offset",), 99)) == [] == read(EqualTo(("offset",), 99), endingOffsets="latest")
    assert read(EqualTo(("channel",), "elsewhere")) == read(EqualTo(("door",), "mew")) == []
    assert read(EqualTo(("event",), "ack"), event="enqueue") == list(range(30))  # the option remains; Spark filters


def test_filters_of_names_select_rows_before_they_are_decoded(written: Written) -> None:
    source = PenstockSource({"path": str(written.data), "pushdown": "true"})
    reader = source.reader(source.schema())
    assert isinstance(reader, FilteredJournalReader)
    reader.pushFilters(
        [In(("event",), ["ack", "nack"]), StringStartsWith(("channel",), "jobs"), EqualTo(("door",), "mew")]
    )
    assert reader._selection == Selection(("mew",), ("jobs*",), ("ack", "nack"))


@pytest.mark.promise("Spark: source and sinks", "with `pushdown`, a batch read opens only what its filters leave")
def test_a_batch_read_of_a_table_opens_only_what_its_filters_leave(tmp_path: Path, opened: list[str]) -> None:
    day = 86_400
    stored = LakeTable(tmp_path, NOTES)
    for first in (0, 10, day, day + 10):
        stored.append(notes(first, first + 10), {APP: Progress(first, first + 10)})

    def read(*filters: Filter) -> list[int]:
        opened.clear()
        source = PenstockDelta(CaseInsensitiveDict({"path": str(stored.path), "pushdown": "true"}))
        reader = source.reader(source.schema())
        assert isinstance(reader, FilteredDeltaReader)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return offsets(pa.Table.from_batches(batches, NOTES.schema)) if batches else []

    assert (len(read()), len(opened)) == (40, 4)
    assert (len(read(EqualTo(("date",), START.date()))), len(opened)) == (20, 2)
    assert (read(GreaterThan(("offset",), day + 15)), len(opened)) == (list(range(day + 10, day + 20)), 1)
    assert (read(EqualTo(("recorded_at",), START + timedelta(seconds=3))), len(opened)) == (list(range(10)), 1)
    assert (read(In(("offset",), [-5, -3])), opened) == ([], [])


def test_without_the_option_the_readers_have_no_pushdown(tmp_path: Path) -> None:
    """Spark refuses a reader with `pushFilters` in a session whose setting is false, and may reuse a filtered plan."""
    LakeTable(tmp_path, NOTES).append(notes(0, 3), {APP: Progress(0, 3)})
    path = str(tmp_path / NOTES.name)
    plain = PenstockDelta(CaseInsensitiveDict({"path": path}))
    assert type(plain.reader(plain.schema())) is DeltaReader
    wrong = PenstockDelta(CaseInsensitiveDict({"path": path, "pushdown": "yes"}))
    with pytest.raises(HintedError, match="`pushdown` is `yes`; it is one of true, false"):
        wrong.reader(wrong.schema())
