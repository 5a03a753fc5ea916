"""A load inside Spark: tables that grow with their journal, what a batch costs at each size, and how fast they catch up."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.bench.harness.load import LoadJob, LoadReport, announce, percentiles_ms
from penstock.bench.harness.result import BenchCell, BenchError, BenchRound
from penstock.bench.pipeline.live import ProcessTree
from penstock.ipc.pipeline import PipelineSection
from penstock.journal.lake_location import lake_of
from penstock.spark import location
from penstock.testing.history import GrowingHistory, growing_history, make_history

if TYPE_CHECKING:
    from penstock.spark.pipeline.ingest import Ingest

WARM_ROWS = 20_000  # the first fill is not counted: it is mostly the warm-up of the JVM
ALL, ONE_BATCH, CATCH_UP = "all tables", "one batch", "growth, catch-up"
HISTORY_RATE = 200  # rows a second, by their times and while the tables catch up
BATCHES, BATCH_ROWS = 5, 100
BEHIND_ROWS_MAX = 1_000_000
SHORTER = 0.9  # a round of catching up that leaves more than this share of the one before is the last


class SparkJob(LoadJob, kw_only=True):
    """A load inside Spark."""

    folder: str
    rows: list[int]
    rounds: int
    master: str
    queries: list[str]


def growth(job: SparkJob) -> LoadReport:
    """Let a journal and its tables grow to several sizes, with the pipeline's own settings, and measure at each."""
    from penstock.spark.pipeline.rebuild import tables_only

    sizes = sorted(job.rows)
    announce(note=f"warming up with {WARM_ROWS:,} rows")
    warm = make_history(Path(job.folder) / "warm", WARM_ROWS)
    with (
        tables_only([warm], None, replace(PipelineSection(), master=job.master)) as ingest,
        growing_history(Path(job.folder) / "growth", sizes[-1] * 2, HISTORY_RATE) as history,
    ):
        ingest.backfill()
        tables = GrowingTables(Path(job.folder) / "growth", history)
        try:
            for rows in sizes:
                tables.grow_to(rows)
            tables.catch_up(min(sizes[-1], BEHIND_ROWS_MAX))
        finally:
            tables.close()
    return LoadReport(len(sizes))


class GrowingTables:
    """A journal, and the tables that follow it in the running session."""

    def __init__(self, data: Path, history: GrowingHistory) -> None:
        self._data, self._history = data, history
        self._journal = location.open_one(data)
        self._ingest: Ingest | None = None
        self._end = 0
        self._took: dict[str, float] = {}
        self._processes = ProcessTree(os.getpid())
        self._cpu_s = 0.0

    def grow_to(self, rows: int) -> None:
        """Fill every table by itself up to so many rows, then take small batches, and report both."""
        from penstock.spark.pipeline import steps

        announce(note=f"making {rows:,} rows")
        self._history.grow(rows)
        ingest = self._ingest = self._ingest or self._open()
        fresh, before = rows - self._end, sum(self._took.values())
        self._cpu_s -= self._processes.cpu_s()
        for name in [step.table.name for step in steps.ordered(steps.built_in())]:
            begun = time.perf_counter()
            if ingest.backfill([name]) != rows:
                raise BenchError(f"{name}: it was not filled to row {rows}")
            self._took[name] = self._took.get(name, 0.0) + time.perf_counter() - begun
        self._cpu_s += self._processes.cpu_s()
        ingest.compact_tables()
        million_s = (sum(self._took.values()) - before) / fresh * 1e6
        batches, batches_cpu_s = self._small_batches()
        for name, seconds in [*self._took.items(), (ALL, sum(self._took.values()))]:
            done = BenchRound.timed(rows, seconds)
            if name == ALL:
                done = BenchRound.timed(rows, seconds, self._processes.rss_bytes(), {"server": self._cpu_s})
                done.million_s, done.files = round(million_s, 2), self._count_files()
            announce(cell=BenchCell(f"growth, {rows:,} rows", name, "backfill", "a million rows at a time", [done]))
        took_s = sum(batches) / 1e9
        done = BenchRound.timed(
            len(batches), took_s, None, {"server": batches_cpu_s}, latency_ms=percentiles_ms(batches)
        )
        words = f"{BATCH_ROWS} rows; one continues an old conversation"
        announce(cell=BenchCell(f"growth, {rows:,} rows", ONE_BATCH, "foreachBatch", words, [done]))

    def catch_up(self, rows: int) -> None:
        """Fall behind, then catch up while more rows come at the rate of the history."""
        assert self._ingest is not None
        announce(note=f"falling {rows:,} rows behind")
        self._history.grow(self._end + rows)
        ended = threading.Event()

        def write() -> None:
            while not ended.wait(BATCH_ROWS / HISTORY_RATE):
                self._history.commit(BATCH_ROWS)

        first, begun = self._end, time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            traffic = pool.submit(write)
            try:
                left, before = rows, 2 * rows
                while left > HISTORY_RATE and left < SHORTER * before:
                    before = left
                    self._ingest.backfill()
                    left = self._history.end - self._filled()
                if left > rows:
                    raise BenchError(f"the tables do not catch up: they are {left:,} rows behind")
            finally:
                ended.set()
            traffic.result()
        done = BenchRound.timed(self._filled() - first, time.perf_counter() - begun)
        words = f"from {rows:,} rows behind to {left:,}, while {HISTORY_RATE} rows a second come"
        announce(cell=BenchCell(CATCH_UP, ALL, "backfill", words, [done]))

    def _small_batches(self) -> tuple[list[int], float]:
        """Batches as the pipeline takes them every second, after one that is not counted: nanoseconds, and CPU of all."""
        assert self._ingest is not None
        took: list[int] = []
        cpu_s = 0.0
        for number in range(1 + BATCHES):
            cpu_s = self._processes.cpu_s() if number == 1 else cpu_s
            self._end = self._history.commit(BATCH_ROWS, talk=number)
            begun = time.perf_counter_ns()
            self._ingest.on_batch({self._journal.id: self._end})
            took.append(time.perf_counter_ns() - begun)
        return took[1:], self._processes.cpu_s() - cpu_s

    def _filled(self) -> int:
        """The rows that every table has."""
        assert self._ingest is not None
        return sum(self._ingest.start_offset().values())

    def _count_files(self) -> int:
        from penstock.spark.lake.catalog import summary

        return sum(summary(lake_of(self._data), name).files for name in self._took)

    def _open(self) -> Ingest:
        from pyspark.sql import SparkSession

        from penstock.spark.pipeline import steps
        from penstock.spark.pipeline.ingest import Ingest

        return Ingest(SparkSession.active(), self._journal, lake_of(self._data), steps.built_in())

    def close(self) -> None:
        if self._ingest is not None:
            self._ingest.close()
