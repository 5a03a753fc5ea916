"""Rows of a journal: the cache of recent ones, and the minutes that a range of them may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.spark import location
from penstock.spark.errors import DataLossError
from penstock.spark.lake_tables.minutes import MINUTE_US, reach_us
from penstock.spark.pipeline.journal_rows import (
    MEASURED,
    PIECE_BYTES,
    JournalRange,
    RecentRows,
    in_pieces,
    release_memory,
)
from tests.spark.journals import SECOND_US, Written, offsets_of


@pytest.fixture
def recent(tmp_path: Path) -> tuple[Written, RecentRows]:
    """A journal of 30 rows in three sealed files, and a cache of its rows."""
    journal = Written(tmp_path / "data", sync="off")
    for _ in range(3):
        journal.add(10)
        journal.seal()
    return journal, RecentRows(location.open_one(journal.data))


def rows_of(recent: RecentRows, first: int, end: int) -> list[int]:
    found = recent.rows(first, end)
    assert isinstance(found, pa.Table) and found.schema.names == MEASURED
    return offsets_of(found)


def test_recent_rows_are_read_once(recent: tuple[Written, RecentRows]) -> None:
    journal, cache = recent
    assert rows_of(cache, 0, 10) == list(range(10))
    journal.thin(1)
    assert rows_of(cache, 5, 25) == list(range(5, 25)), "those that are gone from the journal come from the cache"
    assert rows_of(cache, 7, 9) == [7, 8]


@pytest.mark.parametrize(("first", "end"), [(0, 5), (12, 15), (25, 30)])
def test_rows_that_do_not_continue_the_cache_are_read_anew(
    recent: tuple[Written, RecentRows], first: int, end: int
) -> None:
    _, cache = recent
    rows_of(cache, 10, 12)
    assert rows_of(cache, first, end) == list(range(first, end))


def test_too_many_rows_are_not_cached(recent: tuple[Written, RecentRows], monkeypatch: pytest.MonkeyPatch) -> None:
    journal, cache = recent
    rows_of(cache, 0, 10)
    monkeypatch.setattr("penstock.spark.pipeline.journal_rows.RECENT_ROWS", 20)
    assert cache.rows(0, 21) is None
    journal.thin(1)
    assert rows_of(cache, 10, 30) == list(range(10, 30)), "the limit itself is cached"
    with pytest.raises(DataLossError):
        cache.rows(25, 31)


def range_of(journal: Written, first: int) -> JournalRange:
    source = location.open_one(journal.data)
    return JournalRange(source, first, journal.end, source.time_of(journal.end - 1))


def test_a_batch_recounts_every_minute_that_it_may_change(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data", sync="off")
    journal.add(200)  # one row a second
    source = location.open_one(journal.data)
    part = range_of(journal, 190)
    reach = reach_us(source.time_of(189))
    assert part.reach == (source.offset_at(reach), reach)
    assert part.minutes_since_us == reach and reach % MINUTE_US == 0
    assert source.time_of(189) - reach > MINUTE_US, "the minute before may still be open"
    assert range_of(journal, 0).minutes_since_us == source.time_of(0) // MINUTE_US * MINUTE_US
    within = replace(part, end=195, until_us=source.time_of(194), has_gauges=False)
    assert reach_us(within.until_us) == reach, "it makes no minute final"
    assert within.minutes_since_us == source.time_of(190) // MINUTE_US * MINUTE_US > reach


def test_a_minute_without_its_first_rows_is_not_recounted(tmp_path: Path) -> None:
    journal = Written(tmp_path / "data", sync="off")
    journal.add(110)
    journal.seal()
    journal.add(30)
    journal.seal()
    journal.thin(1)
    source = location.open_one(journal.data)
    assert source.bounds().first == 110
    oldest_us = source.time_of(110)
    assert oldest_us % MINUTE_US >= SECOND_US, "it begins within a minute"
    assert range_of(journal, 120).minutes_since_us == (oldest_us // MINUTE_US + 1) * MINUTE_US


def test_tasks_pass_rows_in_pieces_of_bounded_size() -> None:
    sizes = [100, 3_000_000, 5, 700_000, 700_000, 700_000]
    batch = pa.RecordBatch.from_pydict({"n": list(range(6)), "body": [b"x" * size for size in sizes]})
    pieces = list(in_pieces(batch))
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))
    assert len(pieces) > 1 and all(one.nbytes <= PIECE_BYTES or one.num_rows <= 2 for one in pieces)
    assert list(in_pieces(batch.slice(0, 0))) == []
    release_memory()  # whatever the allocators of this machine are
    assert pa.default_memory_pool().bytes_allocated() >= batch.nbytes
