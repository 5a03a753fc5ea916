"""`penstock pipeline` without Spark: status, waiting, resets, and what is refused before Java starts."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from penstock.cli.tables import pipeline
from penstock.ipc.pipeline import (
    BATCHES_MAX,
    FILLED_TABLES,
    STATUS_FILE,
    BatchStatus,
    ExpectationStatus,
    PipelineStatus,
    QueryStatus,
)
from penstock.journal.disk import RealDisk
from penstock.journal.parquet_table import EventsTable
from penstock.spark.lake.locks import TableLock
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.pipeline.process import LOCK
from penstock.spark.pipeline.queries import CHECKPOINTS
from tests.cli.journals import write_journal
from tests.journal.histories import JOURNAL, START_US, reopened, sealer
from tests.spark.lakes import NOTES, notes

ROWS = 4
CAUGHT_UP = {"ingest": QueryStatus(offset=ROWS, batches=2), "watch": QueryStatus(offset=ROWS)}
BEHIND = {"ingest": QueryStatus(offset=ROWS), "watch": QueryStatus(offset=1)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory whose journal has four rows."""
    return write_journal(tmp_path, ROWS)


def write_status(data: Path, status: PipelineStatus) -> None:
    (data / "run").mkdir(exist_ok=True)
    (data / "run" / STATUS_FILE).write_bytes(msgspec.json.encode(status))


def checkpoints(data: Path, *names: str) -> Path:
    folder = data / "lake" / CHECKPOINTS
    for name in names:
        (folder / name).mkdir(parents=True)
    return folder


class TestStatus:
    def test_a_pipeline_that_never_ran_is_off_and_the_journal_is_counted(self, cli, data):
        shown = json.loads(cli("pipeline", "status", "--json").out)
        assert (shown["state"], shown["end"], shown["offset"], shown["lag"]) == ("off", ROWS, 0, ROWS)
        assert f"{ROWS} rows, {ROWS} not in every table yet" in cli("pipeline", "status").out

    def test_a_running_one_is_shown_with_its_queries_and_what_is_behind(self, cli, data):
        status = PipelineStatus(
            "running", pid=1, queries=BEHIND, behind={"alerts": 1}, own={"own-mine": "running"}, ui="http://spark:4040"
        )
        write_status(data, status)
        with TableLock(data / "lake", LOCK).held():
            shown = cli("pipeline", "status").out
            assert json.loads(cli("pipeline", "status", "--json").out)["lag"] == ROWS - 1
        lines = shown.splitlines()
        assert lines[0].split() == ["state", "running"] and "http://spark:4040" in shown
        assert [line.split()[:2] for line in lines if line.startswith(("ingest", "watch"))] == [
            ["ingest", str(ROWS)],
            ["watch", "1"],
        ]
        assert lines[-2:] == ["behind: alerts is at 1", "own-mine: running"]

    def test_expectations_and_stopped_tables_are_shown(self, cli, data):
        expected = [ExpectationStatus("jobs", "has an id", "fail", 2, "offset=7")]
        write_status(
            data, PipelineStatus("running", pid=1, expectations=expected, stopped={"jobs": "table `jobs`: no"})
        )
        with TableLock(data / "lake", LOCK).held():
            shown = cli("pipeline", "status").out
        assert "jobs   has an id    fail     2     offset=7" in shown and "stopped: table `jobs`: no" in shown

    def test_one_that_died_is_stopped_and_so_are_its_queries(self, cli, data):
        write_status(data, PipelineStatus("running", pid=1, own={"own-mine": "running"}, ui="http://spark:4040"))
        shown = cli("pipeline", "status").out
        assert shown.splitlines()[0].split() == ["state", "stopped"]
        assert "http://spark:4040" not in shown and shown.splitlines()[-1] == "own-mine: stopped"

    def test_a_halt_shows_its_problem_and_what_to_do(self, cli, data):
        write_status(data, PipelineStatus("halted", code="DataLoss", message="rows are gone", hint="reset it"))
        lines = [line.split(maxsplit=1) for line in cli("pipeline", "status").out.splitlines()]
        reason = f"rows are gone; rows not in every table yet: {ROWS}"
        assert lines[:3] == [["state", "halted"], ["reason", reason], ["what", "to do  reset it"]]

    @pytest.mark.promise("Operations", "`/health`, doctor, `pipeline status` and `wait` say the same of a crash")
    def test_a_crash_shows_its_reason_its_time_and_what_to_do(self, cli, data):
        status = PipelineStatus("starting", since_us=1_000_000)
        status.fail(2_000_000, "PipelineFailed", "no space", "free some")
        status.fail(3_000_000, "PipelineFailed", "no heap", "read the log")
        write_status(data, status)
        shown = cli("pipeline", "status").out
        assert "failed since 1970-01-01T00:00:02" in shown and "1970-01-01T00:00:03.000000Z: no heap" in shown
        assert "no heap; 2 failures in a row" in shown and "read the log" in shown
        part = json.loads(cli("pipeline", "status", "--json").out)["health"]
        assert (part["state"], part["action"]) == ("failed", "read the log")
        assert part["lastFailure"] == {"at": "1970-01-01T00:00:03.000Z", "reason": "no heap"}

    def test_the_lag_of_a_pipeline_that_is_down_is_read_from_the_tables(self, cli, data):
        others = dict.fromkeys(FILLED_TABLES, 3)  # a table that is missing would lack every row
        for name, end in {**others, "deliveries": 2, "gaps": 1}.items():
            rows = pa.table({"journal": [JOURNAL]})
            progress = CommitProperties(app_transactions=[Transaction(f"{JOURNAL}/0", end)])
            write_deltalake(str(data / "lake" / name), rows, commit_properties=progress)
        write_status(data, PipelineStatus("failed", message="crashed"))
        shown = json.loads(cli("pipeline", "status", "--json").out)
        assert (shown["offset"], shown["lag"]) == (2, ROWS - 2)
        cli("pipeline", "wait", "--offset", "2")

    def test_each_table_and_each_batch_is_shown(self, cli, data):
        progress = CommitProperties(app_transactions=[Transaction(f"{JOURNAL}/0", 3)])
        write_deltalake(str(data / "lake" / "envelopes"), pa.table({"n": [1, 2]}), commit_properties=progress)
        query = QueryStatus(offset=3)
        for number in range(BATCHES_MAX + 5):
            query.ended(
                BatchStatus(
                    START_US,
                    number,
                    900,
                    {"read": 100, "envelopes.rows": 300, "envelopes.commit": 50},
                    {"envelopes": number},
                )
            )
        query.input_rate, query.trigger = 12.5, {"addBatch": 900, "walCommit": 30}
        status = PipelineStatus("stopped", queries={"ingest": query}, own_queries={"own-means": QueryStatus(batches=3)})
        status.fail_batch(START_US, "ingest", "envelopes.commit", "the disk is full")
        write_status(data, status)
        shown = cli("pipeline", "status").out
        [failed] = [line for line in shown.splitlines() if "the disk is full" in line]
        assert failed.split()[:4] == ["ingest", "envelopes", "commit", "1"]
        assert [line.split()[:3] for line in shown.splitlines() if line.startswith("own-")] == [["own-means", "-", "3"]]
        [line] = [line.split() for line in shown.splitlines() if line.startswith("envelopes")]
        rows = str(BATCHES_MAX + 4)
        assert line[1:4] + line[5:8] == ["2", "0", "1", "350", rows, "1"], shown
        batches = cli("pipeline", "status", "--batches").out
        assert batches.count("envelopes.rows 300, read 100, envelopes.commit 50") == BATCHES_MAX
        assert "12.5 rows a second" in batches and "addBatch 900" in batches
        found = json.loads(cli("pipeline", "status", "--json").out)
        assert found["tables"]["envelopes"]["lag_rows"] == 1 and found["tables"]["envelopes"]["lag_seconds"] > 0

    def test_a_directory_without_a_journal_is_an_error_unless_the_pipeline_reads_a_server(self, cli, tmp_path):
        fresh = tmp_path / "fresh"
        assert "hint: name the data directory" in cli("pipeline", "status", at=fresh, code=1).err
        (fresh).mkdir()
        write_status(fresh, PipelineStatus("stopped", journal=JOURNAL, end=9, queries=CAUGHT_UP))
        assert json.loads(cli("pipeline", "status", "--json", at=fresh).out)["lag"] == 9 - ROWS


class TestWait:
    def test_tables_that_hold_the_journal_are_not_waited_for(self, cli, data):
        write_status(data, PipelineStatus("running", queries=CAUGHT_UP))
        assert json.loads(cli("pipeline", "wait", "--json").out) == {"reached": True, "offset": ROWS, "wanted": ROWS}
        assert cli("pipeline", "wait").out == f"every table holds the journal up to offset {ROWS}\n"

    def test_an_offset_may_be_before_the_end(self, cli, data):
        write_status(data, PipelineStatus("running", queries=BEHIND))
        cli("pipeline", "wait", "--offset", "1")
        seen = cli("pipeline", "wait", "--offset", "2", "--timeout", "0", "--json", code=3)
        answer = json.loads(seen.out)
        assert answer.pop("health")["state"] == "off", "the process is gone"
        assert answer == {"reached": False, "offset": 1, "wanted": 2}
        assert "the tables are at 1 of 2" in seen.err

    def test_without_a_pipeline_the_time_runs_out(self, cli, data):
        said = cli("pipeline", "wait", "--timeout", "0", code=3).err
        assert "the tables are at 0 of 4" in said and "no pipeline has run" in said and "`penstock up`" in said

    def test_a_wait_says_why_there_is_no_progress(self, cli, data, monkeypatch):
        steps = [
            PipelineStatus("failed", message="no heap", failure="no heap", hint="read the log"),
            PipelineStatus("failed", message="no heap", failure="no heap", hint="read the log"),
            PipelineStatus("running", queries=CAUGHT_UP),
        ]
        write_status(data, PipelineStatus("starting", pid=1))
        monkeypatch.setattr(pipeline.time, "sleep", lambda _: write_status(data, steps.pop(0)))
        with TableLock(data / "lake", LOCK).held():
            lines = cli("pipeline", "wait").err.splitlines()
        assert ["Spark is starting" in lines[0], "no heap" in lines[1], "read the log" in lines[1]] == [True] * 3
        assert len(lines) == 2, "the same reason is not repeated at every look"

    def test_a_halt_ends_the_wait_at_once(self, cli, data):
        write_status(data, PipelineStatus("halted", queries=BEHIND, message="rows are gone", hint="reset it"))
        seen = cli("pipeline", "wait", code=1)
        assert seen.err == "error: PipelineFailed: rows are gone\nhint: reset it\n"

    def test_progress_is_noticed(self, cli, data, monkeypatch):
        write_status(data, PipelineStatus("running", queries=BEHIND))
        monkeypatch.setattr(
            pipeline.time, "sleep", lambda _: write_status(data, PipelineStatus("running", queries=CAUGHT_UP))
        )
        assert json.loads(cli("pipeline", "wait", "--json").out)["offset"] == ROWS


class TestReset:
    def test_the_checkpoints_of_both_queries_go_and_a_halt_with_them(self, cli, data):
        folder = checkpoints(data, "ingest", "watch", "own-mine")
        write_status(data, PipelineStatus("halted", code="DataLoss"))
        assert cli("pipeline", "reset").out == "deleted the checkpoints of ingest and watch\n"
        assert [one.name for one in folder.iterdir()] == ["own-mine"]
        assert json.loads((data / "run" / STATUS_FILE).read_bytes())["state"] == "starting"

    def test_one_query_may_be_named_also_your_own(self, cli, data):
        folder = checkpoints(data, "ingest", "watch", "own-mine")
        assert json.loads(cli("pipeline", "reset", "own-mine", "--json").out) == {"reset": ["own-mine"], "skipped": {}}
        assert sorted(one.name for one in folder.iterdir()) == ["ingest", "watch"]
        seen = cli("pipeline", "reset", "own-mine", code=1)
        assert "there is no query `own-mine`" in seen.err and "queries: ingest, watch" in seen.err

    def test_accepted_losses_are_recorded_as_gaps(self, cli, data):
        app = f"{JOURNAL}/0"
        LakeTable(data / "lake", NOTES).append(notes(0, 1), {app: Progress(0, 1)})
        log, _ = reopened(RealDisk(data / "journal"))
        log.rotate()
        sealer(data).seal(START_US, wants_live=True)
        log.close()
        events = EventsTable(data / "lake")
        [file] = events.files()
        events.remove([file], START_US // 1000)
        out = cli("pipeline", "reset", "--accept-loss").out.splitlines()
        assert out[1:] == [f"notes: rows 1 to {ROWS - 1} are recorded as a gap"]
        assert LakeTable(data / "lake", NOTES).progress(app) == ROWS
        assert json.loads(cli("pipeline", "reset", "--accept-loss", "--json").out)["skipped"] == {}

    def test_commands_on_a_directory_without_a_journal_say_so_in_one_line(self, cli, tmp_path):
        (tmp_path / "empty").mkdir()
        for folder in (tmp_path / "empty", tmp_path / "absent"):
            said = cli("pipeline", "reset", "--accept-loss", at=folder, code=1)
            assert "Traceback" not in said.err and "hint:" in said.err
        assert not (tmp_path / "absent").exists()


class TestRun:
    def test_a_second_pipeline_is_refused_and_once_waits_for_the_first(self, cli, data):
        write_status(data, PipelineStatus("running", pid=7, queries=CAUGHT_UP))
        with TableLock(data / "lake", LOCK).held():
            seen = cli("pipeline", "run", code=1)
            assert "process 7 already runs the pipeline" in seen.err and "hint: stop it first" in seen.err
            # With a URL the journal is not sealed first, which would take a child process.
            seen = cli("pipeline", "run", "--once", "--url", "http://127.0.0.1:1", "--json")
        assert "waiting for it" in seen.err and json.loads(seen.out)["reached"] is True

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--conf", "spark.a"], "`--conf spark.a` is not KEY=VALUE"),
            (["--config", "absent.yaml"], "absent.yaml"),
        ],
    )
    def test_wrong_settings_are_refused_before_java_starts(self, cli, data, words, message):
        seen = cli("pipeline", "run", *words, code=1)
        assert seen.err.startswith("error: InvalidRequest: ") and message in seen.err
        assert not (data / "run").exists()

    @pytest.mark.parametrize("words", [["backfill"], ["rebuild", "queue_minutes"]])
    def test_tables_are_not_opened_with_a_wrong_config(self, cli, data, words):
        file = data / "bad.yaml"
        file.write_text("streems: {}")
        seen = cli("pipeline", *words, "--config", str(file), code=1)
        assert seen.err.startswith("error: InvalidRequest: ") and "streems" in seen.err
