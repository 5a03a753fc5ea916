"""Sealed history: the Delta table `events`, whose data files are the journal itself from then on.

One Parquet file per sealed range and date, named after its rows and its journal, committed with the transaction (`<journal>/<shard>`, end
offset), so publishing the same range again is noticed and changes nothing. Anything that reads Delta or Parquet reads it without us.

Small adjacent files are merged: a seal a minute would otherwise leave over a thousand files a day. Rows, offsets and their order stay the
same. The merged files stay on disk for a while, for readers that have them open; they are removed when they are old and no kept version
refers to them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from penstock.journal.columns import SCHEMA, fitted
from penstock.journal.delta_log import DeltaLog, create_delta
from penstock.journal.lake_location import LakePath, NewFile, find_delta, open_delta, open_parquet, touch
from penstock.journal.segments import SHARD, DamageError

FILES_MIN = 30
"""Adjacent small files of one date that are worth merging."""
SMALL_BYTES = 16 * 1024 * 1024
MERGED_BYTES_MAX = 64 * 1024 * 1024
GROUP_BYTES = 64 * 1024 * 1024
"""Rows that are held in memory for one row group, about."""


def runs(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """The files to merge, in order of their offsets: each run is small files of one journal and date without a gap."""
    run: list[DataFile] = []
    for file in sorted(files, key=lambda file: (file.journal, file.first)):
        fits = bool(run) and file.first == run[-1].last + 1 and file.path[:15] == run[-1].path[:15]
        fits = fits and file.journal == run[-1].journal
        is_small = file.size < SMALL_BYTES
        if not fits or not is_small or sum(one.size for one in run) + file.size > MERGED_BYTES_MAX:
            if len(run) >= FILES_MIN:
                yield run
            run = []
        if is_small:
            run.append(file)
    if len(run) >= FILES_MIN:
        yield run


def groups(root: LakePath, run: Sequence[DataFile], schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """The rows of a run, as large row groups; columns that an older file lacks are null."""
    held: list[pa.Table] = []
    for file in run:
        try:
            with open_parquet(root / file.path) as data:
                rows = data.read()
        except (OSError, pa.ArrowException) as error:
            raise DamageError(f"lake/{root.name}/{file.path}", None, str(error)) from error
        held.append(pa.Table.from_batches([fitted(batch, schema) for batch in rows.to_batches()], schema))
        together = pa.concat_tables(held)
        if together.num_rows >= rows_max or together.nbytes >= GROUP_BYTES:
            yield together
            held = []
    if held:
        yield pa.concat_tables(held)


TABLE = "events"
ROW_GROUP_ROWS = 256 * 1024
BATCH_ROWS = 128 * 1024
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
"""A row as readers of the table see it."""
TABLE_SCHEMA = FILE_SCHEMA.append(pa.field("date", pa.date32()))

_NO_STATISTICS = ("body", "meta")
"""Columns without statistics, which would be large and useless."""
_NAME = re.compile(r"date=[0-9-]+/part-\d{20}-\d{20}-(.+?)(?:\.\d+)?\.parquet")


class DataFile(msgspec.Struct, frozen=True, array_like=True):
    """A sealed range of rows."""

    path: str
    """Relative to the table."""
    first: int
    last: int
    rows: int
    size: int
    last_at_us: int
    journal: str = ""
    """The journal of its rows: a directory whose journal was created again keeps the rows of the old one."""


class EventsTable:
    """The table of sealed history under a lake directory."""

    def __init__(self, lake: LakePath) -> None:
        self.path = lake / TABLE
        self._journals: dict[str, str] = {}
        """The journals of files whose names do not include it."""

    def table(self, bounds: dict[str, str] | None = None) -> DeltaTable | None:
        """The table as it is now, or None before the first seal. Raises DamageError, and StoreError."""
        try:
            return find_delta(self.path, bounds)
        except DeltaError as error:
            raise DamageError(f"lake/{TABLE}", None, f"the table cannot be opened: {error}") from error

    def sealed_end(self, journal: str, shard: int, bounds: dict[str, str] | None = None) -> int:
        """The offset behind the last sealed row."""
        table = self.table(bounds)
        version = table.transaction_version(f"{journal}/{shard}") if table is not None else None
        return 0 if version is None else version

    def publish(self, rows: pa.Table, journal: str, shard: int, end: int) -> bool:
        """Make rows part of the table, unless they are already. The last of them is before `end`."""
        if rows.num_rows == 0 or self.sealed_end(journal, shard) >= end:
            return False
        table = self.table()
        if table is None:
            table = create_delta(
                self.path,
                TABLE_SCHEMA,
                partition_by=["date"],
                name=TABLE,
                description="Every event that Penstock journaled, in order.",
                configuration={
                    "delta.logRetentionDuration": "interval 1 days",
                    "delta.deletedFileRetentionDuration": "interval 60 minutes",
                    # Without this, readers take the columns that have no statistics for empty and skip every file.
                    "delta.dataSkippingStatsColumns": "offset,recorded_at",
                },
            )
        added: list[AddAction | RemoveAction] = [self._write([part], date, journal) for date, part in _by_date(rows)]
        first = rows.column("offset")[0].as_py()
        about = {"penstock.from": str(first), "penstock.to": str(end)}
        properties = CommitProperties(about, app_transactions=[Transaction(f"{journal}/{shard}", end)])
        try:
            self._commit(table, added, properties)
        except (DeltaError, OSError):
            # In a store, perhaps only the answer was lost.
            if isinstance(self.path, Path) or self.sealed_end(journal, shard) < end:
                raise
        return True

    def _write(self, parts: Iterable[pa.Table], date: str, journal: str, *, last: int | None = None) -> AddAction:
        """One data file, durable before the table refers to it. With `last`, its last offset, it replaces other files."""
        mark = "" if last is None else f".{open_delta(self.path).version() + 1}"  # one of them may have the same rows
        remaining = iter(parts)
        rows = begin = next(remaining)
        first = begin.column("offset")[0].as_py()
        end = begin.column("offset")[-1].as_py() if last is None else last
        name = f"date={date}/part-{first:020d}-{end:020d}-{journal}{mark}.parquet"
        file = NewFile(self.path / name)
        count = 0
        with pq.ParquetWriter(
            file.sink,
            FILE_SCHEMA,
            compression="zstd",
            write_statistics=[field.name for field in FILE_SCHEMA if field.name not in _NO_STATISTICS],
            use_dictionary=["journal", "door", "event", "channel", "kind", "sender", "peer", "reason"],
        ) as writer:
            while True:
                writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
                count += rows.num_rows
                following = next(remaining, None)
                if following is None:
                    break
                rows = following
        size, modified_ms = file.finish()
        stats = {
            "numRecords": count,
            "minValues": {"offset": first, "recorded_at": _iso(begin, 0)},
            "maxValues": {"offset": end, "recorded_at": _iso(rows, -1)},
            "nullCount": {"offset": 0, "recorded_at": 0},
        }
        text = msgspec.json.encode(stats).decode()
        return AddAction(name, size, {"date": date}, modified_ms, last is None, text)

    def files(self, table: DeltaTable | None = None) -> list[DataFile]:
        """The data files in order of their offsets."""
        table = table or self.table()
        if table is None:
            return []
        try:
            actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
            found = [msgspec.convert(self._described(row), DataFile) for row in actions]
        except (DeltaError, KeyError, AttributeError, msgspec.ValidationError) as error:
            raise DamageError(f"lake/{TABLE}", None, f"its log describes no data file: {error!r}") from error
        return sorted(found, key=lambda file: file.first)

    def _described(self, row: dict[str, Any]) -> tuple[Any, ...]:
        first, last, rows = row["min.offset"], row["max.offset"], row["num_records"]
        last_at_us = int(row["max.recorded_at"].timestamp() * 1_000_000)
        return row["path"], first, last, rows, row["size_bytes"], last_at_us, self._journal_of(row["path"])

    def _journal_of(self, path: str) -> str:
        """The journal of a file. The first version did not name it, so those files are looked into, once."""
        named = _NAME.fullmatch(path)
        if named is not None:
            return named[1]
        if path not in self._journals:
            try:
                with open_parquet(self.path / path) as data:
                    first = next(data.iter_batches(1, columns=["journal"]))
            except FileNotFoundError:
                return ""  # removed meanwhile
            self._journals[path] = str(first.column(0)[0].as_py())
        return self._journals[path]

    def remove(self, files: Sequence[DataFile], now_ms: int) -> None:
        """Take whole data files out of the table, then off the disk."""
        table = self.table()
        if table is None or not files:
            return
        gone: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, True, now_ms, file.size, {"date": file.path[5:15]}) for file in files
        ]
        self._commit(table, gone, CommitProperties({"penstock.operation": "expire"}))
        for file in files:
            (self.path / file.path).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Merge small files, keep the table's own log short, and remove what was merged an hour ago."""
        table = self.table()
        if table is None:
            return
        for run in runs(self.files(table)):
            self._replace(run, groups(self.path, run, FILE_SCHEMA, ROW_GROUP_ROWS), {"penstock.operation": "compact"})
        log = DeltaLog(self.path)
        if log.needs_checkpoint():
            log.checkpoint()
        if log.shorten():
            log.sweep(time.time())

    def rewrite(self, file: DataFile, changed: Callable[[pa.Table], pa.Table]) -> None:
        """Replace a file by one with as many rows, some of them changed."""
        parts = map(changed, groups(self.path, [file], FILE_SCHEMA, ROW_GROUP_ROWS))
        about = {"penstock.operation": "erase", "penstock.to": str(self.sealed_end(file.journal, SHARD))}
        self._replace([file], parts, about)

    def _replace(self, run: Sequence[DataFile], parts: Iterable[pa.Table], about: dict[str, str]) -> None:
        date = run[0].path[5:15]
        added = self._write(parts, date, run[0].journal, last=run[-1].last)
        now_ms = added.modification_time
        for file in run:
            touch(self.path / file.path, now_ms / 1000)
        actions: list[AddAction | RemoveAction] = [added]
        actions += [RemoveAction(file.path, False, now_ms, file.size, {"date": date}) for file in run]
        self._commit(open_delta(self.path), actions, CommitProperties(about))

    def _commit(self, table: DeltaTable, actions: list[AddAction | RemoveAction], about: CommitProperties) -> None:
        """Commit durably: what is sealed is then removed from the journal."""
        table.create_write_transaction(actions, "append", TABLE_SCHEMA, partition_by=["date"], commit_properties=about)
        DeltaLog(self.path).sync()


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
