"""What the commands of the pipeline share: status and lock, settings, errors and progress."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest

from penstock.cli.tables import pipeline_session
from penstock.cli.tables.pipeline_session import (
    as_pipeline_errors,
    clear_halt,
    find_http_url,
    find_running,
    follow_progress,
    journal_end,
    load_settings,
    parse_setting,
    progress_bars,
    read_status,
    refuse_running,
)
from penstock.core.errors import PenstockError
from penstock.ipc.pipeline import STATUS_FILE, PipelineStatus, QueryStatus
from penstock.journal.reader import JournalError
from penstock.journal.segments import DamageError
from penstock.spark.errors import HintedError
from penstock.spark.lake.locks import TableLock
from penstock.spark.pipeline.process import LOCK
from penstock.spark.session import MasterError
from tests.cli.journals import write_journal


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


def write_status(data: Path, status: PipelineStatus) -> None:
    (data / "run").mkdir(exist_ok=True)
    (data / "run" / STATUS_FILE).write_bytes(msgspec.json.encode(status))


def test_a_running_pipeline_is_detected_by_its_lock_and_not_by_a_pid(cli, tmp_path):
    write_journal(tmp_path, 1)
    write_status(tmp_path, PipelineStatus("running", pid=os.getpid()))  # a number that is alive
    with TableLock(tmp_path / "lake", LOCK).held():
        assert "runs the pipeline" in cli("pipeline", "reset", code=1).err
    cli("pipeline", "reset")


@pytest.mark.parametrize("state", ["off", "stopped", "halted"])
def test_a_pipeline_that_is_not_up_does_not_run_whatever_its_lock(data: Path, state: str) -> None:
    with TableLock(data / "lake", LOCK).held():
        assert find_running(data) is None
        write_status(data, PipelineStatus(state, pid=1))  # type: ignore[arg-type]
        assert find_running(data) is None
        write_status(data, PipelineStatus("running"))
        assert find_running(data) is None, "without a pid it is a server that has not started it"
        refuse_running(data)
        write_status(data, PipelineStatus("starting", pid=1))
        with pytest.raises(PenstockError, match="process 1 runs the pipeline") as caught:
            refuse_running(data)
    assert caught.value.code == "PipelineFailed"


def test_a_status_that_is_missing_or_no_status_is_none(data: Path) -> None:
    assert read_status(data) is None
    (data / "run" / STATUS_FILE).write_text('{"state":')
    assert read_status(data) is None
    (data / "run" / STATUS_FILE).write_text('{"state":"resting"}')
    assert read_status(data) is None


def test_a_halt_is_cleared_and_where_there_is_no_status_none_is_written(data: Path) -> None:
    clear_halt(data)
    assert list((data / "run").iterdir()) == []
    write_status(data, PipelineStatus("halted", code="DataLoss", message="lost", hint="reset"))
    clear_halt(data)
    status = read_status(data)
    assert status is not None and (status.state, status.code) == ("starting", None) and status.at_us > 0
    assert [file.name for file in (data / "run").iterdir()] == [STATUS_FILE], "no draft is left"


def test_settings_come_from_the_config_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("pipeline: {master: 'local[7]'}")
    assert load_settings(file).master == "local[7]"
    file.write_text("pipeline: {mastr: 1}\nstreems: {}")
    with pytest.raises(PenstockError, match="mastr") as caught:
        load_settings(file)
    assert caught.value.code == "InvalidRequest" and "streems" in str(caught.value)


def test_a_setting_of_spark_is_a_key_and_a_value() -> None:
    assert parse_setting("spark.a=b=c") == ("spark.a", "b=c")
    assert parse_setting("spark.a=") == ("spark.a", "")
    with pytest.raises(PenstockError, match="is not KEY=VALUE"):
        parse_setting("spark.a")


def test_the_server_of_a_directory_is_found_if_it_runs(data: Path) -> None:
    assert find_http_url(data) is None
    endpoints = {"pid": os.getpid(), "http": "http://127.0.0.1:8787", "control": None}
    (data / "run" / "endpoints.json").write_bytes(msgspec.json.encode(endpoints))
    assert find_http_url(data) == "http://127.0.0.1:8787"


def test_the_end_of_the_journal(tmp_path: Path) -> None:
    assert journal_end(write_journal(tmp_path, 3)) == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MasterError("no master", "start it"), "PipelineFailed"),
        (HintedError("no table", "fill it"), "PipelineFailed"),
        (JournalError("no journal"), "InvalidRequest"),
        (DamageError("00000000.seg", 7, "a hole"), "JournalDamaged"),
    ],
)
def test_errors_of_every_layer_get_a_code(error: Exception, code: str) -> None:
    with pytest.raises(PenstockError) as caught, as_pipeline_errors():
        raise error
    assert caught.value.code == code
    if code == "PipelineFailed":
        assert caught.value.refusal.hint in ("start it", "fill it")
    with pytest.raises(ZeroDivisionError), as_pipeline_errors():
        raise ZeroDivisionError


class Terminal:
    """Standard error of a person who watches."""

    def __init__(self) -> None:
        self.text = ""
        self.is_named = threading.Event()

    def write(self, text: str) -> int:
        self.text += text
        if "ingest" in self.text:
            self.is_named.set()
        return len(text)

    def flush(self) -> None:
        return None

    def isatty(self) -> bool:
        return True


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as show:
        show("ingest", 1, 2)
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_bars() as show:
        show("ingest", 1, 2)
        show("ingest", 2, 2)
    assert terminal.is_named.is_set() and "100%" in terminal.text


def test_the_progress_of_running_queries_is_followed_until_the_end(
    monkeypatch: pytest.MonkeyPatch, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline_session, "POLL_S", 0.001)
    write_status(data, PipelineStatus("running", end=4, queries={"ingest": QueryStatus(offset=2)}))
    before = threading.active_count()
    with follow_progress(data):
        assert threading.active_count() == before, "nothing to follow off a terminal"
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with follow_progress(data):
        assert terminal.is_named.wait(10)
    assert "50%" in terminal.text
