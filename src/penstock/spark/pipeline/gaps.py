"""Rows that retention removed before a table had them: refused, or recorded as a gap so that the pipeline can continue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.journal.delta_log import table_names
from penstock.journal.segments import SHARD
from penstock.spark import location
from penstock.spark.errors import HintedError
from penstock.spark.lake.catalog import open_table
from penstock.spark.lake.schemas import EVENTS, GAPS, TableDefinition
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.location import SourceJournal


class LostRowsError(HintedError):
    """The journal no longer has rows that a table needs."""

    code = "DataLoss"


class TablesAheadError(LostRowsError):
    """The journal has fewer rows than a table."""

    code = "JournalRewound"


def check_kept(journal: SourceJournal, lake: Path, tables: Sequence[TableDefinition]) -> None:
    """Refuse to begin if a table needs rows that are gone. Needs no Spark, which is slow to start."""
    oldest = journal.bounds().first
    for table in tables:
        stored = LakeTable(lake, table).progress(f"{journal.id}/{SHARD}")
        if stored is not None:
            check_not_gone(table.name, stored, oldest)


def check_not_gone(name: str, first: int, oldest: int) -> None:
    """Refuse a table that needs row `first` when `oldest` is the oldest row kept."""
    if first < oldest:
        raise LostRowsError(
            f"DATA_LOSS: the table `{name}` needs rows {first} to {oldest - 1}, which are no longer kept",
            "`penstock pipeline reset --accept-loss` records the gap and continues from the oldest row",
        )


def accept(data: Path) -> dict[str, tuple[int, int]]:
    """Move every table that needs lost rows on to the oldest row kept; returns the rows that each table lacks."""
    journal = location.open_one(data)
    oldest = journal.bounds().first
    app = f"{journal.id}/{SHARD}"
    lake = data / "lake"
    skipped: dict[str, tuple[int, int]] = {}
    for name in table_names(lake):  # user tables too
        if name in (EVENTS.name, GAPS.name):
            continue
        table = open_table(lake, name)
        stored = table.progress(app)
        if stored is not None and stored < oldest:
            with table.writing():
                table.append(table.definition.schema.empty_table(), {app: Progress(stored, oldest)})
            skipped[name] = (stored, oldest)
    if skipped:
        gaps = LakeTable(lake, GAPS)
        with gaps.writing():
            record_gap(gaps, journal.id, app, min(first for first, _ in skipped.values()), oldest)
    return skipped


def record_gap(gaps: LakeTable, journal: str, app: str, first: int, end: int) -> None:
    """Record that rows `first` to `end - 1` were never read; an empty range records that nothing was missed so far."""
    rows = [{"journal": journal, "from_offset": first, "to_offset": end - 1, "reason": "retention"}]
    gaps.append(pa.Table.from_pylist(rows if end > first else [], GAPS.schema), {app: Progress(first, end)})
