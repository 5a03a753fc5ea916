"""Build a table anew from the whole journal, next to the old one, and swap it in by one commit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.pipeline.ingest import LostRowsError

if TYPE_CHECKING:
    from penstock.ipc.pipeline import PipelineSection
    from penstock.spark.pipeline.ingest import Ingest, OnProgress

WORKSHOP = "_rebuild"
"""The directory in the lake in which new tables are built."""


@contextmanager
def tables_only(data: Path, settings: PipelineSection) -> Iterator[Ingest]:
    """An `Ingest` in a session of its own, without a query: for rebuilds and backfills while a pipeline may run."""
    from penstock.spark import location
    from penstock.spark.pipeline import steps
    from penstock.spark.pipeline.ingest import Ingest
    from penstock.spark.session import make_session, pipeline_conf

    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as scratch:
        journal = location.open_one(data)
        spark = make_session("penstock", master=settings.master, memory=settings.memory, conf=pipeline_conf(scratch))
        try:
            every = steps.built_in(settings.token_keys) + steps.load(spark, settings.tables)
            ingest = Ingest(spark, journal, data / "lake", every)
            try:
                yield ingest
            finally:
                ingest.close()
        finally:
            spark.stop()


def rebuild_table(
    ingest: Ingest, name: str, *, accept_loss: bool = False, on_progress: OnProgress | None = None
) -> int:
    """Build one table anew and replace the old one; returns the offset that it reaches.

    Readers see the old rows until the commit that replaces them all. The writer's lock is held only for the last rows and that commit,
    so a running pipeline waits only briefly.
    """
    oldest = ingest.journal.bounds().first
    if oldest > 0 and not accept_loss:
        raise LostRowsError(
            f"rows 0 to {oldest - 1} are no longer kept, so a new `{name}` would begin at {oldest}",
            "keep the old table, or pass `--accept-loss`",
        )
    workshop = ingest.lake / WORKSHOP
    shutil.rmtree(workshop / name, ignore_errors=True)
    copy = ingest.for_table(workshop, name)
    try:
        copy.backfill(on_progress=on_progress)
        table = ingest.table(name)
        fresh = copy.table(name)
        with table.writing():
            end = copy.backfill(on_progress=on_progress)  # rows that arrived in the meantime
            table.replace_with(fresh, [ingest.app])
    finally:
        copy.close()
        shutil.rmtree(workshop / name, ignore_errors=True)
    return end
