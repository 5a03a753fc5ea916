"""Rebuilding a table from the whole journal next to the old one, which one commit replaces."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.ipc.pipeline import WORKSHOP
from penstock.journal.lake_location import lake_of, remove_tree
from penstock.spark.location import JournalLocation
from penstock.spark.pipeline.ingest import Ingest, LostRowsError, OnProgress
from penstock.spark.pipeline.journal_group import app_of, open_group
from penstock.spark.pipeline.own_tables import all_steps

if TYPE_CHECKING:
    from penstock.ipc.pipeline import PipelineSection


@contextmanager
def tables_only(data: Sequence[Path], cluster: str | None, settings: PipelineSection) -> Iterator[Ingest]:
    """An `Ingest` in a session of its own, without a query: for rebuilds and backfills while a pipeline may run."""
    from penstock.spark.session import make_session, pipeline_conf

    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as scratch:
        group = open_group([JournalLocation(path=str(one.absolute())) for one in data], cluster)
        spark = make_session("penstock", master=settings.master, memory=settings.memory, conf=pipeline_conf(scratch))
        try:
            with closing(Ingest(spark, group, lake_of(data[0]), all_steps(spark, settings))) as ingest:
                yield ingest
        finally:
            spark.stop()


def rebuild_table(
    ingest: Ingest, name: str, *, accept_loss: bool = False, on_progress: OnProgress | None = None
) -> int:
    """Build one table anew and replace the old one; returns the offset that it reaches.

    Readers see the old rows until the commit that replaces them all. The writer's lock is held only for the last rows and that commit,
    so a running pipeline waits only briefly.
    """
    oldest = max(ingest.group.firsts().values())
    if oldest > 0 and not accept_loss:
        raise LostRowsError(
            f"rows 0 to {oldest - 1} are no longer kept, so a new `{name}` would begin at {oldest}",
            "keep the old table, or pass `--accept-loss`",
        )
    table = ingest.table(name)
    others = set() if table.version() is None else set(table.rows(["journal"]).column("journal").to_pylist())
    others -= {*ingest.group.journals, ingest.group.cluster}
    if others and not accept_loss:
        raise LostRowsError(
            f"the table `{name}` has rows of other journals, {', '.join(sorted(others))}, which a new one would lack",
            "name their data directories with `--journal`, or pass `--accept-loss`",
        )
    workshop = ingest.lake / WORKSHOP
    remove_tree(workshop / name)
    copy = ingest.for_table(workshop, name)
    try:
        copy.backfill(on_progress=on_progress)
        fresh = copy.table(name)
        with table.writing():
            end = copy.backfill(on_progress=on_progress)  # rows that arrived in the meantime
            table.replace_with(fresh, map(app_of, ingest.group.journals))
    finally:
        copy.close()
        remove_tree(workshop / name)
    return end
