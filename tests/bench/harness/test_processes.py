"""Processes of a run are ended by pid, their failures are reported, and their environment is clean."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from penstock.bench.harness.load import LoadJob
from penstock.bench.harness.processes import ProcessGroup, ServerProcess, cpu_s, make_environment, wait_until
from penstock.bench.harness.result import BenchError, BenchResult
from tests.server_process import environment


@pytest.fixture
def group():
    with ProcessGroup(BenchResult.begin("test", {})) as group:
        yield group


def test_a_server_that_ends_at_once_fails_with_its_log(group):
    command = [sys.executable, "-c", "print('no such option'); raise SystemExit(2)"]
    with pytest.raises(BenchError, match="did not start: no such option"):
        group.start(lambda folder: NeverReady(folder, command))


class NeverReady(ServerProcess):
    def is_ready(self):
        return False


def test_a_load_that_fails_fails_the_run_with_its_reason(group):
    with pytest.raises(BenchError, match="pace: ConnectionRefusedError"):
        group.load("queue.loads:pace", LoadJob(port=1)).report()


def test_a_group_ends_its_processes_and_removes_its_folder():
    with ProcessGroup(BenchResult.begin("test", {})) as group:
        server = group.start(lambda folder: ServerProcess(folder, ["sleep", "60"]))
        assert cpu_s(server.pid) is not None and group.folder.is_dir()
    assert cpu_s(server.pid) is None and not group.folder.exists()


def test_settings_of_the_user_do_not_reach_a_server(monkeypatch, tmp_path):
    for name in ("PENSTOCK_URL", "COURIER_CONFIG", "PYTHONPATH"):
        monkeypatch.setenv(name, "mine")
    assert make_environment(tmp_path)["PYTHONPATH"] == str(tmp_path)
    assert not {"PENSTOCK_URL", "COURIER_CONFIG", "PYTHONPATH"} & set(make_environment(None))


def test_waiting_has_an_end_and_an_explanation():
    with pytest.raises(BenchError, match="still 3"):
        wait_until(lambda: False, 0.0, lambda: "still 3")


def test_an_interrupted_run_ends_what_it_started(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "bench", "queue", "--only", "closed", "--batch", "1", "--no-peer"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(TMPDIR=str(tmp_path)),
        start_new_session=True,
    )
    try:
        ends = None
        while ends is None and process.poll() is None:
            ends = next(tmp_path.glob("penstock-bench-*/server-0/*/endpoints.json"), None)
        assert ends is not None
        pid = json.loads(ends.read_text())["pid"]
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert cpu_s(pid) is None, "the server outlived the run"
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.wait()
