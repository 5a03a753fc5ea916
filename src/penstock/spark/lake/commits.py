"""The commits of a table, and the change feed that they make: the rows that each version inserts, updates and deletes.

A commit that rewrites files for a few of their rows also writes the changed rows, in files of changes as Delta defines them. Of other
commits the data files say it: rows of an added file are inserted, those of a removed one deleted. delta-rs commits, but it cannot name
files of changes: in a directory such an entry of the log is written here. In an object store, where a commit is a conditional put, the
files are a note of the commit that only this reader knows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from penstock.journal.delta_log import CHANGES, CHANGES_NOTE, CHECKPOINT_EVERY, changes_in, commit_info
from penstock.journal.lake_location import LakePath, StoreError, open_delta, store_errors, touch
from penstock.spark.lake import data_files
from penstock.spark.lake.data_files import Layout, LiveFile, StagedFile
from penstock.spark.lake.rewrite import CHANGE_TYPE, DELETE, INSERT, PREIMAGE, keys_of
from penstock.spark.lake.schemas import TYPES, TableDefinition
from penstock.spark.lake.table_reader import LakeError, TableReader, arrow_schema, shown

RIVALS_MAX = 20
"""Commits of others that may follow a commit before its writer looks whether it is there."""
COMMIT_VERSION, COMMIT_TIME = "_commit_version", "_commit_timestamp"
FEED_COLUMNS = pa.schema({CHANGE_TYPE: TYPES["string"], COMMIT_VERSION: TYPES["long"], COMMIT_TIME: TYPES["timestamp"]})
"""The columns that a feed adds to those of its table."""
FEED_SETTINGS = ("delta.enableChangeDataFeed", "penstock.changeFeed")
"""The setting of a table that has a feed; the second one in an object store, where other readers do not find it."""


@dataclass(frozen=True)
class Progress:
    """What a write adds to the progress of one application: from `first` up to, not including, `end`."""

    first: int
    end: int


def feed_setting(path: LakePath, definition: TableDefinition, settings: Mapping[str, str | None]) -> dict[str, str]:
    """The setting that a table lacks whose rows are replaced. An explicit `false` stays."""
    is_taken = not set(FEED_COLUMNS.names).isdisjoint(definition.schema.names)
    if definition.write != "merge" or is_taken or any(name in settings for name in FEED_SETTINGS):
        return {}
    return {FEED_SETTINGS[not isinstance(path, Path)]: "true"}


def _has_feed(table: DeltaTable) -> bool:
    settings = table.metadata().configuration
    return "true" in [settings.get(name) for name in FEED_SETTINGS]


class CommittingTable(TableReader):
    """A table whose versions are written here, each durably or not at all."""

    _commits = 0
    """Commits since the last compaction."""

    def _set(self, table: DeltaTable, settings: dict[str, str]) -> None:
        if settings:
            table.alter.set_table_properties(settings, raise_if_not_exists=False)
            self.log.sync()
            table.update_incremental()

    def _commit(
        self,
        table: DeltaTable,
        operation: str,
        progress: Mapping[str, Progress],
        added: Sequence[StagedFile],
        removed: Sequence[LiveFile] = (),
        changed: pa.Table | None = None,
    ) -> None:
        now = self.clock()
        for file in removed:
            # The age for `sweep` counts from now: a reader of the version before may still have it open.
            touch(self.path / file.path, now)
        write = uuid.uuid4().hex
        about = {"penstock.operation": operation, "penstock.write": write}
        ends = {app: step.end for app, step in progress.items()}
        if len(progress) == 1:
            [(app, step)] = progress.items()
            about |= {"penstock.app": app, "penstock.from": str(step.first), "penstock.to": str(step.end)}
        elif progress:
            about["penstock.from"] = _json({app: step.first for app, step in progress.items()})
            about["penstock.to"] = _json(ends)
        files = [] if changed is None or not _has_feed(table) else self._changes(table, changed)
        if files and isinstance(self.path, Path):
            facts = {"operation": operation.upper(), "operationParameters": {}, "engineInfo": "penstock", **about}
            entry: list[dict[str, Any]] = [{"commitInfo": {"timestamp": int(now * 1000), **facts}}]
            entry += [{"txn": {"appId": app, "version": end}} for app, end in ends.items()]
            entry += [{"remove": file.removed(int(now * 1000))} for file in removed]
            entry += [{"add": file.added()} for file in added]
            self._write_entry(table.version() + 1, [*entry, *({"cdc": file} for file in files)])
        else:
            about |= {CHANGES_NOTE: _json(files)} if files else {}
            is_change = operation != "compact"
            actions: list[AddAction | RemoveAction] = [file.action(is_change=is_change) for file in added]
            actions += [file.removal(int(now * 1000), is_change=is_change) for file in removed]
            note = CommitProperties(about, app_transactions=[Transaction(app, end) for app, end in ends.items()])
            by = list(self.definition.partition_by)
            try:
                with store_errors(self.path):
                    table.create_write_transaction(actions, "append", table.schema(), by, commit_properties=note)
            except StoreError:
                self._delta = None
                if not any(one.get("penstock.write") == write for one in open_delta(self.path).history(RIVALS_MAX)):
                    raise  # else only the answer of the store was lost
        # The handle still shows the version before; `delta` updates it. The log is synced last: a commit that is lost is repeated.
        self.log.sync()
        self._commits += 1

    def _changes(self, table: DeltaTable, rows: pa.Table) -> list[dict[str, Any]]:
        """Write files of changes; returns the actions that name them."""
        layout = Layout(arrow_schema(table).append(FEED_COLUMNS.field(0)), self.definition.partition_by)
        files = data_files.write(self.path / CHANGES, layout, [rows])
        return [{**file.named(), "path": f"{CHANGES}/{file.path}", "dataChange": False} for file in files]

    def _write_entry(self, version: int, entry: Sequence[dict[str, Any]]) -> None:
        try:
            self.log.commit(version, entry)
        except FileExistsError:
            problem = f"another program wrote version {version} of table `{self.name}` at the same time"
            raise LakeError(problem, "write again; a table has one writer at a time") from None
        if version % CHECKPOINT_EVERY == 0:
            self.log.checkpoint()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def last_of_each(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """What a feed leaves after its last change of each key: rows to store, and rows to drop."""
    rows = rows.filter(pc.not_equal(rows.column(CHANGE_TYPE), PREIMAGE))
    stays = pc.not_equal(rows.column(CHANGE_TYPE), DELETE)
    # A row that one version deletes and inserts stays.
    order = pc.sort_indices(
        pa.table({"at": rows.column(COMMIT_VERSION), "stays": stays}), [("at", "ascending"), ("stays", "ascending")]
    )
    last = dict(zip(keys_of(rows.take(order), key), order.to_pylist(), strict=True))
    chosen = pa.array(last.values(), pa.int64())
    rows = rows.drop_columns([name for name in rows.column_names if name in FEED_COLUMNS.names]).take(chosen)
    stays = stays.take(chosen)
    return rows.filter(stays), rows.filter(pc.invert(stays))


class ChangeFeed:
    """The changes of a table by version, as files to read; constant columns are among their partition values."""

    def __init__(self, table: TableReader, *, has_updates: bool) -> None:
        self.table = table
        self._has_updates = has_updates
        """Whether updates and deletes are read; else they are refused, and rows that expire are not shown."""

    def files(self, versions: range) -> list[LiveFile]:
        """The files with the changes of some versions."""
        found: list[LiveFile] = []
        for version in versions:
            files = self._changed(version)
            if isinstance(files, str):
                raise self.unreadable(version, files)
            found += files
        return found

    def snapshot(self, version: int) -> list[LiveFile]:
        """All rows of a version, as inserted by it."""
        constants = {CHANGE_TYPE: INSERT, **_commit_of(version, self.table.log.commit_ms(version) or 0)}
        return [replace(file, partition=file.partition | constants) for file in self.table.files(version=version)]

    def unreadable(self, version: int, why: str) -> LakeError:
        """The error for a version that cannot be read any more."""
        return LakeError(
            f"the changes of version {version} of table `{self.table.name}` cannot be read: {why}",
            f"the first readable version is {self.first()}: with a new checkpoint, set `startingVersion`, or leave it out to begin"
            " with all rows of the table",
        )

    def first(self) -> int:
        """The first version from which all changes can be read; the next one if there is none."""
        kept = self.table.log.kept()
        for version in reversed(kept):
            files = self._changed(version)
            if isinstance(files, str) or not all((self.table.path / file.path).exists() for file in files):
                return version + 1
        return kept.start

    def _changed(self, version: int) -> list[LiveFile] | str:
        """The files with the changes of a version, or why they cannot be read."""
        try:
            actions = self.table.log.actions(version)
        except FileNotFoundError:
            return f"the table has versions {shown(self.table.log.kept())}"
        about, named = commit_info(actions), changes_in(actions)
        gone, new = (
            [one for action in actions if (one := action.get(kind)) and one["dataChange"]] for kind in ("remove", "add")
        )
        operation = about.get("penstock.operation")
        if operation == "erase" and gone:
            return "it erased rows"
        if gone or named:
            is_shown = self._has_updates and (bool(named) or _has_feed(open_delta(self.table.path, version)))
            if not is_shown and operation == "expire":
                return []
            if not self._has_updates:
                return "it updates or deletes rows, which needs the option `readChangeFeed`"
            if not is_shown:
                return "the change feed was off when it was written"
        commit, schema = _commit_of(version, int(about.get("timestamp", 0))), self.table.definition.schema
        found = []
        for kind, one in [({}, one) for one in named] or [
            *(({CHANGE_TYPE: DELETE}, one) for one in gone),
            *(({CHANGE_TYPE: INSERT}, one) for one in new),
        ]:
            texts = (one.get("partitionValues") or {}).items()
            values = {name: pa.scalar(text or None).cast(schema.field(name).type).as_py() for name, text in texts}
            found.append(LiveFile(one["path"], one["size"], 0, values | commit | kind, {}, {}, {}))
        return found


def _commit_of(version: int, at_ms: int) -> dict[str, Any]:
    return {COMMIT_VERSION: version, COMMIT_TIME: datetime.fromtimestamp(at_ms / 1000, UTC)}
