"""The lake in a Spark session: every table as a view, and the journal's history as Parquet."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.journal.delta_log import table_names
from penstock.spark.lake.catalog import EVENTS, open_table
from penstock.spark.lake.schemas import TABLES
from penstock.spark.lake.snapshots import LakeError, parse_moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
