"""Rows that retention removed before a table had them: noted as a gap, so that the pipeline can go on behind them."""

from __future__ import annotations

from pathlib import Path

from penstock.journal.tables import table_names
from penstock.spark.lake.catalog import open_table
from penstock.spark.lake.schemas import EVENTS, GAPS
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.pipeline.ingest import note_gap
from penstock.spark.source import location


def accept(data: Path) -> dict[str, tuple[int, int]]:
    """Move every table that needs rows which are gone to the oldest row that is kept; returns what each misses."""
    journal = location.open_one(data)
    oldest = journal.bounds().first
    app = f"{journal.id}/0"
    lake = data / "lake"
    skipped: dict[str, tuple[int, int]] = {}
    for name in table_names(lake):  # those of users too
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
            note_gap(gaps, journal.id, app, min(first for first, _ in skipped.values()), oldest)
    return skipped
