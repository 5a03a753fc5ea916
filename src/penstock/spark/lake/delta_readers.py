"""The readers of `penstock_delta`: one version of a table, the changes of some versions, and the changes as a stream.

The driver reads the table's log and gives tasks the names of files; tasks read Parquet. The offset of a stream in Spark's checkpoint is
the table's id and the next version, so a restart reads the same changes again. A batch is a range of whole versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from penstock.journal.delta_log import SWEEP_AGE_S, newest_entry
from penstock.spark.lake import data_files, pushdown
from penstock.spark.lake.commits import COMMIT_VERSION, ChangeFeed
from penstock.spark.lake.data_files import LiveFile
from penstock.spark.lake.table_reader import LakeError, TableReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PARTITION_BYTES = 32 * 1024 * 1024
"""Bytes of small files that one task reads."""
VERSIONS_MAX = 100
"""Versions in one batch of a stream, if the option `maxVersionsPerTrigger` does not say."""
SNAPSHOT, LATEST = -1, -2
"""Offsets of a stream that begins with all rows, or with the next change. Spark asks for them again after a restart: the end of the
first batch fixes the version."""


@dataclass
class FilesPartition(InputPartition):
    """Files that one task reads."""

    files: list[LiveFile]


def in_partitions(files: Iterable[LiveFile]) -> list[InputPartition]:
    """Files for tasks: small ones share a task."""
    parts: list[FilesPartition] = []
    size = PARTITION_BYTES
    for file in sorted(files, key=lambda file: file.path):
        if size + file.size > PARTITION_BYTES:
            parts.append(FilesPartition([]))
            size = 0
        parts[-1].files.append(file)
        size += file.size
    return [*parts] or [FilesPartition([])]


def rows_of(table: TableReader, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; runs in executors."""
    assert isinstance(partition, FilesPartition)
    for file in partition.files:
        try:
            for batch in data_files.batches(table.path, file, schema):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        except FileNotFoundError as error:
            if COMMIT_VERSION in file.partition:
                feed = ChangeFeed(table, has_updates=True)
                raise feed.unreadable(file.partition[COMMIT_VERSION], "its files are removed") from error
            raise LakeError(
                f"`{file.path}` of table `{table.name}` is gone: this query is older than {SWEEP_AGE_S // 60} minutes"
                " and the table has changed since",
                "run it again; create a view of `USING` again",
            ) from error


class DeltaReader(DataSourceReader):
    """Reads one version of a table, or the changes of some versions."""

    def __init__(
        self,
        table: TableReader,
        version: int | range | None,
        schema: StructType,
        bounds: pushdown.Bounds | None = None,
    ) -> None:
        self._bounds = bounds or {}
        self._table = table
        self._version = version
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        if isinstance(self._version, range):
            return in_partitions(ChangeFeed(self._table, has_updates=True).files(self._version))
        return in_partitions(self._table.files(self._bounds, self._version))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(self._table, partition, self._schema)


class FilteredDeltaReader(DeltaReader):
    """Skips files that the filters of the query exclude. A class of its own: Spark refuses `pushFilters` where its setting is false."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the bounds of the filters; Spark evaluates all of them."""
        self._bounds = pushdown.bounds_of(filters, self._schema)
        return filters


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of a table as a stream."""

    def __init__(self, feed: ChangeFeed, start: int, versions_max: int, schema: StructType) -> None:
        self._feed = feed
        self._start = start
        self._versions_max = versions_max
        self._frozen: int | None = None
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"table": self._id(), "version": self._start}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the newest version: later ones are not read."""
        self._frozen = newest_version(self._feed.table)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The version after those of the next batch. Only lists the log: Spark asks often."""
        first = start["version"]
        end = (newest_version(self._feed.table) if self._frozen is None else self._frozen) + 1
        return start | {"version": end if first < 0 else max(first, min(end, first + self._versions_max))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, stop = start["version"], end["version"]
        if end["table"] != self._id():
            raise LakeError(f"table `{self._feed.table.name}` was created anew", "start with a new checkpoint")
        if first == SNAPSHOT:
            return in_partitions(self._feed.snapshot(stop - 1))
        return in_partitions(self._feed.files(range(stop if first == LATEST else first, stop)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(self._feed.table, partition, self._schema)

    def _id(self) -> str:
        table = self._feed.table.delta()
        return "" if table is None else str(table.metadata().id)


def newest_version(table: TableReader) -> int:
    """The newest version of a table, without reading it."""
    return int(newest_entry(table.path).partition(".")[0] or -1)
