"""The pipeline's process: `python -m penstock.spark.pipeline.process`, a task on stdin, its state in `run/pipeline.json`.

Runs the two queries until standard input is closed, or once. What can be tried again ends with exit code 1; what only a person can
mend, with a code of its own, and the state says what to do.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.ipc.pipeline import (
    EXIT_HALTED,
    STATUS_FILE,
    PipelineSection,
    PipelineStatus,
    PipelineTask,
    QueryStatus,
)
from penstock.spark.lake.locks import TableLock
from penstock.spark.master import MasterError
from penstock.spark.pipeline.checkpoints import repair_checkpoint
from penstock.spark.pipeline.user_queries import load_queries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.client.staging import Stage
    from penstock.spark.pipeline.ingest import Ingest
    from penstock.spark.pipeline.user_queries import UserQuery
    from penstock.spark.pipeline.watch import AlertWatch
    from penstock.spark.source.location import SourceJournal

LOOK_S = 0.5
"""How often the process looks after its queries."""
STOP_S = 4.0
"""How long a batch may go on when the process is asked to stop."""
READER = "pipeline"
"""Under this name the journal keeps what the pipeline has not read."""
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -Xss4m"
"""Quick to warm up and small. Room for the code of many small plans, and deep stacks, as Spark matches long texts recursively."""
CHECKPOINTS = "_checkpoints"
QUERIES = ("ingest", "watch")
SHARD = 0
LOCK = "_pipeline"
"""The lock that the one pipeline of a lake holds."""

_CURES = {
    "the checkpoint is of journal": (
        "JournalChanged",
        "`penstock pipeline reset` forgets the checkpoints; tables keep the rows of the other journal",
    ),
    "were lost when its server crashed": (
        "JournalRewound",
        "`penstock pipeline rebuild` with the names of the tables makes them anew, then `penstock pipeline reset`",
    ),
    "DATA_LOSS": (
        "DataLoss",
        "`penstock pipeline reset --accept-loss` notes the gap and goes on from the oldest row that is kept",
    ),
    "JOURNAL_REWOUND": (
        "JournalRewound",
        "`penstock pipeline rebuild` with their names makes them anew from the journal as it is now",
    ),
    "StepError": ("BadTable", "correct the file that `pipeline.tables` names, then start again"),
    "QueryError": ("BadQuery", "correct the file that `pipeline.queries` names, then start again"),
    "KeysError": ("BadKeys", "correct the file that `pipeline.token_keys` names, then start again"),
    "java.JavaError": ("NoJava", "`penstock doctor` shows which Java was found"),
    "SchemaError": ("SchemaChanged", "`penstock pipeline rebuild TABLE` makes the table anew"),
}
"""Words in an error that tell what kind it is: its code, and what a person can do about it."""
_PLAN_CHANGES = ("STREAM_CHECKPOINT", "STATE_STORE", "checkpoint", "Checkpoint")


class Reporter:
    """Writes down what the pipeline says about itself."""

    def __init__(self, data: Path) -> None:
        self._file = data / "run" / STATUS_FILE
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.status = PipelineStatus("starting", pid=os.getpid())

    def write(self) -> None:
        self.status.at_us = time.time_ns() // 1000
        draft = self._file.with_name(f".{STATUS_FILE}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(self.status))
        os.replace(draft, self._file)

    def fail(self, error: BaseException, query: str | None = None) -> int:
        """Say what went wrong; returns the exit code."""
        text = _innermost(error)
        status = self.status
        code, hint = _diagnose(error, text, query)
        status.state = "halted" if code is not None else "failed"
        status.code = code or "PipelineFailed"
        status.message = f"query `{query}`: {text}" if query else text
        status.hint = hint or "run it again; when it keeps failing, the output of Spark says more"
        self.write()
        return EXIT_HALTED if code is not None else 1


def _innermost(error: BaseException) -> str:
    """The line of an error that says something: Spark wraps one in many others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line for word in (*_CURES, "Error: "))]
    return (telling[-1] if telling else lines[0] if lines else type(error).__name__)[:1_000]


def _diagnose(error: BaseException, text: str, query: str | None) -> tuple[str | None, str | None]:
    whole = f"{type(error).__module__}.{type(error).__name__}: {error}"
    for word, (code, hint) in _CURES.items():
        if word in whole:
            return code, hint
    if query is not None and any(word in text for word in _PLAN_CHANGES):
        hint = f"`penstock pipeline reset {query}` forgets its checkpoint; the tables keep their rows and their place"
        return "CheckpointUnusable", hint
    return None, error.hint if isinstance(error, MasterError) else None


class Runner:
    """A Spark session, the queries in it, and when they end."""

    def __init__(self, task: PipelineTask, reporter: Reporter) -> None:
        self._task = task
        self._reporter = reporter
        self._data = Path(task.data)
        self._lake = self._data / "lake"
        self._stop = threading.Event()
        self._scratch = ""
        self._own: list[UserQuery] = []

    def stop(self) -> None:
        """Have `run` end as soon as the batches under way are done."""
        self._stop.set()

    def run(self) -> int:
        """Do the task; returns the exit code."""
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
                # Both from the start: what one has read must not go before the other has.
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
        from penstock.spark.pipeline import steps
        from penstock.spark.pipeline.ingest import Ingest, check_kept
        from penstock.spark.pipeline.watch import AlertWatch
        from penstock.spark.session import make_session
        from penstock.spark.source import location

        settings = self._task.settings
        self._own = [] if self._task.once else load_queries(settings.queries)
        journal = location.open_one(self._data, self._task.read_url, self._token())
        check_kept(journal, self._lake, steps.built_in())
        conf = _conf(self._scratch, self._task.conf)
        spark = make_session("penstock", master=settings.master, memory=settings.memory, conf=conf)
        every = steps.built_in(settings.token_keys) + steps.load(spark, settings.tables)
        ingest = Ingest(spark, journal, self._lake, every)
        ingest.check()
        return spark, journal, ingest, AlertWatch(spark, journal, self._lake, settings.alerts, self._stage())

    def _stage(self) -> Stage | None:
        """The way back into the queues, where there is a server."""
        task = self._task
        if task.url is None:
            return None
        from penstock.client.staging import Stage

        return Stage(task.url, self._token())

    def _token(self) -> str | None:
        """The one that was given, else the operator's where the server runs on this very directory."""
        from penstock.client.address import operator_token

        task = self._task
        if task.token is not None or task.url is None:
            return task.token
        return operator_token(task.url, self._data / "run" / "endpoints.json")

    def _start(
        self, spark: SparkSession, journal: SourceJournal, name: str, work: Ingest | AlertWatch
    ) -> StreamingQuery:
        """Start a query where its tables are, or where its checkpoint is."""
        settings = self._task.settings
        status = self._reporter.status.queries.setdefault(name, QueryStatus())
        status.offset = work.end

        def on_batch(rows, number):  # type: ignore[no-untyped-def]
            start = time.monotonic()
            before = work.end
            work.on_batch(rows, number)
            status.offset = work.end
            status.batches += 1
            status.rows = max(work.end - before, 0)
            status.batch_ms = int((time.monotonic() - start) * 1000)
            status.at_us = time.time_ns() // 1000
            work.compact_tables()  # between two batches, when it is due

        pause_ms = settings.trigger_ms if name == "ingest" else settings.watch_ms
        repair_checkpoint(self._lake / CHECKPOINTS / name)
        return start_query(
            spark,
            journal,
            name,
            on_batch,
            self._lake / CHECKPOINTS / name,
            start=work.end,
            rows_max=settings.batch_rows_max,
            pause_ms=None if self._task.once else pause_ms,
        )

    def _run_once(
        self, spark: SparkSession, journal: SourceJournal, ingest: Ingest, watch: AlertWatch
    ) -> int:
        """Bring every table up to the end of the journal as it is now."""
        reporter = self._reporter
        works: list[tuple[str, Ingest | AlertWatch]] = [("ingest", ingest), ("watch", watch)]
        reporter.status.journal = journal.id
        for name, work in works:
            reporter.status.state = "running"
            reporter.status.end = journal.mark().end
            reporter.write()
            query = self._start(spark, journal, name, work)
            while query.isActive:
                time.sleep(LOOK_S)
                reporter.status.end = journal.mark().end
                reporter.write()
                if self._stop.is_set():
                    _stop(query, time.monotonic() + STOP_S)
                    break
            if (error := query.exception()) is not None:
                return reporter.fail(error, name)
            if self._stop.is_set():
                break
        else:
            # Tables that are new, or were left behind.
            reporter.status.queries["ingest"].offset = ingest.backfill()
            watch.on_clock(time.time_ns() // 1000)
            ingest.compact_tables()
            watch.compact_tables()
        reporter.status.state = "stopped"
        reporter.status.behind = dict(ingest.behind)
        reporter.write()
        return 0

    def _run_on(self, spark: SparkSession, journal: SourceJournal, ingest: Ingest, watch: AlertWatch) -> int:
        """Run until told to stop, or until a query fails."""
        reporter = self._reporter
        ingest.level()
        self._look_after_own(spark, journal)  # before the first batch of the tables, which takes long
        queries = {
            "ingest": self._start(spark, journal, "ingest", ingest),
            "watch": self._start(spark, journal, "watch", watch),
        }
        reporter.status.state = "running"
        reporter.status.journal = journal.id
        while not self._stop.wait(LOOK_S):
            for name, query in queries.items():
                if not query.isActive:
                    error = query.exception() or RuntimeError(f"the query `{name}` ended by itself")
                    return reporter.fail(error, name)
            self._look_after_own(spark, journal)
            ingest.rejoin()
            watch.on_clock(time.time_ns() // 1000)
            reporter.status.end = journal.mark().end
            reporter.status.behind = dict(ingest.behind)
            reporter.write()
        deadline = time.monotonic() + STOP_S  # for all of them together
        for query in (*queries.values(), *(own.query for own in self._own if own.query)):
            _stop(query, deadline)
        reporter.status.state = "stopped"
        reporter.write()
        return 0

    def _look_after_own(self, spark: SparkSession, journal: SourceJournal) -> None:
        """Start what is due of the queries that users have, and say how they are."""
        for own in self._own:
            own.look(time.monotonic(), spark, journal.location.options, self._lake / CHECKPOINTS, _innermost)
        self._reporter.status.own = {own.name: own.state for own in self._own}


def start_query(
    spark: SparkSession,
    journal: SourceJournal,
    name: str,
    on_batch: Callable[[DataFrame, int], None],
    checkpoint: Path,
    *,
    start: int,
    rows_max: int,
    pause_ms: int | None,
) -> StreamingQuery:
    """Start a query that hands the journal's rows on, batch by batch: what is there now, or on and on with pauses."""
    reader = (
        spark.readStream.format("penstock")
        .options(**journal.location.options)
        .option("startingOffsets", f'{{"v":1,"journals":{{"{journal.id}":{{"{SHARD}":{start}}}}}}}')
        .option("maxOffsetsPerTrigger", rows_max)
        .option("includePipeline", "true")  # left out where tables are made, so that offsets stay dense here
        .option("reader", f"{READER}-{name}")
    )
    writer = reader.load().writeStream.queryName(name).foreachBatch(on_batch)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if pause_ms is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{pause_ms} milliseconds").start()


@contextmanager
def tables_only(data: Path, settings: PipelineSection) -> Iterator[Ingest]:
    """What bringing tables forward needs, without a query: for work beside a pipeline."""
    from penstock.spark.pipeline import steps
    from penstock.spark.pipeline.ingest import Ingest
    from penstock.spark.session import make_session
    from penstock.spark.source import location

    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as scratch:
        journal = location.open_one(data)
        spark = make_session(
            "penstock", master=settings.master, memory=settings.memory, conf=_conf(scratch, {})
        )
        try:
            every = steps.built_in(settings.token_keys) + steps.load(spark, settings.tables)
            ingest = Ingest(spark, journal, data / "lake", every)
            try:
                yield ingest
            finally:
                ingest.close()
        finally:
            spark.stop()


def _conf(scratch: str, more: Mapping[str, str]) -> dict[str, str]:
    return {
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        **more,
    }


def _stop(query: StreamingQuery, deadline: float) -> None:
    """End a query between two batches; one that takes too long is repeated by the next run."""
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.02)
    query.stop()


def main() -> int:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=PipelineTask)
    os.nice(task.settings.nice)
    data = Path(task.data)
    runner = Runner(task, Reporter(data))
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
    os._exit(code)  # Spark's threads have nothing left to do, and one may be blocked reading stdin
