"""One server with a pipeline for all tests that need one: starting Spark costs more than most of them.

`demo_pipeline` is the server of `penstock up --demo`. The pages about the pipeline run with it first, then the test that kills the driver
and stops the server, and then the notebooks on the directory that is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from penstock.ipc.pipeline import STATUS_FILE, PipelineStatus
from tests.paths import ROOT
from tests.server_process import ServerProcess

START_S = 240.0
"""Spark starts in five seconds on a quiet machine and takes a minute on a busy one."""
STOP_S = 60.0
POLL_S = 0.05
OWN_TABLE = "examples/own_table.py"
OWN_SCHEMAS = "examples/schemas"
OWN_CONFIG = "schemas:\n  dir: schemas\npipeline:\n  tables: [own_table.py]\n"
ALERTS = "  alerts: {to: ops, rules: [{kind: dead_letters, id: dead}]}\n"
PACE = "  nice: 0\n  memory: 512m\n  trigger_ms: 4000\n  watch_ms: 4000\n"
"""What a page does in a few seconds is one batch; a page waits for a batch or two."""
TRAFFIC = b"penstock.demo.process"
QUICK_SPARK = {
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of sessions that live for a minute: to compile each plan costs more than to interpret it."""


def status(data: Path) -> PipelineStatus:
    """What the pipeline of a directory says of itself."""
    file = data / "run" / STATUS_FILE
    return msgspec.json.decode(file.read_bytes(), type=PipelineStatus) if file.exists() else PipelineStatus("off")


def stop(server: ServerProcess) -> int:
    """Stop a server whose pipeline may have to finish a batch first; returns the exit code."""
    if server.process.poll() is None:
        server.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(STOP_S)
    return server.stop()


def end_traffic(server: ServerProcess) -> None:
    """End the sample traffic once the pipeline reads it; Spark has taken its time, so there is enough to look at."""
    deadline = time.monotonic() + START_S
    while status(server.data).state != "running":
        assert time.monotonic() < deadline, f"the pipeline does not run:\n{server.log()}"
        time.sleep(POLL_S)
    [traffic] = [
        int(pid)
        for pid in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        if TRAFFIC in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(traffic, signal.SIGTERM)


@pytest.fixture(scope="session")
def demo_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`penstock up --demo` with the tables of the example, after the traffic of the demo has ended."""
    folder = tmp_path_factory.mktemp("demo")
    shutil.copy(ROOT / OWN_TABLE, folder)
    shutil.copytree(ROOT / OWN_SCHEMAS, folder / "schemas")
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in QUICK_SPARK.items()))
    env = {"SPARK_CONF_DIR": str(folder)}
    server = ServerProcess(folder, "--pipeline", "--demo", config=OWN_CONFIG + ALERTS + PACE, env=env)
    try:
        end_traffic(server)
        yield server
    finally:
        stop(server)
