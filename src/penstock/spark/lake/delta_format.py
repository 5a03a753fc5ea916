"""The format `penstock_delta`: Delta tables in a directory, read and written by Spark without a jar.

Spark's own `format("delta")` needs a jar that does not exist for this version of Spark. Here tasks read and write Parquet; the driver
reads the table's log once for a read, and commits once for a write, so a write is atomic.

Reading, `spark.read.format("penstock_delta").load(path)`:

- `versionAsOf`: a version by number; `timestampAsOf`: the version at a time, such as `2026-01-31T12:00:00Z`.
- `columns`: names separated by commas; other columns are not read.
- `pushdown`: whether files that the filters of the query exclude are skipped; see `pushdown.py`.
- `within`: bounds as JSON, such as `{"offset": [10, null]}`: files without rows within them are skipped. The query filters the rows.
- `readChangeFeed`: read the changes of versions `startingVersion` to `endingVersion`, with the columns of `commits.FEED_COLUMNS` too.

Reading, `spark.readStream.format("penstock_delta").load(path)`, with `columns` and `readChangeFeed`, else only inserted rows:

- `startingVersion`: the first version, or `latest` for the next one. Without it the stream begins with all rows of the table.
- `maxVersionsPerTrigger`: versions in one batch.

Writing, `df.write.format("penstock_delta").mode("append" or "overwrite").save(path)`, and likewise `writeStream`:

- `mergeKeys`: key columns; a row replaces the stored row with the same key. Rows of a change feed, with `_change_type` and
  `_commit_version`, apply their changes: the last one of each key replaces or deletes the stored row.
- `partitionBy`: partition columns of a new table.
- `appId`, and for batch writes `version`: a repeated version changes nothing, and a lower one is refused. A stream needs an `appId` of
  its own; its version is the number of the batch.
- `onOldBatch`: `skip` leaves out the rows of a lower version instead.

A missing table is created. New columns are added, null in the existing rows; no column is ever retyped.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.journal.lake_location import LakePath, find_delta, parse_lake, remove_tree
from penstock.spark.errors import unknown_option
from penstock.spark.lake import data_files, delta_readers, pushdown, rewrite
from penstock.spark.lake.catalog import stored_table
from penstock.spark.lake.commits import COMMIT_VERSION, FEED_COLUMNS, ChangeFeed, Progress, last_of_each
from penstock.spark.lake.data_files import Layout, LiveFile, SchemaError, StagedFile
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake.table_reader import LakeError, parse_moment, selected
from penstock.spark.location import absolute, is_object_store, storage_url

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_STAGING = ".staging-"
_CHANGES = "readChangeFeed"
_FEED = (_CHANGES, "startingVersion")
_WRITE = ("mergeKeys", "partitionBy", "appId", "onOldBatch")
_OPTIONS = {
    "a batch read": ("columns", "pushdown", "within", "versionAsOf", "timestampAsOf", *_FEED, "endingVersion"),
    "a stream": ("columns", *_FEED, "maxVersionsPerTrigger"),
    "a batch write": (*_WRITE, "version"),
    "a write of a stream": _WRITE,
}
"""The options of each use, besides `path` and `credentials`."""


class PenstockDelta(DataSource):
    """The data source behind `format("penstock_delta")`; the module lists the options."""

    @classmethod
    def name(cls) -> str:
        return "penstock_delta"

    def schema(self) -> StructType:
        if "provider" not in self.options:  # a table in a catalog has properties of its own
            _check_options(self.options)
        return from_arrow_schema(_columns(self.options, _existing(self.options), _version(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_options(self.options, "a batch read")
        if pushdown.is_asked(self.options, _CHANGES):
            table, last = _existing(self.options), _whole(self.options, "endingVersion")
            last = delta_readers.newest_version(table) if last is None else last
            versions = range(_whole(self.options, "startingVersion") or 0, last + 1)
            return delta_readers.DeltaReader(table, versions, schema)
        kind = delta_readers.FilteredDeltaReader if pushdown.is_asked(self.options) else delta_readers.DeltaReader
        bounds = pushdown.parse_bounds(self.options.get("within", "{}"))
        return kind(_existing(self.options), _version(self.options), schema, bounds)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = self.options
        if _version(options) is not None or "endingVersion" in options:
            raise LakeError("a stream reads every version from `startingVersion` on", "leave other versions out")
        _check_options(options, "a stream")
        given = options.get("startingVersion")
        words = {None: delta_readers.SNAPSHOT, "latest": delta_readers.LATEST}
        start = words[given] if given in words else _whole(options, "startingVersion") or 0
        count = _whole(options, "maxVersionsPerTrigger", least=1) or delta_readers.VERSIONS_MAX
        feed = ChangeFeed(_existing(options), has_updates=pushdown.is_asked(options, _CHANGES))
        return delta_readers.ChangeStreamReader(feed, start, count, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        _check_options(self.options, "a batch write")
        return DeltaBatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        _check_options(self.options, "a write of a stream")
        if overwrite:
            raise LakeError(
                "a stream cannot overwrite its table with every batch",
                "use the output mode `append`, with the option `mergeKeys` to replace rows",
            )
        return DeltaStreamWriter(self.options, schema)


@dataclass
class StagedWrite(WriterCommitMessage):
    """The files that one task wrote."""

    files: list[StagedFile]
    folder: str | None = None
    """For a merge: the staging directory, relative to the table."""


@dataclass
class DeltaTarget:
    """The table and the kind of write; created on the driver, sent to the tasks."""

    table: LakeTable
    keys: tuple[str, ...]
    staged: pa.Schema
    """The columns of the table; with those of a change feed, its changes are applied."""
    overwrites: bool = False
    app: str | None = None
    accepts_old: bool = False
    """Whether rows of a batch older than the newest are left out; else they are refused."""
    folder: str = field(default_factory=lambda: _STAGING + uuid.uuid4().hex)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> StagedWrite:
        """Write the rows of a task; runs on executors. Rows of a merge are staged apart: the driver merges them."""
        if not self.keys:
            return StagedWrite(self.table.stage(batches))
        schema = self.staged
        parts = (data_files.fit(pa.Table.from_batches([one]), schema, self.keys, self.table.name) for one in batches)
        return StagedWrite(data_files.write(self.table.path / self.folder, Layout(schema), parts), self.folder)

    def commit(self, messages: Sequence[WriterCommitMessage | None], version: int | None) -> bool:
        """Commit the staged rows, once."""
        staged = [message for message in messages if isinstance(message, StagedWrite)]
        progress = {} if self.app is None or version is None else {self.app: Progress(version, version)}
        if self.keys:
            rows, dropped = self._staged_rows(staged), None
            if self.staged != self.table.definition.schema:
                rows, dropped = last_of_each(rows, self.keys)
            is_new = self.table.merge(rows, progress, dropped)
            self._clear(staged)
        else:
            files = [file for message in staged for file in message.files]
            is_new = (self.table.overwrite if self.overwrites else self.table.append)(files, progress)
        if not (is_new or self.accepts_old):
            self._refuse_old(version or 0)
        if is_new and (self.table.version() or 0) % rewrite.EVERY_COMMITS == 0:
            self.table.compact(is_forced=True)
        return is_new

    def _refuse_old(self, version: int) -> None:
        """Refuse a number below the newest: a repeated batch is the newest, so these rows are new and were not written."""
        newest = None if self.app is None else self.table.progress(self.app)
        if newest is not None and version < newest:
            problem = f"batch {version} of `{self.app}` is older than {newest}, the newest that the table `{self.table.name}` has"
            raise LakeError(
                f"{problem}: its rows were not written",
                "count `version` up with each write; a stream with a new checkpoint needs a new `appId`, or"
                ' `option("onOldBatch", "skip")` if the table already has those rows',
            )

    def _staged_rows(self, staged: Sequence[StagedWrite]) -> pa.Table:
        # By the folder of the tasks: Spark commits a batch of a stream with a writer that it makes anew.
        names = [f"{message.folder}/{file.path}" for message in staged for file in message.files]
        files = [LiveFile(name, 0, 0, {}, {}, {}, {}) for name in names]
        parts = [data_files.read(self.table.path, file, self.staged) for file in files]
        return pa.concat_tables([self.staged.empty_table(), *parts])

    def _clear(self, staged: Sequence[StagedWrite]) -> None:
        for folder in {message.folder for message in staged if message.folder is not None}:
            remove_tree(self.table.path / folder)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files."""
        staged = [message for message in messages if isinstance(message, StagedWrite)]
        self._clear([*staged, StagedWrite([], self.folder)])  # of tasks that failed, too
        self.table.discard(file for message in staged if message.folder is None for file in message.files)


class DeltaBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame in one commit."""

    def __init__(self, options: MutableMapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._target = _target(options, schema)
        self._target.overwrites = overwrite
        self._version = _whole(options, "version")
        if (self._version is None) != (self._target.app is None):
            raise LakeError(
                "the options `appId` and `version` go together: the version counts the writes of that application"
            )
        if overwrite and self._target.keys:
            raise LakeError(
                "`mergeKeys` and the mode `overwrite` contradict each other", "use the mode `append` to merge"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._target.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._target.commit(messages, self._version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._target.abort(messages)


class DeltaStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each in one commit, each once."""

    def __init__(self, options: MutableMapping[str, str], schema: StructType) -> None:
        self._target = _target(options, schema)
        if self._target.app is None:
            raise LakeError(
                "a stream to `penstock_delta` needs the option `appId`, a name of its own that never changes: under it "
                "the table records the batches that it has"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._target.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._target.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._target.abort(messages)


def _check_options(options: Mapping[str, str], use: str | None = None) -> None:
    """Refuse an option that does not exist, or that a use would ignore."""
    every = dict.fromkeys(["path", "credentials", *(name for names in _OPTIONS.values() for name in names)])
    if (problem := unknown_option(options, every)) is not None:
        raise LakeError(*problem)
    known = {name.lower() for name in every}
    allowed = {"path", "credentials", *(name.lower() for name in _OPTIONS.get(use or "", every))}
    given = {name.lower() for name in options} & known
    for name in every:
        if name.lower() in given - allowed:
            raise LakeError(f"`{name}` does not apply to {use}", "leave it out")


def _path(options: Mapping[str, str]) -> LakePath:
    """The location of the table, absolute: executors have another working directory."""
    given = options.get("path")
    if not given:
        raise LakeError(
            "`penstock_delta` needs the table's directory: `.load(path)`, `.save(path)` or `.start(path)`",
            "Spark does not pass the LOCATION or the OPTIONS of a CREATE TABLE to a source in Python: use"
            " CREATE TEMPORARY VIEW … USING penstock_delta OPTIONS (path '…'), or SELECT … FROM table WITH (path = '…')",
        )
    text = storage_url(given)
    is_url = is_object_store(text)
    return parse_lake(
        text if is_url else absolute(text.removeprefix("file://").removeprefix("file:")), options.get("credentials")
    )


def _existing(options: Mapping[str, str]) -> LakeTable:
    path = _path(options)
    if find_delta(path) is None:
        raise LakeError(
            f"there is no Delta table in `{path}`",
            "`penstock lake ls` lists those of a data directory, and writing with `penstock_delta` creates one",
        )
    return stored_table(path)


def _columns(options: Mapping[str, str], table: LakeTable, version: int | None) -> pa.Schema:
    schema = table.schema(version)
    if pushdown.is_asked(options, _CHANGES):
        schema = pa.schema([*schema, *FEED_COLUMNS])
    return selected(schema, _names(options, "columns") or schema.names, table.name)


def _version(options: Mapping[str, str]) -> int | None:
    version, moment = _whole(options, "versionAsOf"), options.get("timestampAsOf")
    if moment is None:
        return version
    if version is not None:
        raise LakeError("`versionAsOf` and `timestampAsOf` both select a version", "leave one out")
    return _existing(options).version_at(int(parse_moment(moment, "timestampAsOf").timestamp() * 1000))


def _target(options: Mapping[str, str], schema: StructType) -> DeltaTarget:
    path = _path(options)
    keys, by = _names(options, "mergeKeys"), _names(options, "partitionBy")
    fields = {one.name: one.with_nullable(True) for one in to_arrow_schema(schema, timezone="UTC")}
    feed: tuple[pa.Field, ...] = ()
    if keys and {rewrite.CHANGE_TYPE, COMMIT_VERSION} <= fields.keys():
        feed = tuple(fields.pop(name) for name in FEED_COLUMNS.names if name in fields)
    if find_delta(path) is not None:
        stored = _existing(options)
        if by and by != stored.definition.partition_by:
            raise LakeError(
                f"table `{path.name}` is partitioned by {', '.join(stored.definition.partition_by) or 'nothing'}, and "
                f"that cannot change",
                "leave `partitionBy` out",
            )
        by = stored.definition.partition_by
        known = stored.schema()
        for name, one in fields.items():
            if name in known.names:
                want = known.field(name)
                if not data_files.is_same_kind(one.type, want.type):
                    raise SchemaError(
                        f"column `{name}` of table `{path.name}` is {want.type}, and the rows have {one.type}",
                        "cast it, columns are never retyped",
                    )
                fields[name] = want
    for kind, names in (("mergeKeys", keys), ("partitionBy", by)):
        missing = [name for name in names if name not in fields]
        if missing:
            raise SchemaError(f"column `{missing[0]}` of `{kind}` is missing", f"the rows have {', '.join(fields)}")
    definition = TableDefinition(path.name, pa.schema(list(fields.values())), keys, "merge" if keys else "append", by)
    table = LakeTable(path.parent, definition)
    table.check_definition()
    old = options.get("onOldBatch", "fail")
    if old not in ("fail", "skip"):
        raise LakeError(f"`onOldBatch` is `{old}`", "use `fail` or `skip`")
    staged = pa.schema([*definition.schema, *feed])
    return DeltaTarget(table, keys, staged, app=options.get("appId"), accepts_old=old == "skip")


def _names(options: Mapping[str, str], option: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in options.get(option, "").split(",") if name.strip())


def _whole(options: Mapping[str, Any], option: str, least: int = 0) -> int | None:
    given = options.get(option)
    if given is None:
        return None
    if not given.isdecimal() or int(given) < least:
        raise LakeError(f"`{option}` is `{given}`", f"use a whole number of {least} or more")
    return int(given)
