"""The tables of a lake directory, and their size, version and progress."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from penstock.journal.delta_log import TABLE_NAME, table_names
from penstock.spark.lake.schemas import TABLES, TableDefinition
from penstock.spark.lake.snapshots import LakeError, arrow_schema, check_readable, live_files
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake.table_reader import Commit

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
    )


def _offset(name: str, commit: Commit) -> int | None:
    """The journal offset of a commit. The numbers of other applications are batches of a query, not offsets."""
    if isinstance(commit.end, dict):
        return max((end for app, end in commit.end.items() if _JOURNAL.fullmatch(app)), default=None)
    is_journal = name == EVENTS or (commit.app is not None and _JOURNAL.fullmatch(commit.app))
    return commit.end if is_journal and isinstance(commit.end, int) else None
