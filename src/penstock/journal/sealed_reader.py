"""Read sealed history: which files hold which rows, and the rows of a range that pass a selection.

The list of files is cached until the table has a newer version. Rows of a file are dense, so the offset of a row gives its position. Row
groups whose statistics exclude the selection are not decoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.journal.columns import fitted
from penstock.journal.delta_log import newest_entry
from penstock.journal.lake_location import open_parquet
from penstock.journal.parquet_table import BATCH_BYTES, BATCH_ROWS, FILE_SCHEMA, DataFile, EventsTable
from penstock.journal.segments import SHARD
from penstock.journal.selection import ColumnRange, Selection

TIME_SLACK_US = 2_000
"""Times in the table's statistics are cut to milliseconds."""


class SealedView(msgspec.Struct, frozen=True):
    """The table at one version."""

    version: str
    files: list[DataFile]
    end: int
    """The offset behind the last sealed row."""


class Part(msgspec.Struct, frozen=True):
    """A step through a range: the rows of it that were read, if any, and the offset behind the step."""

    following: int
    batch: pa.RecordBatch | None = None


class SealedRows:
    """The sealed rows of one journal and shard. For one thread."""

    def __init__(self, bronze: EventsTable) -> None:
        self._bronze = bronze
        self._view: SealedView | None = None

    def view(self, journal: str) -> SealedView:
        """The table as it is now."""
        version = f"{journal}/{newest_entry(self._bronze.path)}"
        if self._view is None or self._view.version != version:
            # The files are listed first: what is sealed meanwhile is then not missed, only found again in a segment.
            files = [file for file in self._bronze.files() if file.journal == journal]
            self._view = SealedView(version, files, self._bronze.sealed_end(journal, SHARD))
        return self._view

    def forget(self) -> None:
        """Drop the cached list of files: a file was not found."""
        self._view = None

    def parts(
        self, view: SealedView, first: int, end: int, columns: Sequence[str], selection: Selection | None = None
    ) -> Iterator[Part]:
        """Rows `first` to `end - 1` in order, with these columns; with a selection, those that pass it."""
        expected = first
        for file in view.files:
            if file.last < first or file.first >= end:
                continue
            if file.first > expected:  # retention was quicker than the caller's look at what there is
                raise FileNotFoundError(f"rows {expected} to {file.first - 1} are not in the table")
            if file.rows != file.last + 1 - file.first:
                raise ValueError(f"`{file.path}` has {file.rows} rows for {file.first} to {file.last}")
            expected = file.last + 1
            with open_parquet(self._bronze.path / file.path) as data:
                yield from _of_file(data, file, first, min(end, expected), columns, selection)

    def around(self, view: SealedView, time_us: int) -> tuple[int | None, int | None]:
        """Bounds on the first row that is not before a time, as far as the files' statistics tell."""
        files = view.files
        low = bisect_left(files, time_us - TIME_SLACK_US, key=lambda file: file.last_at_us)
        high = bisect_left(files, time_us + TIME_SLACK_US, key=lambda file: file.last_at_us)
        least = files[low].first if low < len(files) else (files[-1].last + 1 if files else None)
        return least, files[high].last if high < len(files) else None


def _of_file(
    data: pq.ParquetFile, file: DataFile, first: int, end: int, columns: Sequence[str], selection: Selection | None
) -> Iterator[Part]:
    about = data.metadata
    wanted = [FILE_SCHEMA.field(name) for name in columns]
    deciding = selection.columns if selection is not None else []
    others = [FILE_SCHEMA.field(name) for name in deciding if name not in columns]
    present = set(data.schema_arrow.names)
    behind = file.first
    for index in range(about.num_row_groups):
        group = about.row_group(index)
        begin, behind = behind, behind + group.num_rows
        if behind <= first or begin >= end:
            continue
        ranges = partial(_range, group)
        if selection is not None and not selection.may_hold(ranges):
            yield Part(min(behind, end))
            continue
        judge = selection if selection is not None and not selection.must_pass(ranges) else None
        schema = pa.schema(wanted if judge is None else wanted + others)
        names = [name for name in schema.names if name in present] or ["offset"]
        # Fewer of large rows at a time: a reader should not need more memory because bodies are long.
        fitting = BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
        rows = max(1, min(BATCH_ROWS, fitting))
        for read in data.iter_batches(rows, row_groups=[index], columns=names):
            offset, begin = begin, begin + read.num_rows
            low, high = max(first, offset), min(end, begin)
            if low < high:
                batch = fitted(read.slice(low - offset, high - low), schema)
                yield Part(high, batch if judge is None else judge.passed(batch).select(list(columns)))
            if begin >= end:
                return


def _range(group: pq.RowGroupMetaData, name: str) -> ColumnRange | None:
    """What a row group's statistics say of a column of text."""
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == name:
            found = column.statistics
            if found is None or not found.has_min_max or not found.has_null_count:
                return None
            return ColumnRange(found.min, found.max, found.null_count > 0)
    return None
