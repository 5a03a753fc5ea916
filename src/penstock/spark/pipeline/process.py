"""The pipeline's process: `python -m penstock.spark.pipeline.process`, a task on stdin, its status in `run/pipeline.json`.

Runs the queries `ingest` and `watch` until standard input is closed, or once. Exits with 1 after a failure that a restart may fix, and
with `EXIT_HALTED` after one that needs a person; the status says what to do.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.ipc.pipeline import PipelineTask, QueryStatus
from penstock.journal.lake_location import lake_of, side_of
from penstock.spark.lake.locks import TableLock
from penstock.spark.pipeline.queries import (
    CHECKPOINTS,
    READER,
    load_queries,
    repair_checkpoint,
    start_query,
    stop_query,
)
from penstock.spark.pipeline.reporter import Reporter, describe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.client.staging import Stage
    from penstock.spark.location import SourceJournal
    from penstock.spark.pipeline.ingest import Ingest
    from penstock.spark.pipeline.queries import UserQuery
    from penstock.spark.pipeline.watch import AlertWatch

POLL_S = 0.5
"""How often the process checks its queries."""
STOP_S = 4.0
"""How long a running batch may continue when the process is asked to stop."""
LOCK = "_pipeline"
"""The lock that makes sure that a lake has one pipeline."""


class Runner:
    """A Spark session and the queries that run in it."""

    def __init__(self, task: PipelineTask, reporter: Reporter) -> None:
        self._task = task
        self._reporter = reporter
        self._data = Path(task.data)
        self._lake = lake_of(self._data)
        self._stop = threading.Event()
        self._scratch = ""
        self._own: list[UserQuery] = []
        self._errors: dict[str, Exception] = {}
        """What each query's `on_batch` raised: Spark passes on only the text of it."""

    def stop(self) -> None:
        """Make `run` return once the running batches are done."""
        self._stop.set()

    def run(self) -> int:
        """Run the task; returns the exit code."""
        with TableLock(self._lake, LOCK).held(waits=False) as is_ours:
            if not is_ours:
                hint = "stop it first, or wait for it with `penstock pipeline wait`"
                print(f"another process runs the pipeline of `{self._data}`; {hint}", file=sys.stderr)
                return 1
            with tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True) as scratch:
                self._scratch = scratch
                return self._run()

    def _run(self) -> int:
        reporter = self._reporter
        reporter.write()
        spark: SparkSession | None = None
        try:
            spark, journal, ingest, watch = self._prepare()
            reporter.status.ui = spark.sparkContext.uiWebUrl
            for name, work in (("ingest", ingest), ("watch", watch)):
                # Register both readers before either reads: retention must not remove rows that the other still needs.
                journal.hold(f"{READER}-{name}", work.end)
            if self._task.once:
                return self._run_once(spark, journal, ingest, watch)
            return self._run_on(spark, journal, ingest, watch)
        except Exception as error:
            return reporter.fail(error)
        finally:
            if spark is not None:
                spark.stop()

    def _prepare(self) -> tuple[SparkSession, SourceJournal, Ingest, AlertWatch]:
        from penstock.spark import location
        from penstock.spark.pipeline import steps
        from penstock.spark.pipeline.ingest import Ingest, check_kept
        from penstock.spark.pipeline.watch import AlertWatch
        from penstock.spark.session import make_session, pipeline_conf

        settings = self._task.settings
        self._own = [] if self._task.once else load_queries(settings.queries)
        journal = location.open_one(self._data, self._task.read_url, self._token())
        check_kept(journal, self._lake, [step.table for step in steps.built_in()])
        conf = pipeline_conf(self._scratch) | self._task.conf
        spark = make_session("penstock", master=settings.master, memory=settings.memory, conf=conf)
        every = steps.built_in(settings.token_keys) + steps.load(spark, settings.tables)
        ingest = Ingest(spark, journal, self._lake, every)
        ingest.check()
        steps.check_retention(every, settings.retention)
        watch = AlertWatch(spark, journal, self._lake, settings.alerts, self._stage())
        ingest.retention = watch.retention = settings.retention
        return spark, journal, ingest, watch

    def _stage(self) -> Stage | None:
        """Where alerts are enqueued; None without a server."""
        task = self._task
        if task.url is None:
            return None
        from penstock.client.staging import Stage

        return Stage(task.url, self._token())

    def _token(self) -> str | None:
        """The token of the task, else the operator's if the server runs on this data directory."""
        from penstock.client.address import operator_token

        task = self._task
        if task.token is not None or task.url is None:
            return task.token
        return operator_token(task.url, self._data / "run" / "endpoints.json")

    def _start(
        self, spark: SparkSession, journal: SourceJournal, name: str, work: Ingest | AlertWatch
    ) -> StreamingQuery:
        """Start a query from its checkpoint; without one, from the progress of its tables."""
        settings = self._task.settings
        status = self._reporter.status.queries.setdefault(name, QueryStatus())
        status.offset = work.end

        def on_batch(rows, number):  # type: ignore[no-untyped-def]
            start = time.monotonic()
            before = work.end
            try:
                work.on_batch(rows, number)
                status.offset = work.end
                status.batches += 1
                status.rows = max(work.end - before, 0)
                status.batch_ms = int((time.monotonic() - start) * 1000)
                status.at_us = time.time_ns() // 1000
                work.compact_tables()  # between two batches, so that it never competes with one for a table
            except Exception as error:
                self._errors[name] = error
                raise

        pause_ms = settings.trigger_ms if name == "ingest" else settings.watch_ms
        repair_checkpoint(side_of(self._lake) / CHECKPOINTS / name)
        return start_query(
            spark,
            journal,
            name,
            on_batch,
            side_of(self._lake) / CHECKPOINTS / name,
            start=work.end,
            rows_max=settings.batch_rows_max,
            pause_ms=None if self._task.once else pause_ms,
        )

    def _run_once(self, spark: SparkSession, journal: SourceJournal, ingest: Ingest, watch: AlertWatch) -> int:
        """Bring every table up to the current end of the journal."""
        reporter = self._reporter
        works: list[tuple[str, Ingest | AlertWatch]] = [("ingest", ingest), ("watch", watch)]
        reporter.status.journal = journal.id
        for name, work in works:
            reporter.status.end = journal.mark().end
            reporter.write("running")
            query = self._start(spark, journal, name, work)
            while query.isActive:
                time.sleep(POLL_S)
                reporter.status.end = journal.mark().end
                reporter.write()
                if self._stop.is_set():
                    stop_query(query, time.monotonic() + STOP_S)
                    break
            if (error := query.exception()) is not None:
                return reporter.fail(self._errors.get(name, error), name)
            if self._stop.is_set():
                break
        else:
            # The query only sees new rows: tables that are new, or were left behind, lack older ones.
            reporter.status.queries["ingest"].offset = ingest.backfill()
            watch.on_clock(time.time_ns() // 1000)
            ingest.compact_tables()
            watch.compact_tables()
        reporter.status.behind = dict(ingest.behind)
        reporter.write("stopped")
        return 0

    def _run_on(self, spark: SparkSession, journal: SourceJournal, ingest: Ingest, watch: AlertWatch) -> int:
        """Run until asked to stop, or until a query fails."""
        reporter = self._reporter
        ingest.level()
        self._check_own(spark, journal)  # before the first batch of the tables, which takes long
        queries = {
            "ingest": self._start(spark, journal, "ingest", ingest),
            "watch": self._start(spark, journal, "watch", watch),
        }
        reporter.status.enter("running", time.time_ns() // 1000)
        reporter.status.journal = journal.id
        while not self._stop.wait(POLL_S):
            for name, query in queries.items():
                if not query.isActive:
                    error = query.exception() or RuntimeError(f"the query `{name}` ended by itself")
                    return reporter.fail(self._errors.get(name, error), name)
            self._check_own(spark, journal)
            ingest.catch_up_skipped()
            watch.on_clock(time.time_ns() // 1000)
            reporter.status.end = journal.mark().end
            reporter.status.behind = dict(ingest.behind)
            reporter.write()
        deadline = time.monotonic() + STOP_S  # for all of them together
        for query in (*queries.values(), *(own.query for own in self._own if own.query)):
            stop_query(query, deadline)
        reporter.write("stopped")
        return 0

    def _check_own(self, spark: SparkSession, journal: SourceJournal) -> None:
        """Start the user queries that are due, and report the state of each."""
        for own in self._own:
            own.check(time.monotonic(), spark, journal.location.options, side_of(self._lake) / CHECKPOINTS, describe)
        self._reporter.status.own = {own.name: own.state for own in self._own}


def main() -> int:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=PipelineTask)
    os.nice(task.settings.nice)
    data = Path(task.data)
    runner = Runner(task, Reporter(data, task.before))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: runner.stop())

    def follow_parent() -> None:
        sys.stdin.buffer.read()
        runner.stop()

    threading.Thread(target=follow_parent, daemon=True).start()
    return runner.run()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a normal exit would wait for Spark's threads, one of which may block on stdin
