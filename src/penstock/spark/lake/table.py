"""Writing a lake table: every row once, however often it is written.

A commit holds rows and, in the same transaction, the progress of each application (for the pipeline: the journal and its end offset). A
writer reads the progress first, so a replay changes nothing and a lost checkpoint costs time, never rows. This is the only code that
commits to the pipeline's tables. It needs no JVM.

delta-rs could merge and compact too. It does not sync files before it commits, so a power failure could leave a commit that names
missing files after retention removed the journal rows; see `docs/explain/pipeline-performance.md` for the measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable, Field

from penstock.journal.delta_log import CHECKPOINT_EVERY, SWEEP_AGE_S, TABLE_NAME, create_delta
from penstock.journal.lake_location import LakePath, copy_file
from penstock.spark.lake import data_files, rewrite
from penstock.spark.lake.commits import CommittingTable, Progress, feed_setting
from penstock.spark.lake.data_files import LiveFile, SchemaError, StagedFile
from penstock.spark.lake.locks import TableLock
from penstock.spark.lake.rewrite import TIER_FILES
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.lake.table_reader import (
    RETENTION_SETTING,
    STATISTICS_SETTING,
    LakeError,
    arrow_schema,
    layout,
    live_files,
    statistics_of,
)

__all__ = ["LakeTable", "Progress"]

OUTGROWN_FILES = 4
"""Files of an earlier layout that one compaction rewrites."""


class LakeTable(CommittingTable):
    """One table of a lake that can be written. Can be sent to executors, which may only stage."""

    def __init__(self, lake: LakePath, table: TableDefinition, clock: Callable[[], float] = time.time) -> None:
        super().__init__(lake, table, clock)
        self._lock = TableLock(lake, table.name)
        self._is_ready = False
        self._compacted_at = float("-inf")

    def __reduce__(self) -> tuple[Any, ...]:
        return LakeTable, (self.lake, self.definition, self.clock)

    def writing(self) -> AbstractContextManager[bool]:
        """Hold the writer's lock: for a caller that reads before it writes."""
        return self._lock.held()

    def try_writing(self) -> AbstractContextManager[bool]:
        """The same, but yield False at once if another writer holds it."""
        return self._lock.held(waits=False)

    def check_definition(self) -> None:
        """Refuse an invalid definition."""
        definition = self.definition
        if not TABLE_NAME.fullmatch(definition.name):
            raise LakeError(f"`{definition.name}` cannot be a table's name", "use letters, digits, `_`, `-` and `.`")
        fits = data_files.partition_fits
        wrong = [name for name in definition.partition_by if not fits(definition.schema.field(name).type)]
        if wrong:
            raise LakeError(f"`{wrong[0]}` cannot be a partition: use text, whole numbers, dates or booleans")

    def stage(self, batches: Iterable[pa.RecordBatch]) -> list[StagedFile]:
        """Write rows as files for a later commit; runs on executors."""
        schema = self.definition.schema
        tables = (self._fit(pa.Table.from_batches([batch]), schema) for batch in batches)
        return data_files.write(self.path, layout(schema, self.definition, self.delta()), tables)

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove staged files that will not be committed."""
        for file in files:
            (self.path / file.path).unlink(missing_ok=True)

    def append(self, rows: pa.Table | Sequence[StagedFile], progress: Mapping[str, Progress]) -> bool:
        """Add rows or staged files. Returns False and adds nothing if all of the progress is stored already.

        A commit without rows still moves the progress. The caller leaves out rows that are stored already.
        """
        return self._put("append", rows, progress)

    def merge(self, rows: pa.Table, progress: Mapping[str, Progress], dropped: pa.Table | None = None) -> bool:
        """Insert rows and replace those with the same key; remove the rows with the keys of `dropped`.

        Returns False if all of the progress is stored already.
        """
        definition = self.definition
        if not definition.key:
            raise LakeError(f"table `{self.name}` has no key to merge by", "name its columns, or append")
        with self.writing():
            table = self._ready()
            fresh = self._fresh(table, progress)
            if progress and not fresh:
                return False
            schema = arrow_schema(table)
            every = [self._fit(part, schema) for part in (rows, dropped) if part is not None]
            rows = rewrite.one_per_key(pa.concat_tables(every), definition.key, definition.newest, definition.name)
            files = rewrite.candidates(self.live(table), rows, definition.key, self.filters, definition.filters)
            removing = 0 if dropped is None else dropped.num_rows
            change = rewrite.plan(self.path, files, rows, schema, definition.key, definition.newest, removing)
            added = self._staged(table, change.together)
            for left in change.apart:
                added += self._staged(table, [left])
            self._commit(table, "merge", fresh, added, change.removed, change.changes)
            return True

    def overwrite(
        self, rows: pa.Table | Sequence[StagedFile], progress: Mapping[str, Progress], *, may_go_back: bool = False
    ) -> bool:
        """Replace all rows by rows or staged files, in one commit.

        A rebuilt table may have less progress than the one it replaces; `may_go_back` allows that.
        """
        return self._put("overwrite", rows, progress, may_go_back=may_go_back)

    def _put(
        self,
        operation: Literal["append", "overwrite"],
        rows: pa.Table | Sequence[StagedFile],
        progress: Mapping[str, Progress],
        *,
        may_go_back: bool = False,
    ) -> bool:
        with self.writing():
            table = self._ready()
            fresh = dict(progress) if may_go_back else self._fresh(table, progress)
            if progress and not fresh:
                if not isinstance(rows, pa.Table):
                    self.discard(rows)
                return False
            for app, step in fresh.items() if operation == "append" else ():
                stored = self.progress_in(table, app)
                if stored is not None and step.first < stored:
                    raise LakeError(
                        f"rows {step.first} to {stored - 1} of `{app}` are already in table `{self.name}`",
                        f"leave them out and begin at {stored}",
                    )
            files = self._staged(table, [rows]) if isinstance(rows, pa.Table) else list(rows)
            self._commit(table, operation, fresh, files, live_files(table) if operation == "overwrite" else ())
            return True

    def replace_with(self, other: LakeTable, apps: Iterable[str]) -> None:
        """Replace all rows and the progress by those of another table, in one commit."""
        source = other.delta()
        if source is None:
            raise LakeError(f"there is no table at `{other.path}` to take over", "build it first")
        now = self.clock()
        files = live_files(source)
        for file in files:
            copy_file(other.path / file.path, self.path / file.path)
        ends = {app: source.transaction_version(app) for app in apps}
        progress = {app: Progress(0, end) for app, end in ends.items() if end is not None}
        self.overwrite([file.staged(int(now * 1000)) for file in files], progress, may_go_back=True)

    def compact(self, *, is_forced: bool = False, retention: str | None = None) -> int:
        """Remove rows that expired, merge small files, shorten the log and remove old files, if that is due.

        `retention` changes the setting of the table; empty means that rows stay. Returns how many files were merged.
        """
        now = self.clock()
        if not (is_forced or now - self._compacted_at >= rewrite.EVERY_S or self._commits >= rewrite.EVERY_COMMITS):
            return 0
        with self.try_writing() as mine:
            if not mine or self.delta() is None:
                return 0
            self._compacted_at, self._commits = now, 0
            self.expire(retention)
            merged, _ = self.compact_files()
            rewrite.shorten(self)
            self.log.sweep(now)
            return merged

    def expire(self, retention: str | None = None) -> int:
        """Remove rows that are older than the table's retention, which may be set first; returns how many went."""
        with self.writing():
            table = self._ready()
            if retention is not None and retention != (self.retention() or ""):
                self._set(table, {RETENTION_SETTING: retention})
            age = self.retention()
            if age is None:
                return 0
            before = datetime.fromtimestamp(self.clock(), UTC) - timedelta(days=int(age.removesuffix("d")))
            gone = 0
            for change in rewrite.expired(self.path, self.live(table), arrow_schema(table), before):
                added = self._staged(table, change.apart)
                self._commit(table, "expire", {}, added, change.removed, change.changes)
                table.update_incremental()
                gone += sum(file.rows for file in change.removed) - sum(file.rows for file in added)
            if gone:
                self.log.checkpoint()  # so that the log can drop the versions before it
            return gone

    def rewrite(self, changed: Callable[[pa.Table], pa.Table]) -> None:
        """Replace the files whose rows a function changes, in one commit. It returns the very rows that it is given to keep them."""
        with self.writing():
            table = self._ready()
            schema = arrow_schema(table)
            removed, added = [], []
            for file in self.live(table):
                rows = data_files.read(self.path, file, schema)
                if (left := changed(rows)) is not rows:
                    removed.append(file)
                    added += self._staged(table, [left])
            if removed:
                self._commit(table, "erase", {}, added, removed)

    def purge(self, apps: Iterable[str]) -> None:
        """Remove every older version, with its files and statistics. The newest one says how far each application is."""
        with self.writing():
            table = self._ready()
            ends = {app: end for app in apps if (end := table.transaction_version(app)) is not None}
            self._commit(table, "erase", {app: Progress(end, end) for app, end in ends.items()}, ())
            self.log.purge()

    def compact_files(self, *, files_min: int = TIER_FILES) -> tuple[int, int]:
        """Merge small files of a partition into larger ones; returns how many were removed and added."""
        with self.writing():
            table = self._ready()
            went, came = 0, 0
            schema = arrow_schema(table)
            form = layout(schema, self.definition, table)
            for group in chain(rewrite.groups(self.live(table), files_min, form.file_rows), self._outgrown(table)):
                parts = (data_files.read(self.path, file, schema) for file in group)
                merged = data_files.write(self.path, form, parts)
                self._commit(table, "compact", {}, merged, group)
                table.update_incremental()
                went, came = went + len(group), came + len(merged)
            return went, came

    def _outgrown(self, table: DeltaTable) -> Iterator[list[LiveFile]]:
        """Files of an earlier version, larger than files are now or without a filter: a few are rewritten at a time."""
        # A generator: it begins when the groups before it are committed, so it names no file that they replaced.
        files = self.live(table) if self.definition.write == "merge" else []
        found = [file for file in files if file.rows > 2 * data_files.MERGE_FILE_ROWS_MAX]
        found += [file for file in self.filters.lacking(files, self.definition.filters) if file not in found]
        yield from ([file] for file in found[:OUTGROWN_FILES])

    def _ready(self) -> DeltaTable:
        """The table with every column of its definition; creates it if needed."""
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
        statistics = statistics_of(definition)
        self._delta = create_delta(
            self.path,
            pa.schema([field.with_nullable(True) for field in definition.schema]),
            partition_by=list(definition.partition_by),
            name=definition.name,
            configuration={
                # Without this, readers assume statistics for every column and skip files that have none.
                **({STATISTICS_SETTING: ",".join(statistics)} if statistics else {}),
                "delta.checkpointInterval": str(CHECKPOINT_EVERY),
                # `compact` does both: it counts versions and checks the files themselves.
                "delta.enableExpiredLogCleanup": "false",
                "delta.deletedFileRetentionDuration": f"interval {SWEEP_AGE_S // 60} minutes",
                **feed_setting(self.path, definition, {}),
            },
            raise_if_key_not_exists=False,  # not every setting is one of Delta's
        )
        return self._delta

    def _check(self, table: DeltaTable) -> None:
        """Refuse columns of another type; add new ones."""
        stored = arrow_schema(table)
        new = []
        for field in self.definition.schema:
            if field.name not in stored.names:
                new.append(Field.from_arrow(field.with_nullable(True)))
            elif not data_files.is_same_kind(field.type, stored.field(field.name).type):
                raise SchemaError(
                    f"column `{field.name}` of table `{self.name}` is {stored.field(field.name).type}, not "
                    f"{field.type}",
                    "columns are never retyped: cast it, or give the new one another name",
                )
        partition_by = tuple(table.metadata().partition_columns)
        if partition_by != self.definition.partition_by:
            raise SchemaError(
                f"table `{self.name}` is partitioned by {list(partition_by)}, not by "
                f"{list(self.definition.partition_by)}",
                "that cannot change after the first write",
            )
        if new:
            table.alter.add_columns(new)
            self.log.sync()
            table.update_incremental()
        self._set(table, feed_setting(self.path, self.definition, table.metadata().configuration))

    def _fit(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        definition = self.definition
        required = definition.key if definition.write == "merge" else ()
        return data_files.fit(rows, schema, required, definition.name)

    def _staged(self, table: DeltaTable, parts: Iterable[pa.Table]) -> list[StagedFile]:
        schema = arrow_schema(table)
        return data_files.write(
            self.path, layout(schema, self.definition, table), (self._fit(part, schema) for part in parts)
        )

    def _fresh(self, table: DeltaTable, progress: Mapping[str, Progress]) -> dict[str, Progress]:
        """The progress that is not stored yet. Delta accepts a lower number silently, so compare here."""
        stored = {app: self.progress_in(table, app) for app in progress}
        return {app: step for app, step in progress.items() if (end := stored[app]) is None or end < step.end}
