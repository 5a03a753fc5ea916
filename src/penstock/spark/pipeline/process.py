"""The pipeline's process: `python -m penstock.spark.pipeline.process`, a task on stdin, its status in `run/pipeline.json`.

Runs the queries `ingest` and `watch` until standard input is closed, or once. Exits with 1 after a failure that a restart may fix, and
with `EXIT_HALTED` after one that needs a person; the status says what to do.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.ipc.pipeline import BatchStatus, PipelineTask, QueryStatus
from penstock.ipc.processor_share import yield_processor
from penstock.journal.lake_location import lake_of, side_of
from penstock.spark.lake.locks import TableLock
from penstock.spark.pipeline.queries import CHECKPOINTS, READER, load_queries, start_query, stop_query
from penstock.spark.pipeline.reporter import Reporter, describe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.client.admin import Stage
    from penstock.spark.pipeline.ingest import Ingest
    from penstock.spark.pipeline.journal_group import JournalGroup, Positions
    from penstock.spark.pipeline.queries import UserQuery
    from penstock.spark.pipeline.watch import AlertWatch

POLL_S = 0.5
"""How often the process checks its queries."""
REST_S = 1.0
"""The same while no rows wait: each look costs a few calls into the JVM."""
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
        self._errors: dict[str, tuple[BaseException, str | None]] = {}
        """What each query's `on_batch` raised, and in which step: Spark passes on only the text of it."""

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
        from penstock.spark.pipeline.listener import ProgressListener

        reporter = self._reporter
        reporter.write()
        spark: SparkSession | None = None
        try:
            spark, group, ingest, watch = self._prepare()
            listener = ProgressListener(reporter.status, self._own)
            spark.streams.addListener(listener)
            reporter.status.ui = spark.sparkContext.uiWebUrl
            for name, work in (("ingest", ingest), ("watch", watch)):
                # Register both readers before either reads: retention must not remove rows that the other still needs.
                group.hold(f"{READER}-{name}", work.end)
            if self._task.once:
                return self._run_once(spark, group, ingest, watch)
            return self._run_on(spark, group, ingest, watch)
        except Exception as error:
            return reporter.fail(error)
        finally:
            if spark is not None:
                with suppress(Exception):  # the JVM may be gone
                    spark.streams.removeListener(
                        listener
                    )  # or events that arrive while Spark stops are printed as errors
                spark.stop()

    def _prepare(self) -> tuple[SparkSession, JournalGroup, Ingest, AlertWatch]:
        from penstock.spark.location import JournalLocation
        from penstock.spark.pipeline import steps
        from penstock.spark.pipeline.ingest import Ingest, check_kept
        from penstock.spark.pipeline.journal_group import open_group
        from penstock.spark.pipeline.own_tables import all_steps
        from penstock.spark.pipeline.watch import AlertWatch
        from penstock.spark.session import make_session, pipeline_conf

        settings = self._task.settings
        self._own = [] if self._task.once else load_queries(settings.queries)
        task = self._task
        places = [JournalLocation(path=str(Path(one).absolute())) for one in (task.data, *task.journals)]
        if task.read_url is not None:
            places = [JournalLocation(url=one, token=self._token()) for one in task.read_url.split(",")]
        group = open_group(places, task.cluster)
        check_kept(group, self._lake, [step.table for step in steps.built_in()])
        conf = pipeline_conf(self._scratch) | self._task.conf
        spark = make_session("penstock", master=settings.master, memory=settings.memory, conf=conf)
        every = all_steps(spark, settings)
        ingest = Ingest(spark, group, self._lake, every)
        ingest.check()
        steps.check_retention(every, settings.retention)
        watch = AlertWatch(spark, group, self._lake, settings.alerts, self._stage())
        ingest.retention = watch.retention = settings.retention
        return spark, group, ingest, watch

    def _stage(self) -> Stage | None:
        """Where alerts are enqueued; None without a server."""
        task = self._task
        if task.url is None:
            return None
        from penstock.client.admin import Stage

        return Stage(task.url, self._token())

    def _token(self) -> str | None:
        """The token of the task, else the operator's if the server runs on this data directory."""
        from penstock.client.address import operator_token

        task = self._task
        if task.token is not None or task.url is None:
            return task.token
        return operator_token(task.url, self._data / "run" / "endpoints.json")

    def _start(self, spark: SparkSession, group: JournalGroup, name: str, work: Ingest | AlertWatch) -> StreamingQuery:
        """Start a query from its checkpoint; without one, from the progress of its tables."""
        settings = self._task.settings
        status = self._reporter.status.queries.setdefault(name, QueryStatus())
        status.offset = sum(work.end.values())

        def on_batch(ends: Positions, number: int) -> None:
            start = time.monotonic()
            before = status.offset
            try:
                work.on_batch(ends, number)
                status.offset = sum(work.end.values())
                took_ms = int((time.monotonic() - start) * 1000)
                rows_read = max(status.offset - before, 0)
                status.ended(BatchStatus(time.time_ns() // 1000, rows_read, took_ms, work.times.ms, work.times.written))
                with work.times.of("compact"):  # between two batches, so that it never competes with one for a table
                    work.compact_tables()
            except Exception as error:
                self._errors[name] = (error, work.times.failed)
                raise

        pause_ms = settings.trigger_ms if name == "ingest" else settings.watch_ms
        checkpoint = side_of(self._lake) / CHECKPOINTS / name
        if len(group.journals) > 1 and name == "watch":
            # It may have left rows for later that its query had delivered: begin again at the progress of its tables.
            shutil.rmtree(checkpoint, ignore_errors=True)
        given = (spark, group, name, on_batch, checkpoint)
        pause = None if self._task.once else pause_ms
        return start_query(*given, start=work.end, rows_max=settings.batch_rows_max, pause_ms=pause)

    def _run_once(self, spark: SparkSession, group: JournalGroup, ingest: Ingest, watch: AlertWatch) -> int:
        """Bring every table up to the current end of the journal."""
        reporter = self._reporter
        works: list[tuple[str, Ingest | AlertWatch]] = [("ingest", ingest), ("watch", watch)]
        reporter.status.journal = group.cluster
        for name, work in works:
            reporter.status.reach(group.ends())
            reporter.write("running")
            query = self._start(spark, group, name, work)
            while query.isActive:
                time.sleep(POLL_S)
                reporter.status.reach(group.ends())
                reporter.write()
                if self._stop.is_set():
                    stop_query(query, time.monotonic() + STOP_S)
                    break
            if (error := query.exception()) is not None:
                return self._fail(name, error)
            if self._stop.is_set():
                break
        else:
            # The query only sees new rows: tables that are new, or were left behind, lack older ones.
            reporter.status.queries["ingest"].offset = ingest.backfill(goes_on=True)
            watch.on_clock(time.time_ns() // 1000)
            ingest.compact_tables()
            watch.compact_tables()
        self._report(ingest)
        if ingest.stopped:
            return reporter.fail(next(iter(ingest.stopped.values())))
        reporter.write("stopped")
        return 0

    def _run_on(self, spark: SparkSession, group: JournalGroup, ingest: Ingest, watch: AlertWatch) -> int:
        """Run until asked to stop, or until a query fails."""
        reporter = self._reporter
        ingest.level()
        self._check_own(spark, group)  # before the first batch of the tables, which takes long
        works: dict[str, Ingest | AlertWatch] = {"ingest": ingest, "watch": watch}
        queries = {name: self._start(spark, group, name, work) for name, work in works.items()}
        reporter.status.enter("running", time.time_ns() // 1000)
        reporter.status.journal = group.cluster
        pause_s = POLL_S
        while not self._stop.wait(pause_s):
            for name, query in queries.items():
                if not query.isActive:
                    return self._fail(name, query.exception() or RuntimeError(f"the query `{name}` ended by itself"))
            self._check_own(spark, group)
            ingest.catch_up_skipped()
            watch.on_clock(time.time_ns() // 1000)
            ends = group.ends()
            pause_s = REST_S if ingest.end == ends else POLL_S
            reporter.status.reach(ends)
            self._report(ingest)
            reporter.write()
        deadline = time.monotonic() + STOP_S  # for all of them together
        for query in (*queries.values(), *(own.query for own in self._own if own.query)):
            stop_query(query, deadline)
        reporter.write("stopped")
        return 0

    def _fail(self, name: str, error: BaseException) -> int:
        """Report why a query ended; returns the exit code."""
        cause, step = self._errors.get(name, (error, "trigger"))  # not in a batch: Spark's own work before or after it
        return self._reporter.fail(cause, name, step)

    def _report(self, ingest: Ingest) -> None:
        status = self._reporter.status
        status.behind = dict(ingest.behind)
        status.stopped = {name: str(error) for name, error in ingest.stopped.items()}
        status.expectations = ingest.expectations.report()

    def _check_own(self, spark: SparkSession, group: JournalGroup) -> None:
        """Start the user queries that are due, and report the state of each."""
        status, checkpoints = self._reporter.status, side_of(self._lake) / CHECKPOINTS
        for own in self._own:
            if why := own.check(time.monotonic(), spark, group.location_options, checkpoints, describe):
                status.fail_batch(time.time_ns() // 1000, own.name, None, why)
        status.own = {own.name: own.state for own in self._own}


def main() -> int:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=PipelineTask)
    yield_processor(task.settings.nice)
    runner = Runner(task, Reporter(Path(task.data), task.before))
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
