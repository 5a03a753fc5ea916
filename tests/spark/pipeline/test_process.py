"""The pipeline as a process: next to a server, killed, halted, repaired, and run once by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
import pytest

from penstock.client.admin import RemoteJournal
from penstock.ipc.pipeline import PipelineSection, PipelineTask
from penstock.journal.retention import Retention
from penstock.spark import location
from penstock.spark.pipeline import process, steps
from penstock.spark.pipeline.batch import StepTimes
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.journal_group import JournalGroup
from penstock.spark.pipeline.reporter import Reporter
from tests.integration.serving import Http
from tests.server_process import ServerProcess, environment
from tests.spark.journal_builder import JournalBuilder, content, work
from tests.spark.shared_pipeline import status, stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.location import SourceJournal

PATIENCE_S = 120.0
"""Spark starts in five seconds on a quiet machine and in thirty on a busy one."""
POLL_S = 0.05
STREAM = "loop"
"""A stream that no page and no agent of the demo uses."""
CONFIG = """
pipeline:
  memory: 512m
  nice: 0
  alerts:
    to: ops
    rules:
      - {kind: dead_letters, id: dead}
"""


class CompactionFails:
    """Work of a query whose tables cannot be compacted."""

    end: ClassVar = {"j": 7}
    times = StepTimes()

    def on_batch(self, _rows: object, _number: int) -> None: ...

    def compact_tables(self) -> None:
        raise OSError("the disk is full")


def test_a_failed_compaction_is_reported_as_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark passes on only the text of what `on_batch` raises, so the process keeps the exception. Needs no JVM."""
    started: list[Callable[..., None]] = []
    monkeypatch.setattr(process, "start_query", lambda *given, **_: started.append(given[3]))
    runner = process.Runner(PipelineTask(str(tmp_path), PipelineSection()), Reporter(tmp_path))
    group = JournalGroup({"j": cast("SourceJournal", None)})
    runner._start(None, group, "ingest", CompactionFails())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="the disk is full"):
        started[0](None, 0)
    assert runner._fail("ingest", RuntimeError("what Spark says")) == 1
    status = runner._reporter.status
    assert status.message == "query `ingest`, step `compact`: OSError: the disk is full"
    [failed] = status.failed
    assert (failed.query, failed.table, failed.step, failed.cause) == (
        "ingest",
        "",
        "compact",
        "OSError: the disk is full",
    )
    [batch] = status.queries["ingest"].recent
    assert (status.queries["ingest"].offset, list(batch.steps)) == (7, ["compact"])


def until(check: Callable[[], Any], what: str) -> Any:
    """Ask again and again, as a person at a terminal would."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := check()):
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)
    return found


def command(*words: str, check: bool = True, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def rows_of(data: Path, query: str) -> list[dict[str, Any]]:
    shown = command("sql", query, "--data", str(data), "--json").stdout
    return [msgspec.json.decode(line) for line in shown.splitlines()]


def recomputed(spark: SparkSession, data: Path, lake: Path) -> dict[str, Any]:
    """The tables of a journal made in one go, in another place."""
    ingest = Ingest(spark, location.open_one(data), lake, steps.built_in())
    ingest.backfill()
    ingest._record_first_gap()
    ingest.close()
    return content(lake)


def alert_about(http: Http, subject: str) -> dict[str, Any] | None:
    """The alert about a stream, among those that are sent to the agent."""
    found = http.pull("agents/ops/inbox", wait_ms=1_000, max=100)
    return next((one for one in found if one["deliver"]["payload"].get("subject") == subject), None)


@pytest.mark.promise("Spark: pipeline", "a killed driver changes nothing, and alerts arrive as envelopes")
def test_an_alert_comes_back_through_the_door_as_work(demo_pipeline: ServerProcess) -> None:
    server = demo_pipeline
    http = Http(server.http)
    for number in range(20):
        http.enqueue(STREAM, f"a{number}")
    [taken, *_] = http.pull(STREAM, max=20)
    lease = {"id": "a0", "leaseId": taken["leaseId"], "op": "term", "reason": "hopeless"}
    http.post("/v1/settle", lease)
    # The alert comes back through the door as work for an agent.
    alert = until(lambda: alert_about(http, STREAM), "an alert")
    assert alert["deliver"]["type"] == "alert.firing"
    assert alert["deliver"]["from"] == "pipeline/penstock"
    assert alert["deliver"]["payload"]["subject"] == STREAM
    http.post("/v1/settle", {"id": alert["deliver"]["id"], "leaseId": alert["leaseId"], "op": "ack"})
    command("pipeline", "wait", "--data", str(server.data), "--timeout", str(PATIENCE_S))
    [minute] = rows_of(server.data, f"select sum(enqueued) as n from queue_minutes where channel = '{STREAM}'")
    assert minute == {"n": 20}
    assert rows_of(server.data, "select count(*) as n from envelopes where sender like 'pipeline/%'") == [{"n": 0}]
    until(lambda: "addBatch" in status(server.data).queries["ingest"].trigger, "a report of Spark")
    own = until(lambda: status(server.data).own_queries.get("own-collector"), "a report of the demo's own query")
    assert own.batches >= 1 and "addBatch" in own.recent[-1].steps
    text = http.get("/metrics").body.decode()
    assert 'penstock_pipeline_batches_total{query="own-collector"}' in text
    assert "penstock_pipeline_up 1.0" in text and 'penstock_pipeline_offset{query="ingest"}' in text
    assert http.get("/health").json["pipeline"] == "running"


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "a killed driver changes nothing, and alerts arrive as envelopes")
def test_a_driver_killed_in_a_batch_is_restarted_and_changes_nothing(
    demo_pipeline: ServerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    server = demo_pipeline
    http = Http(server.http)
    first = status(server.data)
    end = RemoteEnd(server)
    http.enqueue(STREAM, *(f"b{number}" for number in range(100)))
    until(lambda: status(server.data).offset < end(), "a batch under way")
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: status(server.data).pid not in (0, first.pid), "a new process")
    command("pipeline", "wait", "--data", str(server.data), "--timeout", str(PATIENCE_S))
    assert "penstock_pipeline_restarts_total 1.0" in http.get("/metrics").body.decode()
    driver = status(server.data).pid
    assert stop(server) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(driver, 0)
    assert status(server.data).state == "stopped"
    # What the server noted at its end comes in as any other row would.
    ingest = Ingest(spark, location.open_one(server.data), server.data / "lake", steps.built_in())
    ingest.backfill()
    ingest.close()
    assert content(server.data / "lake") == recomputed(spark, server.data, tmp_path / "lake")


class RemoteEnd:
    """How far a server's journal reaches, asked through its door."""

    def __init__(self, server: ServerProcess) -> None:
        token = (server.data / "run" / "operator.token").read_text().strip()
        self._journal = RemoteJournal(server.http, token)

    def __call__(self) -> int:
        return self._journal.end()


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "data loss stops the pipeline in a named state with a hint")
def test_lost_rows_halt_it_in_a_named_state_until_the_loss_is_accepted(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    data = folder / "penstock-data"
    story = JournalBuilder(data)
    work(story, 1)
    ingest = Ingest(spark, location.open_one(data), data / "lake", steps.built_in())
    ingest.backfill()
    ingest.close()
    work(story, 1)
    story.seal()
    story.wait(3_600)
    story.seal(Retention(age_ms=1, bytes_max=0))
    work(story, 1)
    story.close()
    server = ServerProcess(folder, "--pipeline", config=CONFIG)
    try:
        until(lambda: status(data).state == "halted", "a halt")
        halted = status(data)
        assert halted.code == "DataLoss" and "rows" in (halted.message or "")
        shown = command("pipeline", "status", "--data", str(data)).stdout
        assert "halted" in shown and "penstock pipeline reset --accept-loss" in shown
        assert Http(server.http).get("/health").json["pipeline"] == "halted"
        waited = command("pipeline", "wait", "--data", str(data), check=False)
        assert waited.returncode == 1 and "--accept-loss" in waited.stderr
        command("pipeline", "reset", "--accept-loss", "--data", str(data))
        until(lambda: status(data).state == "running", "a new start")
        command("pipeline", "wait", "--data", str(data), "--timeout", str(PATIENCE_S))
        assert "penstock_pipeline_restarts_total 0.0" in Http(server.http).get("/metrics").body.decode()
        assert len(rows_of(data, "select * from gaps")) == 1
        assert server.stop() == 0
    finally:
        server.kill()


@pytest.mark.promise("Spark: pipeline", "a lake has one pipeline, a table one writer")
def test_two_pipelines_of_one_lake_exclude_each_other(tmp_path: Path) -> None:
    from penstock.ipc.pipeline import PipelineSection, PipelineTask
    from penstock.spark.lake.locks import TableLock
    from penstock.spark.pipeline.process import LOCK, Runner

    with TableLock(tmp_path / "lake", LOCK).held():
        assert Runner(PipelineTask(str(tmp_path), PipelineSection()), Reporter(tmp_path)).run() == 1
    assert not (tmp_path / "run" / "pipeline.json").exists()
