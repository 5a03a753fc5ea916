"""A table of the lake: every row once, however often it is written.

What is written carries how far it reaches: a commit holds rows, and with them the number that each application has come to
(for the pipeline: the journal and its end offset). Whoever writes reads that number first, so a replay is noticed and changes
nothing, and a lost checkpoint costs time, never rows. This is the only code that commits to the pipeline's tables; it needs
no JVM.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from penstock.journal.delta_log import CHECKPOINT_EVERY, SWEEP_AGE_S, DeltaLog
from penstock.journal.tables import NAME
from penstock.spark.lake import compaction, data_files, merge
from penstock.spark.lake.compaction import TIER_FILES
from penstock.spark.lake.data_files import LiveFile, SchemaError, StagedFile
from penstock.spark.lake.locks import TableLock
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.lake.snapshots import (
    STATISTICS_SETTING,
    LakeError,
    arrow_schema,
    check_readable,
    layout,
    live_files,
    statistics_of,
)


@dataclass(frozen=True)
class Progress:
    """How far one application has come with a write: from `first` up to, not including, `end`."""

    first: int
    end: int


@dataclass(frozen=True)
class Commit:
    """One version of a table."""

    version: int
    at_ms: int
    operation: str
    app: str | None
    """Who came forward with it; with several, `first` and `end` have a number for each."""
    first: Any
    end: Any


class LakeTable:
    """One table in a directory of a lake. Can be sent to executors, which may only stage."""

    def __init__(self, lake: Path, table: TableDefinition, clock: Callable[[], float] = time.time) -> None:
        self.lake = lake
        self.definition = table
        self.name = table.name
        self.path = lake / table.name
        self.log = DeltaLog(self.path)
        self.clock = clock
        self._lock = TableLock(lake, table.name)
        self._delta: DeltaTable | None = None
        self._is_ready = False
        self._commits = 0
        self._compacted_at: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return LakeTable, (self.lake, self.definition, self.clock)

    # what is there

    def delta(self) -> DeltaTable | None:
        """The table as it is now, or None before the first write."""
        if self._delta is None:
            if not DeltaTable.is_deltatable(str(self.path)):
                return None
            self._delta = DeltaTable(str(self.path))
            check_readable(self._delta, self.name)
        else:
            self._delta.update_incremental()
        return self._delta

    def version(self) -> int | None:
        table = self.delta()
        return None if table is None else table.version()

    def progress(self, app: str) -> int | None:
        """How far an application has come; None when it never wrote here, which is not the same as 0."""
        table = self.delta()
        return None if table is None else table.transaction_version(app)

    def fresh_from(self, app: str) -> int:
        """The first offset that is not stored yet: rows below it are to be left out of a write."""
        stored = self.progress(app)
        return 0 if stored is None else stored

    def schema(self, version: int | None = None) -> pa.Schema:
        """The columns as stored, which may be more than this program knows."""
        return arrow_schema(self._at(version))

    def files(
        self, bounds: Mapping[str, tuple[Any, Any]] | None = None, version: int | None = None
    ) -> list[LiveFile]:
        """The data files that may hold rows within bounds (column to least and greatest, either may be None)."""
        found = live_files(self._at(version))
        for column, (least, greatest) in (bounds or {}).items():
            found = [file for file in found if _may_hold(file, column, least, greatest)]
        return found

    def rows(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - the word that Arrow uses
        version: int | None = None,
        bounds: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> pa.Table:
        """Rows of a version, in no order. `bounds` only skips files; `filter` chooses rows."""
        table = self._at(version)
        schema = arrow_schema(table)
        names = list(schema.names if columns is None else columns)
        unknown = [name for name in names if name not in schema.names]
        if unknown:
            raise LakeError(
                f"table `{self.name}` has no column `{unknown[0]}`; it has {', '.join(schema.names)}"
            )
        wanted = pa.schema([schema.field(name) for name in names])
        read = None if filter is not None else names
        parts = []
        for file in self.files(bounds, version):
            part = data_files.read(self.path, file, schema, read)
            parts.append(part if filter is None else part.filter(filter).select(names))
        return pa.concat_tables(parts) if parts else wanted.empty_table()

    def history(self, limit: int | None = None) -> list[Commit]:
        """The versions that are still told of, newest first."""
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
        """The newest version that was committed by a time."""
        kept = self.log.kept()
        for version in reversed(kept):
            committed = self.log.commit_ms(version)
            if committed is not None and committed <= at_ms:
                return version
        raise LakeError(
            f"table `{self.name}` had no version that is still kept at that time; kept are {_shown(kept)}"
        )

    # writing

    def writing(self) -> AbstractContextManager[bool]:
        """Be the only writer inside: for those who look before they write."""
        return self._lock.held()

    def try_writing(self) -> AbstractContextManager[bool]:
        """The same, yielding False at once when somebody else writes."""
        return self._lock.held(waits=False)

    def check_definition(self) -> None:
        """Refuse a definition that no table could have."""
        definition = self.definition
        if not NAME.fullmatch(definition.name):
            raise LakeError(
                f"`{definition.name}` cannot be a table's name; use letters, digits, `_`, `-` and `.`"
            )
        wrong = [
            name
            for name in definition.partition_by
            if not data_files.partition_fits(definition.schema.field(name).type)
        ]
        if wrong:
            raise LakeError(f"`{wrong[0]}` cannot be a partition: use text, whole numbers, dates or booleans")

    def stage(self, batches: Iterable[pa.RecordBatch]) -> list[StagedFile]:
        """Write rows as files that a later commit may speak of; runs on executors."""
        schema = self.definition.schema
        tables = (self._fit(pa.Table.from_batches([batch]), schema) for batch in batches)
        return data_files.write(self.path, layout(schema, self.definition, self.delta()), tables)

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove staged files that will not be committed."""
        for file in files:
            (self.path / file.path).unlink(missing_ok=True)

    def append(self, rows: pa.Table | Sequence[StagedFile], progress: Mapping[str, Progress]) -> bool:
        """Add rows or staged files. False, and nothing is added, when every span was stored before.

        A commit without rows still moves the progress. Rows of what is stored already must be left out before.
        """
        with self.writing():
            table = self._ready()
            fresh = self._fresh(table, progress)
            if progress and not fresh:
                if not isinstance(rows, pa.Table):
                    self.discard(rows)
                return False
            for app, span in fresh.items():
                stored = table.transaction_version(app)
                if stored is not None and span.first < stored:
                    raise LakeError(
                        f"rows {span.first} to {stored - 1} of `{app}` are in table `{self.name}` already; "
                        f"leave them out and begin at {stored}"
                    )
            files = self._staged(table, [rows]) if isinstance(rows, pa.Table) else list(rows)
            self._commit(table, "append", fresh, files)
            return True

    def merge(self, rows: pa.Table, progress: Mapping[str, Progress]) -> bool:
        """Put rows in the place of those with the same key. False when every span was stored before."""
        definition = self.definition
        if not definition.key:
            raise LakeError(f"table `{self.name}` has no key to merge by; name its columns, or append")
        with self.writing():
            table = self._ready()
            fresh = self._fresh(table, progress)
            if progress and not fresh:
                return False
            schema = arrow_schema(table)
            rows = merge.one_per_key(
                self._fit(rows, schema), definition.key, definition.newest, definition.name
            )
            files = live_files(table)
            change = merge.plan(self.path, files, rows, schema, definition.key, definition.newest)
            added = self._staged(table, change.together)
            for left in change.apart:
                added += self._staged(table, [left])
            self._commit(table, "merge", fresh, added, change.removed)
            return True

    def overwrite(
        self,
        rows: pa.Table | Sequence[StagedFile],
        progress: Mapping[str, Progress],
        *,
        may_go_back: bool = False,
    ) -> bool:
        """Put rows or staged files in the place of everything, by one commit.

        A rebuilt table may have come less far than the one it replaces; `may_go_back` lets the progress say so.
        """
        with self.writing():
            table = self._ready()
            fresh = dict(progress) if may_go_back else self._fresh(table, progress)
            if progress and not fresh:
                if not isinstance(rows, pa.Table):
                    self.discard(rows)
                return False
            files = self._staged(table, [rows]) if isinstance(rows, pa.Table) else list(rows)
            self._commit(table, "overwrite", fresh, files, live_files(table))
            return True

    def replace_with(self, other: LakeTable, apps: Iterable[str]) -> None:
        """Put another table's content, and how far it has come, in the place of this one's, by one commit."""
        source = other.delta()
        if source is None:
            raise LakeError(f"there is no table at `{other.path}` to take over; build it first")
        now = self.clock()
        files = live_files(source)
        for file in files:
            to = self.path / file.path
            to.parent.mkdir(parents=True, exist_ok=True)
            os.link(other.path / file.path, to)
            data_files.sync(to.parent)
        ends = {app: source.transaction_version(app) for app in apps}
        progress = {app: Progress(0, end) for app, end in ends.items() if end is not None}
        self.overwrite([file.staged(int(now * 1000)) for file in files], progress, may_go_back=True)

    # keeping it small

    def compact(self, now: float | None = None, *, is_forced: bool = False) -> compaction.CompactionResult:
        """Merge small files, shorten the log, sweep up; does nothing when it is not due yet."""
        now = self.clock() if now is None else now
        is_due = (
            self._compacted_at is None
            or now - self._compacted_at >= compaction.EVERY_S
            or self._commits >= compaction.EVERY_COMMITS
        )
        if not is_forced and not is_due:
            return compaction.CompactionResult()
        with self.try_writing() as mine:
            if not mine or self.delta() is None:
                return compaction.CompactionResult()
            self._compacted_at, self._commits = now, 0
            return compaction.run(self, now)

    def compact_files(self, *, files_min: int = TIER_FILES) -> tuple[int, int]:
        """Merge small files of a partition into larger ones; returns how many went and how many came."""
        with self.writing():
            table = self._ready()
            went, came = 0, 0
            schema = arrow_schema(table)
            for group in compaction.groups(live_files(table), files_min):
                parts = (data_files.read(self.path, file, schema) for file in group)
                merged = data_files.write(self.path, layout(schema, self.definition, table), parts)
                self._commit(table, "compact", {}, merged, group)
                table.update_incremental()
                went, came = went + len(group), came + len(merged)
            return went, came

    # inside

    def _at(self, version: int | None) -> DeltaTable:
        if version is None:
            table = self.delta()
        elif self.path.is_dir():
            try:
                table = DeltaTable(str(self.path), version=version)
            except TableNotFoundError:
                table = None
            except DeltaError as error:
                raise self._gone(version) from error
            if table is None and DeltaTable.is_deltatable(str(self.path)):
                raise self._gone(version)
        else:
            table = None
        if table is None:
            raise LakeError(
                f"there is no table `{self.name}` in `{self.lake}`; `penstock lake ls` shows which there are, "
                f"and `penstock pipeline run --once` makes those of the pipeline"
            )
        return table

    def _gone(self, version: int) -> LakeError:
        return LakeError(
            f"version {version} of table `{self.name}` cannot be read; kept are {_shown(self.log.kept())}"
        )

    def _ready(self) -> DeltaTable:
        """The table with every column of its definition, made when it is new."""
        table = self.delta()
        if table is None:
            table = self._create()
        if not self._is_ready:
            self._check(table)
            self._is_ready = True
        return table

    def _create(self) -> DeltaTable:
        self.check_definition()
        definition = self.definition
        # The files are written by libraries that know no secrets, so the directory around them is closed.
        self.lake.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.mkdir(exist_ok=True)
        statistics = statistics_of(definition)
        self._delta = DeltaTable.create(
            str(self.path),
            pa.schema([field.with_nullable(True) for field in definition.schema]),
            partition_by=list(definition.partition_by),
            name=definition.name,
            configuration={
                # Without this, readers take the columns that have no statistics for empty and skip every file.
                **({STATISTICS_SETTING: ",".join(statistics)} if statistics else {}),
                "delta.checkpointInterval": str(CHECKPOINT_EVERY),
                # Both are looked after by `upkeep`, which counts versions and looks at the files themselves.
                "delta.enableExpiredLogCleanup": "false",
                "delta.deletedFileRetentionDuration": f"interval {SWEEP_AGE_S // 60} minutes",
            },
        )
        return self._delta

    def _check(self, table: DeltaTable) -> None:
        """Refuse what changed its type; add what is new."""
        stored = arrow_schema(table)
        new = []
        for field in self.definition.schema:
            if field.name not in stored.names:
                new.append(Field.from_arrow(field.with_nullable(True)))
            elif not data_files.is_same_kind(field.type, stored.field(field.name).type):
                raise SchemaError(
                    f"column `{field.name}` of table `{self.name}` is {stored.field(field.name).type}, not "
                    f"{field.type}; columns are never retyped: cast it, or give the new one another name"
                )
        partition_by = tuple(table.metadata().partition_columns)
        if partition_by != self.definition.partition_by:
            raise SchemaError(
                f"table `{self.name}` is partitioned by {list(partition_by)}, not by "
                f"{list(self.definition.partition_by)}; that cannot change after the first write"
            )
        if new:
            table.alter.add_columns(new)
            table.update_incremental()

    def _fit(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        definition = self.definition
        required = definition.key if definition.write == "merge" else ()
        return data_files.fit(rows, schema, required, definition.name)

    def _staged(self, table: DeltaTable, parts: Iterable[pa.Table]) -> list[StagedFile]:
        schema = arrow_schema(table)
        return data_files.write(
            self.path, layout(schema, self.definition, table), (self._fit(part, schema) for part in parts)
        )

    @staticmethod
    def _fresh(table: DeltaTable, progress: Mapping[str, Progress]) -> dict[str, Progress]:
        """The spans that are not stored. Delta takes a lower number silently, so it is looked at here."""
        fresh = {}
        for app, span in progress.items():
            stored = table.transaction_version(app)
            if stored is None or stored < span.end:
                fresh[app] = span
        return fresh

    def _commit(
        self,
        table: DeltaTable,
        operation: str,
        progress: Mapping[str, Progress],
        added: Iterable[StagedFile],
        removed: Iterable[LiveFile] = (),
    ) -> None:
        now = self.clock()
        is_change = operation != "compact"
        actions: list[AddAction | RemoveAction] = [file.action(is_change=is_change) for file in added]
        for file in removed:
            # From here its age counts when it is swept up: somebody may be reading it.
            os.utime(self.path / file.path, (now, now))
            actions.append(file.removal(int(now * 1000), is_change=is_change))
        about = {"penstock.operation": operation}
        if len(progress) == 1:
            [(app, span)] = progress.items()
            about |= {"penstock.app": app, "penstock.from": str(span.first), "penstock.to": str(span.end)}
        elif progress:
            about["penstock.from"] = _json({app: span.first for app, span in progress.items()})
            about["penstock.to"] = _json({app: span.end for app, span in progress.items()})
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=list(self.definition.partition_by),
            commit_properties=CommitProperties(
                custom_metadata=about,
                app_transactions=[Transaction(app, span.end) for app, span in progress.items()],
            ),
        )
        # The handle still shows the version before; whoever looks next asks for the newest.
        data_files.sync(self.log.path / f"{table.version() + 1:020d}.json")
        data_files.sync(self.log.path)
        self._commits += 1


def _may_hold(file: LiveFile, column: str, least: Any, greatest: Any) -> bool:
    if column not in file.partition and file.least.get(column) is None:
        return True
    low = file.partition.get(column, file.least.get(column)) if least is None else least
    high = file.partition.get(column, file.greatest.get(column)) if greatest is None else greatest
    return file.may_hold(column, low, high)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _number(text: Any) -> Any:
    """An offset, or one for each application."""
    return None if text is None else msgspec.json.decode(str(text))


def _shown(kept: range) -> str:
    return f"{kept.start} to {kept.stop - 1}" if kept else "none"
