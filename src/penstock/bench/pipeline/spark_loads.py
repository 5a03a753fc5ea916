"""A load inside Spark: the fill of every table from nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from penstock.bench.harness.load import LoadJob, LoadReport, announce
from penstock.bench.harness.result import MIB, BenchCell, BenchError, BenchRound
from penstock.bench.pipeline.live import ProcessTree
from penstock.ipc.pipeline import PipelineSection
from penstock.testing.history import make_history

WARM_ROWS = 20_000  # the first fill is not counted: it is mostly the warm-up of the JVM
ALL = "all tables"


class SparkJob(LoadJob, kw_only=True):
    """A load inside Spark."""

    folder: str
    rows: list[int]
    rounds: int
    master: str
    queries: list[str]


def growth(job: SparkJob) -> LoadReport:
    """Fill every table by itself, with the pipeline's own settings, from journals of several sizes, smallest first."""
    from penstock.spark.pipeline.ingest import tables_only

    warm = min(WARM_ROWS, *job.rows)
    announce(note=f"warming up with {warm:,} rows")
    history = make_history(Path(job.folder) / "warm", warm)
    with tables_only([history], None, replace(PipelineSection(), master=job.master)) as ingest:
        ingest.backfill()
        for rows in sorted(job.rows):
            announce(note=f"making {rows:,} rows")
            data = make_history(Path(job.folder) / "growth", rows)
            took = {}
            for name, seconds in _fill(data, rows):
                announce(note=f"{rows:,} rows, {name}: {seconds:.1f} s")
                took[name] = seconds
            rss = ProcessTree(os.getpid()).rss_bytes()
            shutil.rmtree(data)
            for name, seconds in [*took.items(), (ALL, sum(took.values()))]:
                done = BenchRound.timed(rows, seconds)
                done.server_rss_mib = round(rss / MIB, 1) if name == ALL else None
                words = "from nothing, a million rows of the journal at a time"
                announce(cell=BenchCell(f"growth, {rows:,} rows", name, "backfill", words, [done]))
    return LoadReport(len(job.rows))


def _fill(data: Path, rows: int) -> Iterator[tuple[str, float]]:
    """Fill every table in the running session, one after another; yields the seconds of each."""
    from pyspark.sql import SparkSession

    from penstock.spark import location
    from penstock.spark.pipeline import steps
    from penstock.spark.pipeline.ingest import Ingest

    every = steps.built_in()
    ingest = Ingest(SparkSession.active(), location.open_one(data), data / "lake", every)
    try:
        for step in [step for together in steps.ordered(every) for step in together]:
            begun = time.perf_counter()
            end = ingest.backfill([step.table.name])
            if end != rows:
                raise BenchError(f"{step.table.name}: it was filled to row {end} of {rows}")
            yield step.table.name, time.perf_counter() - begun
    finally:
        ingest.close()
