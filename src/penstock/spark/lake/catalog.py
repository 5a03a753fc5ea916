"""The tables of a lake directory: their size, version and progress, and in a Spark session a view of each."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.journal.delta_log import TABLE_NAME, table_names
from penstock.journal.lake_location import LakePath, ObjectPath, find_delta, lake_of, open_delta
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


def open_table(lake: LakePath, name: str) -> LakeTable:
    """Open an existing table, built in or a user's."""
    path = lake / name
    if not TABLE_NAME.fullmatch(name) or find_delta(path) is None:
        there = ", ".join(f"`{one}`" for one in table_names(lake)) or "none yet"
        raise LakeError(f"there is no table `{name}` in `{lake}`", f"there are: {there}")
    stored = stored_table(path)
    return LakeTable(lake, TABLES[name]) if name in TABLES else stored


def stored_table(path: LakePath) -> LakeTable:
    """The Delta table in a directory, with the columns that it has."""
    table = open_delta(path)
    check_readable(table, path.name)
    partition_by = tuple(table.metadata().partition_columns)
    return LakeTable(path.parent, TableDefinition(path.name, arrow_schema(table), (), "append", partition_by))


def summary(lake: LakePath, name: str) -> Summary:
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
_OWN_CATALOG = "spark.sql.catalog.spark_catalog"
"""Replaces Spark's own catalog of tables, which `builtin` is."""


def tables(spark: SparkSession, data: str | Path = DATA) -> list[str]:
    """Create a view for each table of a data directory, with the name of the table.

    Parameters
    ----------
    spark
        The session to create the views in, classic or Spark Connect.
    data
        The data directory of the server. Over Connect, an absolute path that does not exist here is one of the server's machine.

    Returns
    -------
    list of str
        The names of the views.

    Notes
    -----
    A view shows the rows that the table has when a query starts. Call it again for new tables. In a session with a persistent catalog,
    such as Hive's, a view shows the rows of its first query until you call it again.
    """
    found = _ask(spark, data, _listing)
    is_kept = bool(found) and (
        spark.conf.get("spark.sql.catalogImplementation") != "in-memory"
        or spark.conf.get(_OWN_CATALOG, "builtin") not in ("", "builtin")
    )
    try:
        for name, path, digest, credentials in found:
            _register(
                spark,
                name,
                {"path": path} | _credentials_option(credentials),
                None if is_kept or "://" in path else f"{_ENTRY}{name}_{digest}",
            )
    except Exception as error:
        condition = getattr(error, "getCondition", None)
        if condition is None or condition() != "DATA_SOURCE_NOT_FOUND":
            raise
        raise LakeError("Spark does not find the format `penstock_delta`", NO_FORMAT) from error
    return [name for name, *_ in found]


NO_FORMAT = (
    "the Python of its workers has no Penstock: `import penstock.spark` before the session starts, or set the variable"
    " PYSPARK_PYTHON to a Python that has it; a Connect server needs it in its own environment"
)


def _register(spark: SparkSession, name: str, options: Mapping[str, str], entry: str | None) -> None:
    """Create a view that reads the table's log at each query.

    Spark lists the files of a Python source once for each DataFrame, so a view of a DataFrame or of `USING` would never change. A view of
    SQL text is planned at each query, and the text can name a catalog table with options. That entry only provides the columns. It
    exists as long as Spark's in-memory catalog; a persistent catalog would keep it, so there the view is one of `USING`.
    """
    given = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in options.items()}
    text = ", ".join(f"{key} = '{value}'" for key, value in given.items())
    if entry is None:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{name}` USING penstock_delta OPTIONS ({text})")
        return
    full, path = f"spark_catalog.default.`{entry}`", given["path"]
    spark.sql(f"CREATE TABLE IF NOT EXISTS {full} USING penstock_delta LOCATION '{path}'")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{name}` AS SELECT * FROM {full} WITH ({text})")


def _listing(lake: LakePath) -> list[tuple[str, ...]]:
    """Name, path, a digest of path and columns, and the file of credentials of each table: an entry in the catalog never has outdated columns."""
    found: list[tuple[str, ...]] = []
    for name in table_names(lake):
        path = str(lake / name)
        columns = f"{path} {arrow_schema(open_delta(lake / name))}"
        digest = hashlib.blake2b(columns.encode(), digest_size=8).hexdigest()
        found.append((name, path, digest, _credentials(lake)))
    return found


def _ask(
    spark: SparkSession, data: str | Path, function: Callable[[LakePath], list[tuple[str, ...]]]
) -> list[tuple[str, ...]]:
    """The result of a function of the lake's directory: called here if the data directory exists here, else in a task over Connect."""
    is_remote = type(spark).__module__.startswith("pyspark.sql.connect")
    if os.path.isdir(data) or not is_remote or not os.path.isabs(data):
        return function(_lake(data))
    place = str(data)

    def answer(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"row": function(_lake(place))}, pa.schema({"row": pa.list_(pa.string())}))

    rows = spark.range(0, 1, 1, 1).mapInArrow(answer, "row array<string>").collect()
    return [tuple(row.row) for row in rows]


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

    from penstock.spark.lake import pushdown

    start = None if since is None else parse_moment(since, "since")
    stop = None if until is None else parse_moment(until, "until")
    schema = from_arrow_schema(TABLES[EVENTS].schema)
    bounds = {"recorded_at": (start, stop), "offset": (first, None if end is None else end - 1)}
    [(base, credentials), *files] = _ask(spark, data, partial(_sealed_files, bounds))
    if "://" in base:  # Spark's own reader has no client for object stores without further jars
        only = _credentials_option(credentials) | {"within": pushdown.format_bounds(bounds)}
        rows = spark.read.format("penstock_delta").options(**only).load(base)
    elif not files:
        return spark.createDataFrame([], schema)
    else:
        rows = spark.read.schema(schema).option("basePath", base).parquet(*(path for (path,) in files))
    if start is not None:
        rows = rows.where(f.col("recorded_at") >= f.lit(start))
    if stop is not None:
        rows = rows.where(f.col("recorded_at") < f.lit(stop))
    if first is not None:
        rows = rows.where(f.col("offset") >= first)
    return rows if end is None else rows.where(f.col("offset") < end)


def _sealed_files(bounds: Mapping[str, tuple[Any, Any]], lake: LakePath) -> list[tuple[str, ...]]:
    """The directory of the table `events`, and its files that may contain rows within bounds."""
    if EVENTS not in table_names(lake):
        raise LakeError(
            f"nothing is sealed in `{lake.parent}` yet",
            "run `penstock log seal`, or wait a minute for the server to do it",
        )
    table = open_table(lake, EVENTS)
    return [
        (str(table.path), _credentials(lake)),
        *sorted((str(table.path / file.path),) for file in table.files(bounds)),
    ]


def _credentials(lake: LakePath) -> str:
    """The file of credentials of a lake; empty without one."""
    return (lake.credentials or "") if isinstance(lake, ObjectPath) else ""


def _credentials_option(file: str) -> dict[str, str]:
    return {"credentials": file} if file else {}


def _lake(data: str | Path) -> LakePath:
    path = Path(os.path.abspath(data))
    if not path.is_dir():
        raise LakeError(
            f"there is no data directory `{path}`", 'pass it, as in `tables(spark, "path/to/penstock-data")`'
        )
    return lake_of(path)
