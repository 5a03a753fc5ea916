"""The examples work in any folder: copied away with `cp -r`, they run, and end with a clear message where something is missing.

What needs Spark is in `tests/spark/test_sensors.py`.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.server_process import ServerProcess, environment
from tests.server_template import Done, run_command

EXAMPLES = ROOT / "examples"
DEMO = {
    "agents": "agents.py",
    "collector": "sensors/collector.py",
    "dashboard": "sensors/dashboard.py",
    "means": "sensors/means.py",
    "sensors": "sensors/sensors.py",
    "story": "tokens/story.py",
}
"""Modules of the demo, and the examples that show them."""
PATIENCE_S = 60.0
QUICK = {
    "hello/hello_queue.py": "hello, queue",
    "hello/hello_space.py": "hello, everybody",
    "hello/hello_tokens.py": "hello, tokens",
    "kernel.py": "delivered: hello",
    "mew/file_transfer.py": "sound: True",
    "mew/game_positions.py": "0 positions of others",
    "mew/reasoning_trace.py": "bystander received 0 thoughts",
    "mew/sensor_collection.py": "sensor-collector received 30 readings",
    "tokens/space.py": "verified: ",
}
"""Examples that end by themselves with a server, and a part of what they print."""
SERVERLESS = {
    "declarative/transformations/settled.py",
    "kernel.py",
    "mew/room.py",
    "mkolbol/readable.py",
    "own_table.py",
    "sensors/collector.py",
    "sensors/means.py",
}
"""Files that connect to no server, or are imported by others."""
WITH_SPARK = {"sensors/run.py"}
CONNECTING = sorted(
    {file.relative_to(EXAMPLES).as_posix() for file in EXAMPLES.rglob("*.py")} - SERVERLESS - WITH_SPARK
)
CONFIG = """\
spaces:
  - {examples}/mew/space.yaml
  - space: {{id: hello}}
    participants:
      ann: {{tokens: ["ann-token"], capabilities: [{{kind: chat}}, {{kind: "stream/*"}}]}}
      bob: {{tokens: ["bob-token"], capabilities: [{{kind: chat}}]}}
"""
FOR_TOKENS = "  writer: {tokens: [writer-token], capabilities: [{kind: 'tokens/*'}]}\n" + (
    "  reader: {tokens: [reader-token], capabilities: [{kind: 'tokens/*'}]}\n"
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples as `cp -r` copies them, so that a link would lead nowhere."""
    folder = tmp_path_factory.mktemp("elsewhere")
    subprocess.run(["cp", "-r", str(EXAMPLES), str(folder)], check=True)
    return folder / "examples"


@pytest.fixture(scope="module")
def up(copied: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    space = copied / "mew" / "space.yaml"
    space.write_text(space.read_text() + FOR_TOKENS)  # one server for all, so one space `demo`
    process = ServerProcess(tmp_path_factory.mktemp("up"), "--relay", config=CONFIG.format(examples=copied))
    yield process
    process.kill()


def run_example(file: Path, words: list[str], folder: Path, env: dict[str, str]) -> Done:
    """Run `python FILE WORDS` in a folder, in a copy of a process that has Penstock loaded."""
    program = (
        f"import runpy, sys\nsys.argv = {[str(file), *words]!r}\nsys.path.insert(0, {str(file.parent)!r})\n"
        f"runpy.run_path({str(file)!r}, run_name='__main__')\n"
    )
    return run_command(["-c", program], folder, env, None, PATIENCE_S)


@pytest.mark.promise("Documentation", "the examples run in any folder after `cp -r`")
@pytest.mark.parametrize("name", QUICK)
def test_an_example_runs_where_it_was_copied_to(name: str, copied: Path, up: ServerProcess) -> None:
    words = [up.http] if name.startswith(("mew/", "tokens/")) else []
    done = run_example(copied / name, words, up.folder, environment())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert QUICK[name] in done.stdout


@pytest.mark.promise("Documentation", "an example without a server ends at once and says what to do")
@pytest.mark.parametrize("name", CONNECTING)
def test_an_example_without_a_server_says_what_to_do(name: str, copied: Path, tmp_path: Path) -> None:
    done = run_example(copied / name, [], tmp_path, environment(PENSTOCK_URL="http://127.0.0.1:9"))
    assert done.returncode == 1
    assert re.match(r"error: \w+: .+\nhint: .*`penstock up`", done.stderr), done.stderr


def test_the_sensor_example_without_spark_says_what_to_install(copied: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'pyspark' else found(name, *more)\n"
    )
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    command = [sys.executable, str(copied / "sensors" / "run.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: PySpark is not installed\nhint: "), done.stderr


@pytest.mark.promise("Documentation", "the sensor example says why its pipeline fails, and leaves no process behind")
def test_the_sensor_example_says_why_the_pipeline_fails(copied: Path) -> None:
    command = [sys.executable, str(copied / "sensors" / "run.py")]
    done = subprocess.run(
        command, env=environment(JAVA_HOME="/nowhere"), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    assert re.match(r"error: Spark has halted: JAVA_HOME is `/nowhere`.*\nhint: .*correct JAVA_HOME", done.stderr)
    [(host, port)] = re.findall(r"the server is at http://(\S+):(\d+);", done.stdout)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


@pytest.mark.promise("Documentation", "the demo runs the code that the examples show")
@pytest.mark.parametrize("module", DEMO)
def test_the_demo_runs_what_the_examples_show(module: str) -> None:
    code = ROOT / "src" / "penstock" / "demo" / f"{module}.py"
    assert (EXAMPLES / DEMO[module]).read_text() == code.read_text(), "copy one over the other"


def test_no_example_is_a_link() -> None:
    assert [file for file in EXAMPLES.rglob("*") if file.is_symlink()] == []


def test_every_example_is_in_the_index() -> None:
    index = (EXAMPLES / "README.md").read_text()
    shown = {file.relative_to(EXAMPLES).parts[0] for file in EXAMPLES.rglob("*.py")}
    assert [name for name in sorted(shown) if name not in index] == []
