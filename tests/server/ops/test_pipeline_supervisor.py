"""The supervisor's reaction to the pipeline's exit, and the status it leaves."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from penstock.ipc.pipeline import (
    EXIT_HALTED,
    FILLED_TABLES,
    STABLE_US,
    STATUS_FILE,
    WATCHED_TABLES,
    PipelineSection,
    PipelineState,
    PipelineStatus,
    QueryStatus,
    TableStatus,
)
from penstock.server.ops import pipeline_supervisor
from penstock.server.ops.pipeline_supervisor import PipelineSupervisor
from penstock.spark.pipeline.reporter import Reporter
from tests.journal.test_lake_figures import fill

POLL_S = 0.01


@pytest.fixture
def supervisor(tmp_path: Path) -> PipelineSupervisor:
    (tmp_path / "run").mkdir()
    return PipelineSupervisor(tmp_path, PipelineSection(), "http://127.0.0.1:1")


def write(folder: Path, status: PipelineStatus) -> None:
    (folder / "run" / STATUS_FILE).write_bytes(msgspec.json.encode(status))


def test_a_missing_or_torn_status_means_starting(supervisor: PipelineSupervisor, tmp_path: Path) -> None:
    assert supervisor.status().state == "starting"
    (tmp_path / "run" / STATUS_FILE).write_bytes(b'{"state":"run')
    assert supervisor.status().state == "starting"


def test_a_status_that_the_disk_refuses_to_look_at_does_not_raise(
    supervisor: PipelineSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, **more: bool) -> None:
        raise OSError(5, "Input/output error")

    (tmp_path / "run").rename(tmp_path / "gone")
    supervisor._write(PipelineStatus("failed", message="kept in memory"))
    monkeypatch.setattr(Path, "stat", fail)
    assert supervisor.status().message == "kept in memory"


@pytest.mark.promise("Spark: pipeline", "the lag comes from the tables, whether the pipeline runs, starts or is down")
@pytest.mark.parametrize(
    ("state", "lag"), [("starting", 4), ("stopped", 4), ("failed", 4), ("halted", 4), ("running", 3)]
)
def test_the_lag_comes_from_the_tables(tmp_path: Path, state: PipelineState, lag: int) -> None:
    (tmp_path / "run").mkdir()
    for name in FILLED_TABLES:
        if name not in WATCHED_TABLES:
            fill(tmp_path, name, 6 if name == "envelopes" else 8, "j")
    fill(tmp_path, "alerts", 8, "j")
    supervisor = PipelineSupervisor(tmp_path, PipelineSection(), "http://127.0.0.1:1", lambda: {"j": 10})
    queries = {"ingest": QueryStatus(offset=7), "watch": QueryStatus(offset=9)} if state == "running" else {}
    write(tmp_path, PipelineStatus(state, queries=queries, ends={"j": 8}))

    async def look() -> PipelineStatus:
        looking = asyncio.ensure_future(supervisor._look())
        while not supervisor.status().tables:  # noqa: ASYNC110 - a thread reads the tables
            await asyncio.sleep(POLL_S)
        looking.cancel()
        return supervisor.status()

    status = asyncio.run(look())
    assert (status.end, status.lag) == (10, lag)
    lags = {name: table.lag_rows for name, table in status.tables.items()}
    assert (lags.pop("envelopes"), set(lags.values()), lags["alerts"]) == (4, {2}, 2)


def test_a_table_that_is_not_made_yet_lacks_every_row() -> None:
    status = PipelineStatus("starting", end=6)
    made = {
        name: TableStatus(rows=1, files=1, bytes=1, version=1, at_us=1, ends={"j": 6})
        for name in FILLED_TABLES
        if name != "conversations"
    }
    status.show(made)
    assert status.lag == 6
    status.show(
        {
            name: TableStatus(rows=1, files=1, bytes=1, version=1, at_us=1, ends={"j": 6})
            for name in FILLED_TABLES
            if name not in WATCHED_TABLES
        }
    )
    assert status.lag == 0


def test_a_clean_exit_ends_it(supervisor: PipelineSupervisor) -> None:
    assert asyncio.run(supervisor._exited(0, 1.0)) == "end"


def test_a_crash_without_a_status_gets_one(supervisor: PipelineSupervisor, tmp_path: Path) -> None:
    write(tmp_path, PipelineStatus("running", pid=5))
    assert asyncio.run(supervisor._exited(-9, 1.0)) == "back_off"
    status = supervisor.status()
    assert (status.state, status.code) == ("failed", "PipelineFailed")
    assert status.message is not None and "-9" in status.message
    assert status.hint is not None and "pipeline.log" in status.hint


def test_a_failure_that_the_pipeline_reported_is_kept(supervisor: PipelineSupervisor, tmp_path: Path) -> None:
    write(tmp_path, PipelineStatus("failed", code="PipelineFailed", message="out of disk"))
    assert asyncio.run(supervisor._exited(1, 1.0)) == "back_off"
    assert supervisor.status().message == "out of disk"


def test_a_halted_pipeline_restarts_only_after_a_reset(
    supervisor: PipelineSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_supervisor, "RESET_POLL_S", 0.001)
    write(tmp_path, PipelineStatus("halted", code="DataLoss"))

    async def reset() -> str:
        waiting = asyncio.ensure_future(supervisor._exited(EXIT_HALTED, 1.0))
        done, _ = await asyncio.wait({waiting}, timeout=POLL_S)
        assert not done
        write(tmp_path, PipelineStatus("stopped"))
        return await asyncio.wait_for(waiting, 10)

    assert asyncio.run(reset()) == "restart"


def test_a_process_that_cannot_start_is_retried_and_can_be_stopped(
    supervisor: PipelineSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def run() -> PipelineStatus:
        supervisor.start()
        while supervisor.status().state != "failed":  # noqa: ASYNC110 - a file changes
            await asyncio.sleep(POLL_S)
        status = supervisor.status()
        await asyncio.wait_for(supervisor.stop(), 5)
        return status

    assert asyncio.run(run()).code == "PipelineFailed"


# A disk that refuses the status


def refuse_status(folder: Path) -> None:
    """Every write of the status fails: a directory stands where its draft would."""
    (folder / "run" / STATUS_FILE).with_suffix(".new").mkdir()


@pytest.mark.promise("Operations", "on a disk that is full or broken, what cannot be written is refused by its cause")
def test_a_status_that_cannot_be_written_is_shown_all_the_same(supervisor: PipelineSupervisor, tmp_path: Path) -> None:
    write(tmp_path, PipelineStatus("running", pid=5))
    refuse_status(tmp_path)
    assert asyncio.run(supervisor._exited(-9, 1.0)) == "back_off"
    assert supervisor.status().state == "failed"
    write(tmp_path, PipelineStatus("running", pid=6))
    assert supervisor.status().state == "running", "the pipeline wrote a newer one"


def test_a_halt_whose_status_was_refused_backs_off(supervisor: PipelineSupervisor, tmp_path: Path) -> None:
    """Waiting for a reset would end at once, and start Spark again and again without a pause."""
    write(tmp_path, PipelineStatus("running", pid=5))
    refuse_status(tmp_path)
    assert asyncio.run(supervisor._exited(EXIT_HALTED, 1.0)) == "back_off"
    assert supervisor.status().state == "failed"


# A pipeline that crashes again and again


def test_a_crash_quotes_the_last_line_of_the_process(supervisor: PipelineSupervisor, tmp_path: Path) -> None:
    (tmp_path / "run" / "pipeline.log").write_text("Traceback\nOSError: no space left\n\n")
    asyncio.run(supervisor._exited(1, 1.0))
    message = supervisor.status().message
    assert message == "the pipeline's process exited with code 1: OSError: no space left"


@pytest.mark.promise("Operations", "a pipeline that crashes again and again is `failed`, never `starting`")
def test_a_pipeline_that_restarts_after_a_crash_is_not_starting(tmp_path: Path) -> None:
    """The new process takes over the failure, and drops it when it runs."""
    crashed = PipelineStatus("starting")
    crashed.fail(1_000_000, "PipelineFailed", "no heap", "read the log")
    reporter = Reporter(tmp_path, crashed)
    reporter.write()
    assert (reporter.status.state, reporter.status.message, reporter.status.since_us) == (
        "failed",
        "no heap",
        1_000_000,
    )
    reporter.fail(RuntimeError("no heap"))
    assert (reporter.status.failures, reporter.status.since_us) == (2, 1_000_000)
    reporter.write("running")
    status = reporter.status
    assert (status.message, status.failures, status.finding().state) == (None, 2, "degraded")
    assert "RuntimeError: no heap" in status.finding().reason
    status.enter("running", status.since_us + STABLE_US)
    assert (status.failures, status.finding().state) == (0, "ok") and status.finding().failure is not None


def test_a_crash_of_a_later_run_is_not_taken_for_the_one_before(
    supervisor: PipelineSupervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(supervisor._exited(3, 1.0))
    supervisor._began_us = supervisor.status().failed_us + 1
    asyncio.run(supervisor._exited(4, 1.0))
    status = supervisor.status()
    assert (status.message, status.failures) == ("the pipeline's process exited with code 4", 2)
