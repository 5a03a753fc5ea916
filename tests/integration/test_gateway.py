"""`penstock gateway start` as a process: its doors, its files, and what a restart keeps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.serving import Http
from tests.server_process import STOP_S, environment

SPACE = """\
space: {id: demo, name: Demo, ui_theme: neon-pulse}
participants:
  human: {tokens: [human-token], capabilities: [{kind: "*"}]}
  bot: {type: local, command: node, auto_start: true}
"""


class Gateway:
    """A running `penstock gateway start`."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [sys.executable, "-m", "penstock.cli", "gateway", "start", "--port", "0", *words]
        with (folder / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=log
            )
        self.said: list[str] = []

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode().rstrip("\n")
        self.said.append(line)
        return line

    def ready(self) -> dict[str, Any]:
        """Where it is; for one that was started with `--json`."""
        return dict(msgspec.json.decode(self.line()))

    def stop(self) -> int:
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(STOP_S)
        self.process.stdout.close()
        return code


Start = Callable[..., Gateway]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / ".mew").mkdir()
    (tmp_path / ".mew" / "space.yaml").write_text(SPACE)
    started: list[Gateway] = []

    def start(*words: str) -> Gateway:
        started.append(Gateway(tmp_path, "--space-config", ".mew/space.yaml", *words))
        return started[-1]

    yield start
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait(STOP_S)
        assert gateway.process.stdout is not None
        gateway.process.stdout.close()


def test_the_words_that_people_wait_for_and_a_clean_end(start: Start, tmp_path: Path) -> None:
    gateway = start()
    while not gateway.line().startswith("Participants are not started"):
        assert gateway.said[-1], "it ended"
    words = "\n".join(gateway.said)
    assert "Space ID: demo\nParticipants configured: 2\nGateway listening on port " in words
    assert "Generated new tokens for bot" in words and "start bot yourself" in words
    assert gateway.stop() == 0
    files = {str(path.relative_to(tmp_path / ".mew")) for path in (tmp_path / ".mew").rglob("*")}
    assert {"tokens/bot.token", "tokens/.gitignore", "penstock/.gitignore", "penstock/journal"} <= files
    token = (tmp_path / ".mew" / "tokens" / "bot.token").read_text()
    assert "human-token" not in words and token not in words
    log = (tmp_path / "gateway.log").read_text()
    assert "human-token" not in log and token not in log


def test_the_gateway_serves_its_space_and_courier_to_the_operator_alone(start: Start, tmp_path: Path) -> None:
    endpoints = start("--json", "--host", "0.0.0.0").ready()
    assert endpoints["space"] == "demo" and endpoints["control"] is None
    url = endpoints["http"].replace("0.0.0.0", "127.0.0.1")
    anybody = Http(url)
    # By whatever name the machine is reached.
    health = anybody.get("/health", headers={"Host": "gateway.example:8080"})
    assert (health.status, health.json["status"]) == (200, "ok")
    for path in ("/v1/stats?stream=a", "/v1/metrics", "/v1/journal", "/metrics"):
        answer = anybody.get(path)
        assert (answer.status, answer.code) == (404, "UnknownRoute"), path
    assert anybody.post("/v1/enqueue", {"to": "a", "envelope": {}}).status == 404
    operator = Http(url, Path(endpoints["run"], "operator.token").read_text().strip())
    assert operator.get("/v1/journal").status == 200
    assert Http(url, "human-token").get("/v1/journal").status == 401


def test_a_second_gateway_on_the_same_space_is_refused(start: Start, tmp_path: Path) -> None:
    start("--json").ready()
    token = (tmp_path / ".mew" / "tokens" / "bot.token").read_text()
    assert start("--json").process.wait(STOP_S) == 1
    assert "error: another process writes" in (tmp_path / "gateway.log").read_text()
    assert (tmp_path / ".mew" / "tokens" / "bot.token").read_text() == token
