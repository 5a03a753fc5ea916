"""The lake for people at a Spark session: every table as a view, and the journal's history as Parquet."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.journal.tables import table_names
from penstock.spark.lake.catalog import EVENTS, open_table
from penstock.spark.lake.schemas import TABLES
from penstock.spark.lake.snapshots import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = "penstock-data"
_ENTRY = "penstock_lake_"
"""Names in Spark's catalog begin with this."""


def tables(spark: SparkSession, data: str | Path = DATA) -> list[str]:
    """Make every table of a data directory a view of the same name; returns the names.

    A view shows what is in the table when a query begins. Call it again for tables that came later.
    """
    lake = _lake(data)
    names = table_names(lake)
    for name in names:
        _register(spark, lake, name)
    return names


def _register(spark: SparkSession, lake: Path, name: str) -> None:
    """A view that looks into the table's log whenever it is asked.

    Spark lists a Python source's files once for each DataFrame, so a view made of one would never change. A view made of SQL
    text is read again each time, and the text can name a table of the catalog with options. That entry only has the columns:
    its own path leads nowhere, so dropping it harms nothing.
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
    """Sealed rows of the journal, read by Spark's own Parquet reader: the quickest way through much of it.

    Rows from `since` up to, not including, `until`, and from offset `first` up to, not including, `end`; files outside are not
    opened. Rows that are not sealed yet, about the last minute's, are not among them.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    lake = _lake(data)
    start, stop = _moment(since, "since"), _moment(until, "until")
    schema = from_arrow_schema(TABLES[EVENTS].schema)
    if EVENTS not in table_names(lake):
        raise LakeError(
            f"nothing is sealed in `{data}` yet; `penstock log seal` does it now, the server every minute"
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
            f'there is no data directory `{path}`; name it, as in `tables(spark, "path/to/penstock-data")`'
        )
    return path / "lake"


def _moment(told: datetime | str | None, name: str) -> datetime | None:
    if told is None:
        return None
    try:
        moment = datetime.fromisoformat(told) if isinstance(told, str) else told
    except ValueError:
        raise LakeError(f"`{name}` is `{told}`; write it as `2026-01-31T12:00:00Z`") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
