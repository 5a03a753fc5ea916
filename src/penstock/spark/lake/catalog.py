"""The tables of a lake directory: their size, version and progress, and in a Spark session a view of each."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from penstock.journal.delta_log import TABLE_NAME, table_names
from penstock.spark.lake.schemas import TABLES, TableDefinition
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake.table_reader import Commit, LakeError, arrow_schema, check_readable, live_files, parse_moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS = "events"
"""Written and compacted by sealing, not by the pipeline."""
_JOURNAL = re.compile(r".+/\d+")
"""Application ids that are a journal and its shard."""


@dataclass(frozen=True)
class Summary:
    """The size, version and progress of a table."""

    table: str
    rows: int
    files: int
    bytes: int
    version: int
    offset: int | None
    """The end of the journal rows that it covers; None if no commit says so."""
    at_ms: int
    """Time of the last commit."""
    retention: str | None = None
    """How long rows stay, if not for ever."""


def open_table(lake: Path, name: str) -> LakeTable:
    """Open an existing table, built in or a user's."""
    path = lake / name
    if not TABLE_NAME.fullmatch(name) or not DeltaTable.is_deltatable(str(path)):
        there = ", ".join(f"`{one}`" for one in table_names(lake)) or "none yet"
        raise LakeError(f"there is no table `{name}` in `{lake}`", f"there are: {there}")
    stored = stored_table(path)
    return LakeTable(lake, TABLES[name]) if name in TABLES else stored


def stored_table(path: Path) -> LakeTable:
    """The Delta table in a directory, with the columns that it has."""
    table = DeltaTable(str(path))
    check_readable(table, path.name)
    partition_by = tuple(table.metadata().partition_columns)
    return LakeTable(path.parent, TableDefinition(path.name, arrow_schema(table), (), "append", partition_by))


def summary(lake: Path, name: str) -> Summary:
    """The summary of a table, from its log alone."""
    table = open_table(lake, name)
    delta = table.delta()
    if delta is None:
        raise LakeError(f"table `{name}` was removed in the meantime")
    files = live_files(delta)
    history = table.history()
    return Summary(
        name,
        sum(file.rows for file in files),
        len(files),
        sum(file.size for file in files),
        delta.version(),
        next((end for commit in history if (end := _offset(name, commit)) is not None), None),
        history[0].at_ms if history else 0,
        table.retention(),
    )


def _offset(name: str, commit: Commit) -> int | None:
    """The journal offset of a commit. The numbers of other applications are batches of a query, not offsets."""
    if isinstance(commit.end, dict):
        return max((end for app, end in commit.end.items() if _JOURNAL.fullmatch(app)), default=None)
    is_journal = name == EVENTS or (commit.app is not None and _JOURNAL.fullmatch(commit.app))
    return commit.end if is_journal and isinstance(commit.end, int) else None


DATA = "penstock-data"
_ENTRY = "penstock_lake_"
"""Prefix of the names in Spark's catalog."""


def tables(spark: SparkSession, data: str | Path = DATA) -> list[str]:
    """Create a view for each table of a data directory, with the name of the table.

    Parameters
    ----------
    spark
        The session to create the views in.
    data
        The data directory of the server.

    Returns
    -------
    list of str
        The names of the views.

    Notes
    -----
    A view shows the rows that the table has when a query starts. Call it again for new tables.
    """
    lake = _lake(data)
    names = table_names(lake)
    for name in names:
        _register(spark, lake, name)
    return names


def _register(spark: SparkSession, lake: Path, name: str) -> None:
    """Create a view that reads the table's log at each query.

    Spark lists the files of a Python source once for each DataFrame, so a view of a DataFrame would never change. A view of SQL text is
    planned at each query, and the text can name a catalog table with options. That catalog entry only provides the columns: its
    path does not exist, so dropping it removes no data.
    """
    entry = f"`{_ENTRY}{name}`"
    schema = spark.read.format("penstock_delta").load(str(lake / name)).schema
    spark.sql(f"DROP TABLE IF EXISTS {entry}")
    spark.catalog.createTable(entry, path=str(lake / "_views" / name), source="penstock_delta", schema=schema)
    path = str(lake / name).replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS SELECT * FROM {entry} WITH (path = '{path}')")


def history(
    spark: SparkSession,
    data: str | Path = DATA,
    *,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    first: int | None = None,
    end: int | None = None,
) -> DataFrame:
    """Read the sealed rows of the journal with Spark's own Parquet reader, the fastest way to read many.

    Parameters
    ----------
    since, until
        Times of the first row and, exclusive, the last: a datetime or a text such as `2026-01-31T12:00:00Z`.
    first, end
        Offsets of the first row and, exclusive, the last.

    Returns
    -------
    DataFrame
        Rows of the table `events`. Rows that are not sealed yet, about the last minute, are not included.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    lake = _lake(data)
    start = None if since is None else parse_moment(since, "since")
    stop = None if until is None else parse_moment(until, "until")
    schema = from_arrow_schema(TABLES[EVENTS].schema)
    if EVENTS not in table_names(lake):
        raise LakeError(
            f"nothing is sealed in `{data}` yet", "run `penstock log seal`, or wait a minute for the server to do it"
        )
    table = open_table(lake, EVENTS)
    bounds = {"recorded_at": (start, stop), "offset": (first, None if end is None else end - 1)}
    paths = sorted(str(table.path / file.path) for file in table.files(bounds))
    if not paths:
        return spark.createDataFrame([], schema)
    rows = spark.read.schema(schema).option("basePath", str(table.path)).parquet(*paths)
    if start is not None:
        rows = rows.where(f.col("recorded_at") >= f.lit(start))
    if stop is not None:
        rows = rows.where(f.col("recorded_at") < f.lit(stop))
    if first is not None:
        rows = rows.where(f.col("offset") >= first)
    return rows if end is None else rows.where(f.col("offset") < end)


def _lake(data: str | Path) -> Path:
    path = Path(os.path.abspath(data))
    if not path.is_dir():
        raise LakeError(
            f"there is no data directory `{path}`", 'pass it, as in `tables(spark, "path/to/penstock-data")`'
        )
    return path / "lake"
