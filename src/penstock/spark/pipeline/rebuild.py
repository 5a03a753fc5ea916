"""A table made anew from the whole journal, beside the old one, and swapped in by one commit."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from penstock.spark.pipeline.ingest import LostRowsError

if TYPE_CHECKING:
    from penstock.spark.pipeline.ingest import Ingest, OnProgress

WORKSHOP = "_rebuild"
"""Where tables are made, in the lake."""


def rebuild_table(
    ingest: Ingest, name: str, *, accept_loss: bool = False, on_progress: OnProgress | None = None
) -> int:
    """Make one table anew and put it in the place of the old one; returns the offset it reaches to.

    Readers see the old rows until the one commit that replaces them all. The writer's lock is only held for the last stretch and that commit, so a
    running pipeline hardly notices.
    """
    oldest = ingest.journal.bounds().first
    if oldest > 0 and not accept_loss:
        raise LostRowsError(
            f"rows 0 to {oldest - 1} are no longer kept, so a new `{name}` would begin at {oldest}; "
            "keep the old one, or say `--accept-loss`"
        )
    workshop = ingest.lake / WORKSHOP
    shutil.rmtree(workshop / name, ignore_errors=True)
    beside = ingest.beside(workshop, name)
    try:
        beside.backfill(on_progress=on_progress)
        table = ingest.table(name)
        fresh = beside.table(name)
        with table.writing():
            end = beside.backfill(on_progress=on_progress)  # what came meanwhile
            table.replace_with(fresh, [ingest.app])
    finally:
        beside.close()
        shutil.rmtree(workshop / name, ignore_errors=True)
    return end
