"""The code and the hint of each failure; no JVM is needed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.ipc.pipeline import EXIT_HALTED, HALT_HINTS, STATUS_FILE, PipelineStatus
from penstock.spark.errors import DataLossError, GoneError, JournalChangedError, JournalRewoundError
from penstock.spark.java import JavaError
from penstock.spark.lake.data_files import SchemaError
from penstock.spark.lake_tables.verification_keys import KeysError
from penstock.spark.pipeline import queries, steps
from penstock.spark.pipeline.ingest import LostRowsError, TablesAheadError
from penstock.spark.pipeline.reporter import MESSAGE_MAX, Reporter, code_in, describe, diagnose
from penstock.spark.session import MasterError


@pytest.mark.promise("Spark: pipeline", "data loss stops the pipeline in a named state with a hint")
@pytest.mark.parametrize(
    ("error", "query", "code", "word"),
    [
        (RuntimeError("Caused by: x\npenstock.spark.errors.DataLossError: DATA_LOSS: rows 1 to 2"), "ingest", "DataLoss", "accept-loss"),
        (RuntimeError("penstock.spark.errors.JournalChangedError: DATA_LOSS: the checkpoint is of journal a, and this is b"), "watch", "JournalChanged", "pipeline reset"),
        (RuntimeError("[STREAM_CHECKPOINT_X] a checkpoint that cannot be read"), "watch", "CheckpointUnusable", "reset watch"),
        (steps.StepError("`x.py` is not there"), None, "BadTable", "pipeline.tables"),
        (queries.QueryError("`x.py` is not there"), None, "BadQuery", "pipeline.queries"),
        (KeysError("`keys`, line 1: what"), None, "BadKeys", "pipeline.token_keys"),
    ],
)  # fmt: skip
def test_a_failure_that_needs_a_person_says_what_to_do(
    tmp_path: Path, error: Exception, query: str | None, code: str, word: str
) -> None:
    reporter = Reporter(tmp_path)
    assert reporter.fail(error, query) == EXIT_HALTED
    said = reporter.status
    assert (said.state, said.code) == ("halted", code)
    assert word in (said.hint or "")
    assert query is None or f"`{query}`" in (said.message or "")


def test_anything_else_is_tried_again(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    assert reporter.fail(RuntimeError("Py4J: the JVM went away"), "ingest") == 1
    assert reporter.status.state == "failed"


def test_rows_lost_in_a_crash_are_not_called_a_gap(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    reporter.fail(
        RuntimeError("Traceback\npenstock.spark.errors.JournalRewoundError: DATA_LOSS: rows 4 to 9"),
        "ingest",
    )
    assert reporter.status.code == "JournalRewound" and "rebuild" in (reporter.status.hint or "")


def test_every_code_but_the_checkpoint_is_that_of_an_exception() -> None:
    errors = [
        JournalChangedError(""), JournalRewoundError(""), DataLossError(""), GoneError("here", 0, 1, "gone"),
        steps.StepError(""), queries.QueryError(), KeysError(), JavaError(""), SchemaError(""), LostRowsError(""), TablesAheadError(""),
    ]  # fmt: skip
    for error in errors:
        raised = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
        # As an object, and as the traceback that is left of it when it was raised in another process.
        assert diagnose(error, None) == diagnose(RuntimeError(f"Job aborted\n{raised}\n\tat java"), None)
    codes = {diagnose(error, None)[0] for error in errors}
    assert codes | {"CheckpointUnusable"} == set(HALT_HINTS)


def test_words_of_a_message_are_no_code() -> None:
    assert code_in("DATA_LOSS: the checkpoint is of journal a; SchemaError, StepError") is None
    assert code_in("penstock.spark.errors.SourceError: no journal") is None
    assert code_in("penstock.spark.errors.NoSuchError: x") is None


def test_the_line_of_the_error_is_kept_and_bounded() -> None:
    text = "Job aborted\n  at x\npenstock.spark.errors.SourceError: no journal\n  at y"
    assert describe(RuntimeError(text)).endswith("SourceError: no journal")
    assert describe(RuntimeError()) == "RuntimeError"
    assert len(describe(RuntimeError("x" * 5_000))) == MESSAGE_MAX


def test_a_master_that_does_not_answer_may_come_back(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    assert reporter.fail(MasterError("no master", "start the master")) == 1
    written = msgspec.json.decode((tmp_path / "run" / STATUS_FILE).read_bytes(), type=PipelineStatus)
    assert (written.state, written.hint) == ("failed", "start the master")


def test_a_failure_in_java_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    class Py4JJavaError(Exception):
        """Named as the one that Spark raises."""

    assert Reporter(tmp_path).fail(Py4JJavaError("the executor went away")) == 1
    assert Reporter(tmp_path).fail(JavaError("none was found")) == EXIT_HALTED


@pytest.mark.parametrize("name", ["penstock.spark.nowhere.FooError", "penstock.spark.pipeline.steps.Inner.BadError"])
def test_a_text_that_names_an_unknown_exception_does_not_break_the_report(name: str) -> None:
    assert diagnose(RuntimeError(f"Traceback\n{name}: x"), "ingest") == (None, None)


def test_a_bare_exception_is_named_by_its_class() -> None:
    assert describe(KeyError("batch")) == "KeyError: 'batch'"
    assert describe(steps.StepError("`x.py` is not there")) == "`x.py` is not there"


@pytest.mark.promise("Operations", "on a disk that is full or broken, what cannot be written is refused by its cause")
def test_a_failure_has_its_exit_code_where_the_status_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(tmp_path)
    (tmp_path / "run" / STATUS_FILE).mkdir()
    assert reporter.fail(DataLossError("rows 1 to 2"), "ingest") == EXIT_HALTED
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.promise("Spark: pipeline", "a failed batch names its table and step")
def test_failed_batches_are_counted_by_step_over_restarts(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path)
    for step in ("conversations.commit", "read", "conversations.commit"):
        reporter.fail(OSError("the disk is full"), "ingest", step)
        reporter = Reporter(tmp_path, msgspec.structs.replace(reporter.status, state="stopped"))
    found = [(one.query, one.table, one.step, one.count, one.cause) for one in reporter.status.failed]
    cause = "OSError: the disk is full"
    assert found == [("ingest", "", "read", 1, cause), ("ingest", "conversations", "commit", 2, cause)]
