"""One truth about health on real servers: a pipeline that crashes, what the log says, and a quiet end."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from tests.integration.serving import Http, until
from tests.server_process import ServerProcess
from tests.server_template import SOURCE, Fork

Start = Callable[..., ServerProcess]
CRASH = """
import sys
if "penstock.spark.pipeline.process" in sys.orig_argv:
    sys.exit("java.lang.OutOfMemoryError: planted")
"""


class CrashingServer(ServerProcess):
    """A server whose pipeline exits at once. A copy of the template will do, because Spark never starts."""

    def _start(self, words: list[str], env: dict[str, str], fresh: bool) -> Fork | subprocess.Popen[bytes]:
        return super()._start(words, env, False)


@pytest.mark.promise("Operations", "a pipeline that crashes again and again is `failed`, never `starting`")
@pytest.mark.promise("Operations", "`/health`, doctor, `pipeline status` and `wait` say the same of a crash")
def test_a_pipeline_that_crashes_is_the_same_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sitecustomize.py").write_text(CRASH)
    server = CrashingServer(tmp_path, "--pipeline", env={"PYTHONPATH": os.pathsep.join((SOURCE, str(tmp_path)))})
    try:
        look(server, capsys)
    finally:
        server.kill()


def look(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    http = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())

    def said(*words: str) -> str:
        main([*words, "--data", str(server.data)])
        seen = capsys.readouterr()
        return seen.out + seen.err

    until(lambda: http.get("/v1/pipeline").json["restarts"] >= 2, "two crashes")
    capsys.readouterr()
    health = http.get("/health")
    assert (health.status, health.json["status"], health.json["pipeline"]) == (200, "degraded", "failed")
    part = health.json["parts"]["pipeline"]
    assert part["state"] == "failed" and "OutOfMemoryError: planted" in part["reason"]
    assert "pipeline.log" in part["action"] and "OutOfMemoryError" in part["lastFailure"]["reason"]
    status = json.loads(said("pipeline", "status", "--json"))
    assert (status["state"], status["health"]["state"], status["lag"]) == ("failed", "failed", status["end"])
    assert status["health"]["since"] == part["since"]
    for words in (("pipeline", "wait", "--timeout", "0"), ("pipeline", "status")):
        assert "OutOfMemoryError: planted" in said(*words), words
    checks = {one["check"]: one for one in json.loads(said("doctor", "--json"))["checks"]}
    assert checks["health: pipeline"]["status"] == "failed"
    assert "OutOfMemoryError: planted" in checks["health: pipeline"]["detail"]
    until(lambda: '"part":"pipeline","state":"failed"' in server.log(), "the line of the log")


@pytest.mark.promise("Operations", "a normal stop logs no warning, and connections are logged at level debug")
def test_a_normal_stop_is_quiet(start_server: Start, tmp_path: Path) -> None:
    server = start_server("--relay")
    Http(server.http).enqueue("jobs", "a")
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    assert [line for line in lines if line["level"] != "info"] == []
    assert not [line for line in lines if line["event"].startswith("conn.")]
