"""Sealed history: the Delta table `events`, whose data files are the journal itself from then on.

One Parquet file per sealed range and date, committed with the transaction (`<journal>/<shard>`, end offset), so publishing the
same range again is noticed and changes nothing. Anything that reads Delta or Parquet reads it without us.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from penstock.journal.columns import SCHEMA

TABLE = "events"
ROW_GROUP_ROWS = 256 * 1024
BATCH_ROWS = 64 * 1024
BATCH_BYTES = 32 * 1024 * 1024
"""Rows handed out at a time, and about how many bytes of them."""
_TIME = pa.timestamp("us", tz="UTC")

FILE_SCHEMA = pa.schema(
    [
        pa.field("journal", pa.string()),
        pa.field("shard", pa.int32()),
        pa.field("epoch", pa.int32()),
        *[field.with_nullable(True) for field in SCHEMA],
    ]
)
"""A row as everybody outside sees it."""
TABLE_SCHEMA = FILE_SCHEMA.append(pa.field("date", pa.date32()))

_NO_STATISTICS = ("body", "meta")
"""Columns whose least and greatest value help nobody and take room."""


class DataFile(msgspec.Struct, frozen=True):
    """A sealed range of rows."""

    path: str
    """Relative to the table."""
    first: int
    last: int
    rows: int
    size: int
    last_at_us: int


def with_identity(batch: pa.RecordBatch, journal: str, shard: int, epoch: int) -> pa.RecordBatch:
    """A batch of a segment with the columns that the segment's header holds."""
    count = batch.num_rows
    constant = [
        pa.repeat(pa.scalar(journal), count),
        pa.repeat(pa.scalar(shard, pa.int32()), count),
        pa.repeat(pa.scalar(epoch, pa.int32()), count),
    ]
    present = {name: index for index, name in enumerate(batch.schema.names)}
    rest = [
        batch.column(present[field.name]) if field.name in present else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(constant + rest, schema=FILE_SCHEMA)


class Bronze:
    """The table of sealed history under a lake directory."""

    def __init__(self, lake: Path) -> None:
        self.path = lake / TABLE

    def table(self) -> DeltaTable | None:
        """The table as it is now, or None before the first seal."""
        return DeltaTable(str(self.path)) if DeltaTable.is_deltatable(str(self.path)) else None

    def sealed_end(self, journal: str, shard: int) -> int:
        """The offset behind the last sealed row."""
        table = self.table()
        version = table.transaction_version(f"{journal}/{shard}") if table is not None else None
        return 0 if version is None else version

    def publish(self, rows: pa.Table, journal: str, shard: int, end: int) -> bool:
        """Make rows part of the table, unless they are already. The last of them is before `end`."""
        if rows.num_rows == 0 or self.sealed_end(journal, shard) >= end:
            return False
        # The files are written by libraries that know no secrets, so the directory around them is closed.
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.mkdir(exist_ok=True)
        table = self.table()
        if table is None:
            table = DeltaTable.create(
                str(self.path),
                TABLE_SCHEMA,
                partition_by=["date"],
                name=TABLE,
                description="Every event that Penstock journaled, in order.",
                configuration={
                    "delta.logRetentionDuration": "interval 1 days",
                    # Without this, readers take the columns that have no statistics for empty and skip every file.
                    "delta.dataSkippingStatsColumns": "offset,recorded_at",
                },
            )
        added: list[AddAction | RemoveAction] = [self._write(part, date) for date, part in _by_date(rows)]
        first = rows.column("offset")[0].as_py()
        table.create_write_transaction(
            added,
            "append",
            TABLE_SCHEMA,
            partition_by=["date"],
            commit_properties=CommitProperties(
                custom_metadata={"penstock.from": str(first), "penstock.to": str(end)},
                app_transactions=[Transaction(f"{journal}/{shard}", end)],
            ),
        )
        return True

    def _write(self, rows: pa.Table, date: str) -> AddAction:
        """One data file, durable under its name before the table speaks of it."""
        first, last = rows.column("offset")[0].as_py(), rows.column("offset")[-1].as_py()
        name = f"date={date}/part-{first:020d}-{last:020d}.parquet"
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.tmp")
        statistics = [field.name for field in FILE_SCHEMA if field.name not in _NO_STATISTICS]
        pq.write_table(
            rows,
            draft,
            compression="zstd",
            row_group_size=ROW_GROUP_ROWS,
            write_statistics=statistics,
            use_dictionary=["journal", "door", "event", "channel", "kind", "sender", "peer", "reason"],
        )
        _sync_file(draft)
        os.replace(draft, path)
        _sync_directory(path.parent)
        size = path.stat().st_size
        stats = {
            "numRecords": rows.num_rows,
            "minValues": {"offset": first, "recorded_at": _iso(rows, 0)},
            "maxValues": {"offset": last, "recorded_at": _iso(rows, -1)},
            "nullCount": {"offset": 0, "recorded_at": 0},
        }
        text = msgspec.json.encode(stats).decode()
        modified_ms = path.stat().st_mtime_ns // 1_000_000
        return AddAction(name, size, {"date": date}, modified_ms, True, text)

    def files(self, table: DeltaTable | None = None) -> list[DataFile]:
        """The data files in order of their offsets."""
        table = table or self.table()
        if table is None:
            return []
        actions = pa.table(table.get_add_actions(flatten=True))
        found = [
            DataFile(
                row["path"],
                row["min.offset"],
                row["max.offset"],
                row["num_records"],
                row["size_bytes"],
                int(row["max.recorded_at"].timestamp() * 1_000_000),
            )
            for row in actions.to_pylist()
        ]
        return sorted(found, key=lambda file: file.first)

    def batches(self, first: int, end: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows `first` to `end - 1` as record batches, in order."""
        wanted = list(columns) if columns is not None else None
        expected = first
        for file in self.files():
            if file.last < first or file.first >= end:
                continue
            if file.first > expected:  # retention was quicker than the caller's look at what there is
                raise FileNotFoundError(f"rows {expected} to {file.first - 1} are not in the table")
            expected = file.last + 1
            needs_cut = file.first < first or file.last >= end
            names = wanted if wanted is None or not needs_cut else list(dict.fromkeys(["offset", *wanted]))
            with pq.ParquetFile(self.path / file.path, memory_map=True) as data:
                for batch in data.iter_batches(_rows_at_once(data), columns=names):
                    if needs_cut:
                        offset = batch.column("offset")
                        inside = pc.and_(pc.greater_equal(offset, first), pc.less(offset, end))
                        batch = batch.filter(inside)
                    if batch.num_rows:
                        yield batch if wanted is None else batch.select(wanted)

    def remove(self, files: Sequence[DataFile], now_ms: int) -> None:
        """Take whole data files out of the table, then off the disk."""
        table = self.table()
        if table is None or not files:
            return
        gone: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, True, now_ms, file.size, {"date": file.path[5:15]}) for file in files
        ]
        table.create_write_transaction(gone, "append", TABLE_SCHEMA, partition_by=["date"])
        for file in files:
            (self.path / file.path).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Keep the table's own log short."""
        table = self.table()
        if table is not None:
            table.create_checkpoint()
            table.cleanup_metadata()


def _rows_at_once(data: pq.ParquetFile) -> int:
    """Fewer of large rows: a reader should not need more memory because bodies are long."""
    about = data.metadata
    size = sum(about.row_group(index).total_byte_size for index in range(about.num_row_groups))
    return int(max(1, min(BATCH_ROWS, BATCH_BYTES * about.num_rows // max(size, 1))))


def _by_date(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Rows split where the UTC date changes: times never decrease, so each date is one run."""
    start = 0
    for run in pc.value_counts(rows.column("recorded_at").cast(pa.date32())).to_pylist():
        yield run["values"].isoformat(), rows.slice(start, run["counts"])
        start += run["counts"]


def _iso(rows: pa.Table, index: int) -> str:
    """A row's time as Delta's statistics have it: cut to milliseconds, which every reader allows for."""
    moment = rows.column("recorded_at")[index].as_py()
    return str(moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"))


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
