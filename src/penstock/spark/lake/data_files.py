"""The Parquet files of a table: written with the statistics by which readers skip them, and read back as table rows.

A file gets its name when it is durable. It belongs to the table once a commit references it; a file that no commit references is
removed later. This code runs in tasks: it knows no Spark and commits nothing.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, reduce
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction, RemoveAction

from penstock.journal.columns import fitted
from penstock.journal.lake_location import LakePath, NewFile, open_parquet
from penstock.spark.errors import HintedError

FILE_ROWS_MAX = 1_000_000
"""A file with this many rows is closed, and the next one begins."""
MERGE_FILE_ROWS_MAX = 35_000
"""The same for tables whose rows are replaced: a replaced row costs the rewrite of its file. Their filters fill a power of two."""
OPEN_FILES_MAX = 64
"""Files that one task has open, one a partition; when full: close the largest."""
ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Rows wait in memory until they fill a row group: of this many rows, or bytes."""
FALSE_HITS = 1e-5
MERGE_FALSE_HITS = 1e-7
"""Share of the keys that a filter takes for stored ones; a batch asks it for each of its keys. Lower where there are more files: the
cost of reading one in vain would grow with the table."""
TEXT_STATISTIC_MAX = 128
"""Characters of a minimum or maximum text; longer ones are rounded outwards."""
_LAST_CHARACTER = "\U0010ffff"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class SchemaError(HintedError, ValueError):
    """Rows do not fit their table; the message names the column and what to do."""

    code = "SchemaChanged"


@dataclass(frozen=True)
class Layout:
    """The columns, partitioning and statistics of a table's files."""

    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    """Columns with a minimum and a maximum for each file, as the table's configuration lists them."""
    filters: tuple[str, ...] = ()
    """Columns with a Bloom filter."""
    file_rows: int = FILE_ROWS_MAX
    false_hits: float = FALSE_HITS


@dataclass(frozen=True)
class StagedFile:
    """A written file that no commit references yet; tasks send this description to the driver."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    partition: tuple[tuple[str, str | None], ...]
    statistics: str
    modified_ms: int

    def named(self) -> dict[str, Any]:
        """The fields of a log's action that names it."""
        return {"path": self.path, "size": self.size, "partitionValues": dict(self.partition)}

    def added(self) -> dict[str, Any]:
        """The action of an entry that is not written by delta-rs."""
        return {**self.named(), "modificationTime": self.modified_ms, "dataChange": True, "stats": self.statistics}

    def action(self, *, is_change: bool = True) -> AddAction:
        return AddAction(self.path, self.size, dict(self.partition), self.modified_ms, is_change, self.statistics)


@dataclass(frozen=True)
class LiveFile:
    """A file of the table, as the log describes it."""

    logged: str
    """The path as the log spells it, percent-encoded."""
    size: int
    rows: int
    partition: dict[str, Any]
    least: dict[str, Any]
    greatest: dict[str, Any]
    nulls: dict[str, int | None]

    @cached_property
    def path(self) -> str:
        """Relative to the table, as on disk."""
        return unquote(self.logged)

    def staged(self, modified_ms: int) -> StagedFile:
        """The same file, staged for another table."""
        nulls = {name: count for name, count in self.nulls.items() if count is not None}
        statistics = _statistics(self.rows, self.least, self.greatest, nulls)
        return StagedFile(self.path, self.size, self.rows, tuple(self._texts().items()), statistics, modified_ms)

    def removal(self, now_ms: int, *, is_change: bool = True) -> RemoveAction:
        return RemoveAction(self.path, is_change, now_ms, self.size, self._texts())

    def removed(self, now_ms: int) -> dict[str, Any]:
        """The action of an entry that is not written by delta-rs."""
        facts = {"extendedFileMetadata": True, "partitionValues": self._texts(), "size": self.size}
        return {"path": self.logged, "dataChange": True, "deletionTimestamp": now_ms, **facts}

    def _texts(self) -> dict[str, str | None]:
        return {name: partition_text(value) for name, value in self.partition.items()}

    def may_hold(self, column: str, least: Any, greatest: Any) -> bool:
        """Whether it may contain a row with a value between two others, either of which may be None."""
        if column in self.partition:
            low = high = self.partition[column]
            if low is None:
                return False
        else:
            low, high = self.least.get(column), self.greatest.get(column)
            if low is None or high is None:
                return True
        if isinstance(high, datetime) and column not in self.partition:  # other writers truncate times to milliseconds
            high += timedelta(milliseconds=1)
        return bool((greatest is None or low <= greatest) and (least is None or high >= least))


def fit(rows: pa.Table, schema: pa.Schema, required: Sequence[str], name: str) -> pa.Table:
    """Rows with exactly the columns of a table: missing ones are null; unknown or retyped ones are refused."""
    unknown = [column for column in rows.column_names if column not in schema.names]
    if unknown:
        raise SchemaError(f"table `{name}` has no column `{unknown[0]}`", "leave it out, or add it to the table first")
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            if field.name in required:
                raise SchemaError(f"column `{field.name}` of table `{name}` is missing", "every row needs it")
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
            continue
        column = rows.column(field.name)
        if field.name in required and column.null_count:
            raise SchemaError(f"column `{field.name}` of table `{name}` is null in a row", "every row needs a value")
        if column.type != field.type:
            if not is_same_kind(column.type, field.type):
                raise SchemaError(
                    f"column `{field.name}` of table `{name}` is {field.type}, and the rows have {column.type}",
                    "cast it, columns are never retyped",
                )
            column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def is_same_kind(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether one type converts to another without loss: the same, another encoding, or a narrower one."""
    kinds = pa.types
    if have == want or kinds.is_null(have):
        return True
    if kinds.is_dictionary(have):
        return is_same_kind(have.value_type, want)
    if any(is_one(have) and is_one(want) for is_one in (_is_text, _is_bytes)):
        return True
    if kinds.is_timestamp(have) and kinds.is_timestamp(want):
        return (have.tz is None) == (want.tz is None) and have.unit != "ns"
    if any(is_one(have) and is_one(want) for is_one in (kinds.is_signed_integer, kinds.is_floating)):
        return bool(have.bit_width <= want.bit_width)
    if kinds.is_map(have) and kinds.is_map(want):
        return is_same_kind(have.key_type, want.key_type) and is_same_kind(have.item_type, want.item_type)
    if _is_list(have) and _is_list(want):
        return is_same_kind(have.value_type, want.value_type)
    if kinds.is_struct(have) and kinds.is_struct(want):
        return [field.name for field in have] == [field.name for field in want] and all(
            is_same_kind(mine.type, theirs.type) for mine, theirs in zip(have, want, strict=True)
        )
    return False


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


class _Writer:
    """One file while it is written."""

    def __init__(self, root: LakePath, layout: Layout, partition: tuple[tuple[str, str | None], ...]) -> None:
        self._layout, self._partition = layout, partition
        folder = "/".join(f"{name}={_folder(value)}" for name, value in partition)
        self._name = f"{folder}/part-{uuid.uuid4().hex}.parquet".lstrip("/")
        self._file = NewFile(root / self._name)
        # Partition values are only in the log and the directory's name.
        self._inside = pa.schema([field for field in layout.schema if field.name not in layout.partition_by])
        self._parquet: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = self.rows = 0
        self._nulls = dict.fromkeys(layout.statistics, 0)
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}

    def write(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self.rows += rows.num_rows
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()
        for name in self._layout.statistics:
            column = rows.column(name)
            self._nulls[name] += column.null_count
            found = pc.min_max(column)
            least, greatest = found["min"].as_py(), found["max"].as_py()
            if least is not None:
                self._least[name] = min(self._least.get(name, least), least)
                self._greatest[name] = max(self._greatest.get(name, greatest), greatest)

    def _flush(self) -> pq.ParquetWriter:
        rows = pa.concat_tables(self._waiting) if self._waiting else self._inside.empty_table()
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        if self._parquet is None:  # the first row group is the largest: its rows are the keys of a filter
            size = {"ndv": max(rows.num_rows, 1), "fpp": self._layout.false_hits}
            filters = dict.fromkeys(self._layout.filters, size) or None
            self._parquet = pq.ParquetWriter(
                self._file.sink, self._inside, compression="zstd", bloom_filter_options=filters
            )
        self._parquet.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        return self._parquet

    def close(self) -> StagedFile:
        self._flush().close()
        size, modified_ms = self._file.finish()
        statistics = _statistics(self.rows, self._least, self._greatest, self._nulls)
        return StagedFile(self._name, size, self.rows, self._partition, statistics, modified_ms)

    def abandon(self) -> None:
        if self._parquet is not None:
            self._parquet.close()
        self._file.abandon()


def write(root: LakePath, layout: Layout, tables: Iterable[pa.Table]) -> list[StagedFile]:
    """Write rows as files, at least one for each partition. The rows must have the layout's schema."""
    writers: dict[tuple[tuple[str, str | None], ...], _Writer] = {}
    done: list[StagedFile] = []
    try:
        for table in tables:
            for partition, rows in _split(table, layout.partition_by):
                step = min(ROW_GROUP_ROWS, layout.file_rows)
                for start in range(0, rows.num_rows, step):
                    if partition not in writers and len(writers) >= OPEN_FILES_MAX:
                        fullest = max(writers, key=lambda one: writers[one].rows)
                        done.append(writers.pop(fullest).close())
                    writer = writers.get(partition) or _Writer(root, layout, partition)
                    writers[partition] = writer
                    writer.write(rows.slice(start, step))
                    if writer.rows >= layout.file_rows:
                        done.append(writers.pop(partition).close())
        while writers:
            done.append(writers.pop(next(iter(writers))).close())
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        for file in done:
            (root / file.path).unlink(missing_ok=True)
        raise
    return done


def _split(table: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[tuple[tuple[str, str | None], ...], pa.Table]]:
    """Split rows by their partition values, and drop the partition columns."""
    if table.num_rows == 0:
        return
    if not by:
        yield (), table
        return
    groups = table.select(list(by)).group_by(list(by)).aggregate([]).to_pylist()
    inside = table.drop_columns(list(by))
    for group in groups:
        rows = inside
        if len(groups) > 1:
            hits = [
                pc.is_null(table.column(name))
                if value is None
                else pc.fill_null(pc.equal(table.column(name), value), False)
                for name, value in group.items()
            ]
            rows = inside.filter(reduce(pc.and_, hits))
        yield tuple((name, partition_text(group[name])) for name in by), rows


def read(root: LakePath, file: LiveFile, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a file with the table's columns: those added later are null, partition values are repeated."""
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    return pa.Table.from_batches(batches(root, file, wanted), wanted)


def batches(
    root: LakePath, file: LiveFile, schema: pa.Schema, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The same as a stream of batches; of all row groups, or only these."""
    with open_parquet(root / file.path) as parquet:
        inside = [name for name in schema.names if name in parquet.schema_arrow.names and name not in file.partition]
        for batch in parquet.iter_batches(ROW_GROUP_ROWS, row_groups=groups, columns=inside):
            yield fitted(batch, schema, file.partition)


def partition_text(value: Any) -> str | None:
    """Format a partition value as in Delta's log."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def partition_fits(kind: pa.DataType) -> bool:
    """Whether a column may be a partition column: its values must be readable in a path."""
    return bool(_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_boolean(kind))


def has_bounds(kind: pa.DataType) -> bool:
    """Whether a minimum and a maximum of a column help to skip files."""
    kinds = pa.types
    return bool(
        _is_text(kind) or kinds.is_integer(kind) or kinds.is_date32(kind) or (kinds.is_timestamp(kind) and kind.tz)
    )


def _folder(value: str | None) -> str:
    return _NO_VALUE if value is None else _UNSAFE.sub("_", value)[:TEXT_STATISTIC_MAX] or "_"


def _statistics(rows: int, least: dict[str, Any], greatest: dict[str, Any], nulls: dict[str, int]) -> str:
    """Format the statistics of a file as in Delta's log."""
    statistics = {
        "numRecords": rows,
        "minValues": {name: _floor(value) for name, value in least.items() if value is not None},
        "maxValues": {name: _ceiling(value) for name, value in greatest.items() if value is not None},
        "nullCount": nulls,
    }
    return msgspec.json.encode(statistics).decode()


def _floor(value: Any) -> Any:
    """A minimum as in Delta's statistics, never rounded up."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return value[:TEXT_STATISTIC_MAX] if isinstance(value, str) else value


def _ceiling(value: Any) -> Any:
    """A maximum as in Delta's statistics, never rounded down."""
    if isinstance(value, datetime):
        return _floor(value + timedelta(microseconds=-value.microsecond % 1000))
    if isinstance(value, str) and len(value) > TEXT_STATISTIC_MAX:
        return value[:TEXT_STATISTIC_MAX] + _LAST_CHARACTER
    return _floor(value)
