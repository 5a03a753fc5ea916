"""What it costs to fill every table from a journal of 10^5, 10^6 and 10^7 rows, in all and by table.

Each table is brought up from nothing by itself, as `penstock pipeline backfill` does it, with the heap and the compilers that the
pipeline has under `penstock up`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from penstock.bench.pipeline_processes import Found, Said, SparkJob, TimedRound, Tree
from penstock.bench.pipeline_rows import make_history
from penstock.bench.processes import BenchError
from penstock.ipc.pipeline import Pipeline

MIB = 1024 * 1024
WARM_ROWS = 20_000
"""A first pass over so many rows is not counted: it is mostly the JVM finding its feet."""
ALL = "all tables"


def measure(job: SparkJob) -> Iterator[Said]:
    """Every size once, smallest first, in one session."""
    from penstock.spark.pipeline.process import tables_only

    settings = replace(Pipeline(), master=job.master)
    warm = min(WARM_ROWS, *job.rows)
    yield Said(note=f"warming up with {warm:,} rows")
    with tables_only(make_history(Path(job.folder) / "warm", warm), settings) as ingest:
        ingest.backfill()
        for rows in sorted(job.rows):
            yield Said(note=f"making {rows:,} rows")
            data = make_history(Path(job.folder) / "growth", rows)
            took = {}
            for name, seconds in _fill(data, rows):
                yield Said(note=f"{rows:,} rows, {name}: {seconds:.1f} s")
                took[name] = seconds
            rss_mib = round(Tree(os.getpid()).rss_bytes() / MIB, 1)
            shutil.rmtree(data)
            for name, seconds in [*took.items(), (ALL, sum(took.values()))]:
                done = TimedRound(rows, round(seconds, 3), round(rows / seconds, 1))
                done.server_rss_mib = rss_mib if name == ALL else None
                words = "from nothing, a million rows of the journal at a time"
                yield Said(found=Found(f"growth, {rows:,} rows", name, "backfill", words, [done]))


def _fill(data: Path, rows: int) -> Iterator[tuple[str, float]]:
    """Fill every table in the running session, one after another; yields the seconds of each."""
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline import steps
    from penstock.spark.pipeline.ingest import Ingest
    from penstock.spark.source import location

    every = steps.built_in()
    ingest = Ingest(SparkSession.active(), location.open_one(data), data / "lake", every)
    try:
        for step in [step for together in steps.ordered(every) for step in together]:
            begun = time.perf_counter()
            end = ingest.backfill([step.table.name])
            if end != rows:
                raise BenchError(f"{step.table.name}: it was brought to row {end} of {rows}")
            yield step.table.name, time.perf_counter() - begun
    finally:
        ingest.close()
