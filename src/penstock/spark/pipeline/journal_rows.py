"""Rows of a journal: read by tasks, read by the driver if they are few, and the latest ones from a cache."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake_tables.minutes import MINUTE_US, floor_minute, reach_us
from penstock.spark.pipeline.journal_group import JournalGroup, Positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.location import JournalLocation, SourceJournal

SMALL_ROWS = 20_000
SMALL_BYTES = 32 * 1024 * 1024
"""A batch up to this size is read and processed by the driver, in one partition: tasks would take longer to start than to work."""
RECENT_ROWS = 100_000
"""Journal rows, without bodies, that the driver caches."""
TASK_ROWS = 250_000
"""Journal rows that one task reads."""
PIECE_BYTES = 2 * 1024 * 1024
"""Bytes that a task passes to Spark at a time: the JVM allocates each piece whole, and keeps the memory of the largest."""
MEASURED = [name for name in FILE_SCHEMA.names if name != "body"]
"""Columns without the body, for counts and times."""


def in_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch as batches of about `PIECE_BYTES`, without a copy."""
    rows = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def release_memory() -> None:
    """Give memory that is not used back to the system: Spark keeps Python workers, and allocators keep what they once had."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # only glibc has it
    if trim is not None:
        trim(0)


def journal_frame(
    spark: SparkSession, location: JournalLocation, first: int, end: int, columns: list[str] | None = None
) -> DataFrame:
    """Rows `first` to `end - 1` as a DataFrame, read by the tasks."""
    from pyspark.sql.pandas.types import from_arrow_schema

    count = max(1, -(-(end - first) // TASK_ROWS))
    step = -(-(end - first) // count)
    names = columns or FILE_SCHEMA.names
    schema = pa.schema([FILE_SCHEMA.field(name) for name in names])

    known = location.open().id

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from penstock.spark.source.partitions import check_present

        for batch in batches:
            for number in batch.column(0).to_pylist():
                start = first + number * step
                stop = min(start + step, end)
                journal = location.open()
                check_present(journal, known, stop)
                for found in journal.batches(start, stop, names):
                    yield from in_pieces(found)
        release_memory()

    rows = spark.range(0, count, 1, count).mapInArrow(read, from_arrow_schema(schema))
    return rows.coalesce(1) if count == 1 else rows  # one partition: Spark plans no shuffle


class RecentRows:
    """A cache of the latest journal rows without bodies, so that a batch need not read the whole minutes that it touches again."""

    def __init__(self, journal: SourceJournal) -> None:
        self._journal = journal
        self._id = journal.id
        self._first = 0
        self._rows: pa.Table | None = None
        self._lock = threading.Lock()

    def rows(self, first: int, end: int) -> pa.Table | None:
        """Rows `first` to `end - 1`; None if they are too many to cache."""
        with self._lock:
            if end - first > RECENT_ROWS:
                self._rows = None
                return None
            held = self._rows
            if held is None or not self._first <= first <= self._first + held.num_rows:
                held = self._read(first, end)
            else:
                kept = held.slice(first - self._first)
                held = pa.concat_tables([kept, self._read(first + kept.num_rows, end)])
            # Combine the chunks: there would be thousands after a while.
            self._rows, self._first = held.combine_chunks(), first
            return self._rows.slice(0, end - first)

    def _read(self, first: int, end: int) -> pa.Table:
        from penstock.spark.source.partitions import check_present

        schema = pa.schema([FILE_SCHEMA.field(name) for name in MEASURED])
        check_present(self._journal, self._id, end)
        return pa.Table.from_batches(self._journal.batches(first, end, MEASURED), schema)


@dataclass(frozen=True)
class JournalRange:
    """Rows `first` to `end - 1` of one journal."""

    journal: SourceJournal
    first: int
    end: int
    until_us: int
    """Time of the last row."""
    has_gauges: bool = True
    """Whether a row of it may count for an earlier minute."""

    @cached_property
    def reach(self) -> tuple[int, int]:
        """The first row, and the time, of the minutes that this range may change."""
        oldest = self.journal.bounds().first
        if self.first <= oldest:
            return self.first, self.journal.time_of(self.first)
        reach = reach_us(self.journal.time_of(self.first - 1))
        if not self.has_gauges and reach == reach_us(self.until_us):  # it makes no minute final either
            reach = floor_minute(self.journal.time_of(self.first))
        first = min(self.first, self.journal.offset_at(reach))
        if first == oldest and oldest > 0:
            # Retention removed the beginning of that minute. Its stored row was counted from all rows, so keep it and begin with the next.
            return first, (self.journal.time_of(oldest) // MINUTE_US + 1) * MINUTE_US
        return first, reach

    def window(self, size_us: int) -> tuple[int, int]:
        """The first row, and the time, of the windows that this range touches.

        Without windows whose beginning retention has removed: their stored rows were computed from more rows than there are now.
        """
        oldest = self.journal.bounds().first
        since_us = self.journal.time_of(self.first) // size_us * size_us
        if oldest > 0:
            since_us = max(since_us, (self.journal.time_of(oldest) // size_us + 1) * size_us)
        return min(self.first, self.journal.offset_at(since_us)), since_us

    @property
    def minutes_since_us(self) -> int:
        """The first minute that this range touches or may close."""
        return floor_minute(self.reach[1])


def ranges_between(group: JournalGroup, firsts: Positions, ends: Positions) -> dict[str, JournalRange]:
    """The rows between two positions, of the journals that have any."""
    return {
        one: JournalRange(journal, firsts[one], ends[one], journal.time_of(ends[one] - 1))
        for one, journal in group.journals.items()
        if firsts[one] < ends.get(one, 0)
    }


def read_few(ranges: Mapping[str, JournalRange]) -> dict[str, pa.Table] | None:
    """The rows of a small batch, by journal; None if they are too many or too large to hold."""
    from penstock.spark.source.partitions import check_present

    if sum(part.end - part.first for part in ranges.values()) > SMALL_ROWS:
        return None
    held, size = {}, 0
    for one, part in ranges.items():
        check_present(part.journal, one, part.end)
        found = []
        for rows in part.journal.batches(part.first, part.end, FILE_SCHEMA.names):
            found.append(rows)
            size += rows.nbytes
            if size > SMALL_BYTES:
                return None
        held[one] = pa.Table.from_batches(found, FILE_SCHEMA).combine_chunks()
    return held
