"""Reading a lake table: its version, columns, progress, files, rows and history. Needs no JVM and takes no lock.

Refuses tables with Delta features under which it would return wrong rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.journal.delta_log import DeltaLog
from penstock.journal.lake_location import LakePath, find_delta, open_delta
from penstock.spark.errors import HintedError
from penstock.spark.lake import data_files
from penstock.spark.lake.data_files import Layout, LiveFile, has_bounds
from penstock.spark.lake.key_filters import KeyFilters
from penstock.spark.lake.schemas import TableDefinition

STATISTICS_MAX = 32
"""Columns with statistics if the table does not list them: Delta's own default."""
STATISTICS_SETTING = "delta.dataSkippingStatsColumns"
RETENTION_SETTING = "penstock.retention"
"""The retention of a table is stored in it, so that every program that maintains the table follows it."""
_UNREADABLE = ("deletionVectors", "columnMapping", "variantType", "variantType-preview")


class LakeError(HintedError):
    """A table that cannot be read or written as asked; the message says what to do."""


def check_readable(table: DeltaTable, name: str) -> None:
    """Refuse features that this reader does not support."""
    features = table.protocol().reader_features or []
    found = [feature for feature in _UNREADABLE if feature in features]
    if found:
        raise LakeError(
            f"table `{name}` uses Delta's `{found[0]}`, which is not supported",
            "disable it in the program that wrote the table, or copy the rows to a table without it",
        )


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """The columns of a table."""
    return pa.schema(table.schema().to_arrow())


def selected(schema: pa.Schema, names: Sequence[str], table: str) -> pa.Schema:
    """The named columns of a table; an unknown name is refused."""
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise LakeError(f"table `{table}` has no column `{unknown[0]}`", f"it has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in names])


def live_files(table: DeltaTable, known: Sequence[LiveFile] = ()) -> list[LiveFile]:
    """The data files of a table, in no order. Files never change: those that are known are not described again."""
    actions = pa.table(table.get_add_actions(flatten=True))
    before = {file.logged: file for file in known}
    paths = actions.column("path").to_pylist()
    stayed = [before[path] for path in paths if path in before]
    if stayed:
        actions = actions.take(pa.array([at for at, path in enumerate(paths) if path not in before], pa.int64()))
    parts: dict[str, dict[str, list[Any]]] = {"partition": {}, "min": {}, "max": {}, "null_count": {}}
    for column in actions.column_names:
        kind, _, name = column.partition(".")
        if kind in parts and name:
            parts[kind][name] = actions.column(column).to_pylist()
    return stayed + [
        LiveFile(
            path,
            size,
            rows or 0,  # other writers may omit statistics
            *({name: values[index] for name, values in part.items()} for part in parts.values()),
        )
        for index, (path, size, rows) in enumerate(
            zip(*(actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")), strict=True)
        )
    ]


def layout(schema: pa.Schema, definition: TableDefinition, table: DeltaTable | None) -> Layout:
    """The layout of new files: as configured in the table; before the first write, as in its definition."""
    configured = None if table is None else table.metadata().configuration.get(STATISTICS_SETTING)
    if table is None:
        statistics = statistics_of(definition)
    elif configured is not None:
        statistics = tuple(name for name in configured.split(",") if name)
    else:
        statistics = tuple(schema.names[:STATISTICS_MAX])
    usable = tuple(
        name
        for name in statistics
        if name in schema.names and name not in definition.partition_by and has_bounds(schema.field(name).type)
    )
    form = Layout(schema, definition.partition_by, usable, definition.filters)
    if definition.write != "merge":
        return form
    return replace(form, file_rows=data_files.MERGE_FILE_ROWS_MAX, false_hits=data_files.MERGE_FALSE_HITS)


def statistics_of(definition: TableDefinition) -> tuple[str, ...]:
    """The columns that readers filter by: the key, offsets and times; all columns of a table without a key."""
    schema = definition.schema
    if definition.key:
        times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        names = list(dict.fromkeys([*definition.key, "offset", *times]))
    else:
        names = schema.names
    fitting = [name for name in names if name in schema.names and name not in definition.partition_by]
    return tuple(name for name in fitting if has_bounds(schema.field(name).type))[:STATISTICS_MAX]


def parse_moment(given: datetime | str, name: str) -> datetime:
    """The time that the option `name` gives; in UTC if it has no time zone."""
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise LakeError(f"`{name}` is `{given}`", "write it as `2026-01-31T12:00:00Z`") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Commit:
    """One version of a table."""

    version: int
    at_ms: int
    operation: str
    app: str | None
    """The application that made progress; with several, `first` and `end` have a number for each."""
    first: Any
    end: Any


class TableReader:
    """One table in a directory of a lake, as stored."""

    def __init__(self, lake: LakePath, table: TableDefinition, clock: Callable[[], float] = time.time) -> None:
        self.lake = lake
        self.definition = table
        self.name = table.name
        self.path = lake / table.name
        self.log = DeltaLog(self.path)
        self.clock = clock
        self._delta: DeltaTable | None = None
        self.filters = KeyFilters(self.path)
        self._live: tuple[int, list[LiveFile]] = (-1, [])
        self._progress: tuple[int, dict[str, int | None]] = (-1, {})

    def delta(self) -> DeltaTable | None:
        """The newest version of the table; None before the first write."""
        if self._delta is None:
            self._delta = find_delta(self.path)
            if self._delta is None:
                return None
            check_readable(self._delta, self.name)
        elif not self._is_newest(self._delta.version()):
            self._delta.update_incremental()
        return self._delta

    def _is_newest(self, version: int) -> bool:
        """Whether a version is the last of a log on disk, by two names: an update lists all entries, up to a thousand."""
        path = self.log.path
        this, following = (path / f"{one:020d}.json" for one in (version, version + 1))
        return isinstance(path, Path) and this.exists() and not following.exists()

    def version(self) -> int | None:
        table = self.delta()
        return None if table is None else table.version()

    def progress(self, app: str) -> int | None:
        """The progress of an application; None if it never wrote here, which differs from 0."""
        table = self.delta()
        return None if table is None else self.progress_in(table, app)

    def progress_in(self, table: DeltaTable, app: str) -> int | None:
        """The progress of an application in an opened version; looked up once."""
        if self._progress[0] != table.version():
            self._progress = table.version(), {}
        known = self._progress[1]
        if app not in known:
            known[app] = table.transaction_version(app)
        return known[app]

    def retention(self) -> str | None:
        """How long rows stay, such as `90d`; None if they stay for ever."""
        table = self.delta()
        return None if table is None else table.metadata().configuration.get(RETENTION_SETTING) or None

    def schema(self, version: int | None = None) -> pa.Schema:
        """The stored columns, which may be more than this program knows."""
        return arrow_schema(self._at(version))

    def files(self, bounds: Mapping[str, tuple[Any, Any]] | None = None, version: int | None = None) -> list[LiveFile]:
        """The data files that may contain rows within bounds (column to minimum and maximum, either may be None)."""
        found = self.live(self._at(version))
        for column, (least, greatest) in (bounds or {}).items():
            found = [file for file in found if file.may_hold(column, least, greatest)]
        return found

    def live(self, table: DeltaTable) -> list[LiveFile]:
        """The data files of an opened version, in no order."""
        if self._live[0] != table.version():
            self._live = table.version(), live_files(table, self._live[1])
            self.filters.keep(self._live[1])
        return self._live[1]

    def rows(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - as in Arrow
        version: int | None = None,
        bounds: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> pa.Table:
        """Rows of a version, in no order. `bounds` only skips files; `filter` selects rows."""
        table = self._at(version)
        schema = arrow_schema(table)
        names = list(schema.names if columns is None else columns)
        wanted = selected(schema, names, self.name)
        read = None if filter is not None else names
        parts = []
        for file in self.files(bounds, version):
            part = data_files.read(self.path, file, schema, read)
            parts.append(part if filter is None else part.filter(filter).select(names))
        return pa.concat_tables(parts) if parts else wanted.empty_table()

    def rows_with(
        self,
        any_of: Mapping[str, pa.Array],
        columns: Sequence[str],
        bounds: Mapping[str, tuple[Any, Any]] | None = None,
        rows_max: int | None = None,
    ) -> pa.Table:
        """The rows with one of these values in one of these columns, up to a maximum. Parts of files whose filters have none are not read."""
        schema = arrow_schema(self._at(None))
        wanted = pa.schema([schema.field(name) for name in dict.fromkeys([*columns, *any_of])])
        parts = [wanted.empty_table()]
        left = rows_max
        for file, groups in self.filters.holding_groups(self.files(bounds), any_of):
            for batch in data_files.batches(self.path, file, wanted, groups):
                hits = [pc.is_in(batch.column(name), value_set=values) for name, values in any_of.items()]
                found = batch.filter(reduce(pc.or_, hits))
                parts.append(pa.Table.from_batches([found]))
                if left is not None and (left := left - found.num_rows) <= 0:
                    return pa.concat_tables(parts).slice(0, rows_max).select(columns)
        return pa.concat_tables(parts).select(columns)

    def history(self, limit: int | None = None) -> list[Commit]:
        """The versions that the log still has, newest first."""
        return [
            Commit(
                entry["version"],
                entry["timestamp"],
                entry.get("penstock.operation", entry["operation"].lower()),
                entry.get("penstock.app"),
                _number(entry.get("penstock.from")),
                _number(entry.get("penstock.to")),
            )
            for entry in self._at(None).history(limit)
        ]

    def version_at(self, at_ms: int) -> int:
        """The newest version that was committed at or before a time."""
        kept = self.log.kept()
        for version in reversed(kept):
            committed = self.log.commit_ms(version)
            if committed is not None and committed <= at_ms:
                return version
        raise LakeError(f"table `{self.name}` has no version from that time any more", f"kept are {shown(kept)}")

    def _at(self, version: int | None) -> DeltaTable:
        table = self.delta()
        if table is None:
            raise LakeError(
                f"there is no table `{self.name}` in `{self.lake}`",
                "`penstock lake ls` lists the tables, and `penstock pipeline run --once` creates those of the pipeline",
            )
        try:
            return table if version is None else open_delta(self.path, version)
        except DeltaError as error:
            why = f"version {version} of table `{self.name}` cannot be read"
            raise LakeError(why, f"kept are {shown(self.log.kept())}") from error


def _number(text: Any) -> Any:
    """An offset, or one for each application."""
    return None if text is None else msgspec.json.decode(str(text))


def shown(kept: range) -> str:
    """Versions as a message names them."""
    return f"{kept.start} to {kept.stop - 1}" if kept else "none"
