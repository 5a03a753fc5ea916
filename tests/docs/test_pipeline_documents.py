"""The pages about the pipeline, and the blocks of the README that need one: commands run with a real pipeline, Spark code in one session.

Starting Spark is expensive, so one server with a pipeline serves every page, and all notebook code runs in the session of the tests.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from penstock.cli import build
from penstock.client.staging import Stage
from penstock.ipc.pipeline import STATUS_FILE, PipelineStatus
from penstock.server.config.load import load
from penstock.spark.pipeline.alerts import Alert, envelope
from penstock.spark.pipeline.watch import APP
from tests.docs.documents import ROOT, blocks, reader_environment, run_blocks
from tests.server_process import ServerProcess

BLOCK_SECONDS = 240
"""A page may have to wait for Spark, on a machine that is busy with other tests."""
STOP_SECONDS = 60
OWN_PAGE, OWN_TABLE = "docs/how-to/own-table.md", "examples/own_table.py"
OWN_CONFIG = "pipeline:\n  tables: [own_table.py]\n"
PACE = "  nice: 0\n  trigger_ms: 4000\n  watch_ms: 4000\n"
"""What a page does in a few seconds is one batch; a page waits for a batch or two."""
TRAFFIC = b"penstock.demo.process"
POLL_S = 0.05
BESIDE_A_PIPELINE = ["docs/tutorial/first-pipeline.md", "docs/how-to/pipeline.md"]
IN_PART = ["README.md", "docs/tutorial/ten-minutes.md"]
"""Pages that only need it for their blocks `sh spark`."""
WITH_CODE_FOR_SPARK = ["docs/tutorial/first-pipeline.md", "docs/how-to/spark.md"]
NOTEBOOK = "examples/pipeline.ipynb"


def penstock(server: ServerProcess, *words: str) -> str:
    """What a command prints in the server's directory."""
    done = subprocess.run(
        ["penstock", *words],
        cwd=server.folder,
        env=reader_environment(),
        capture_output=True,
        text=True,
        timeout=BLOCK_SECONDS + STOP_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ask(server: ServerProcess, query: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in penstock(server, "sql", query, "--json").splitlines()]


def stop(server: ServerProcess) -> None:
    """A pipeline finishes its batch first."""
    if server.process.poll() is None:
        server.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(STOP_SECONDS)
    server.stop()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """What `penstock up --demo` starts, with the example's tables, when the agents have gone home: then the pipeline can rest too."""
    folder = tmp_path_factory.mktemp("demo")
    shutil.copy(ROOT / OWN_TABLE, folder)
    server = ServerProcess(folder, "--pipeline", "--demo", config=OWN_CONFIG + PACE)
    try:
        end_traffic(server)
        yield server
    finally:
        stop(server)


def end_traffic(server: ServerProcess) -> None:
    """End the sample traffic once the pipeline reads it; Spark has taken its time, so there is enough to look at."""
    status = server.data / "run" / STATUS_FILE
    deadline = time.monotonic() + BLOCK_SECONDS
    while not status.exists() or msgspec.json.decode(status.read_bytes(), type=PipelineStatus).state != "running":
        assert time.monotonic() < deadline, f"the pipeline does not run:\n{server.log()}"
        time.sleep(POLL_S)
    [traffic] = [
        int(pid)
        for pid in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        if TRAFFIC in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(traffic, signal.SIGTERM)


@pytest.fixture(scope="module")
def quiet(demo: ServerProcess) -> Iterator[ServerProcess]:
    """The same directory with its tables, when only the broker runs on it."""
    penstock(demo, "pipeline", "wait", "--timeout", str(BLOCK_SECONDS))
    stop(demo)
    server = ServerProcess(demo.folder)
    yield server
    stop(server)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path)
    yield server
    stop(server)


@pytest.mark.parametrize("document", BESIDE_A_PIPELINE)
def test_every_command_of_a_page_runs_beside_the_pipeline(document: str, demo: ServerProcess) -> None:
    assert run_blocks(document, demo, BLOCK_SECONDS) >= 3, f"{document} has lost its examples"


@pytest.mark.promise("Documentation", "blocks that need Spark run with a pipeline")
@pytest.mark.parametrize("document", IN_PART)
def test_the_commands_of_a_page_that_need_the_pipeline_run_beside_it(document: str, demo: ServerProcess) -> None:
    assert run_blocks(document, demo, BLOCK_SECONDS, mark="spark") >= 1, f"{document} has lost its examples"


@pytest.mark.promise("Spark: pipeline", "a custom table is one function and one line")
def test_a_table_of_ones_own_is_one_function_and_one_line(demo: ServerProcess) -> None:
    """The page shows the example and the config that the server runs with, and its commands fill the tables."""
    assert [code for _, code in blocks(OWN_PAGE, "file")] == [(ROOT / OWN_TABLE).read_text()]
    assert run_blocks(OWN_PAGE, demo, BLOCK_SECONDS) >= 3
    assert (demo.folder / "penstock.yaml").read_text() == OWN_CONFIG
    given_up = ask(demo, "select reason from given_up where id = 'sluice-1'")
    assert given_up == [{"reason": "term"}]
    assert ask(demo, "select sum(envelopes) as sent from sent_per_minute where sender = 'ann'") == [{"sent": 2}]
    (last,) = ask(demo, "select offset from last_sent where sender = 'ann'")
    assert last == ask(demo, "select max(offset) as offset from envelopes where sender = 'ann'")[0]


@pytest.mark.promise(
    "Spark: pipeline",
    "the tutorial leads from `pip install` to a streaming query in ten lines, and the notebook runs",
)
@pytest.mark.usefixtures("spark")
def test_the_notebook_and_the_code_for_notebooks_run(
    quiet: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    penstock(quiet, "log", "seal")
    pieces = []
    for document in WITH_CODE_FOR_SPARK:
        found = [code for _, code in blocks(document, "spark")]
        assert found, f"{document} has lost its examples"
        pieces.append((document, "\n".join(found)))
    notebook = json.loads((ROOT / NOTEBOOK).read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells), "a notebook is kept without what it printed"
    pieces.append((NOTEBOOK, "\n".join("".join(cell["source"]) for cell in cells)))
    monkeypatch.chdir(quiet.folder)
    monkeypatch.setenv("PENSTOCK_DATA", str(quiet.data))
    for name, code in pieces:
        capsys.readouterr()
        # Spark was started elsewhere, so what is relative for a reader cannot be so here.
        here = code.replace('"penstock-data', f'"{quiet.data}')
        exec(compile(here, name, "exec"), {"__name__": "__main__"})
    assert "|enqueue" in capsys.readouterr().out


@pytest.mark.promise("Spark: pipeline", "an agent receives alerts as envelopes")
def test_the_agent_of_the_example_takes_alerts_as_work(plain: ServerProcess) -> None:
    alert = Alert(
        "ab" * 16, "cd" * 16, "dead-letters", "critical", "jobs", 0, 60_000_000, 2.0, 0.0, "it broke", "firing", 0
    )  # fmt: skip
    with Stage(plain.http, (plain.data / "run" / "operator.token").read_text().strip()) as stage:
        stage.part(APP, 0, "alerts", [msgspec.json.encode(envelope(alert, "ops"))])
        stage.commit(APP, 0, ["alerts"])
    command = [sys.executable, str(ROOT / "examples/alerts.py")]
    process = subprocess.Popen(command, cwd=plain.folder, env=reader_environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "critical firing: it broke\n"
    finally:
        process.terminate()
        process.communicate(timeout=STOP_SECONDS)


@pytest.mark.parametrize("document", [*BESIDE_A_PIPELINE, OWN_PAGE, "docs/how-to/cluster.md"])
def test_commands_that_are_only_shown_would_be_understood(document: str) -> None:
    shown = "".join(code for language, code in blocks(document, "setup") if language == "sh")
    commands = [shlex.split(line) for line in shown.replace("\\\n", " ").splitlines()]
    assert commands
    for program, *words in commands:
        if program == "penstock":
            build(words).parse_args(words, exit_on_error=False)


@pytest.mark.parametrize("document", ["docs/how-to/pipeline.md", "docs/how-to/cluster.md"])
def test_every_config_of_a_page_loads(document: str, tmp_path: Path) -> None:
    samples = [code for language, code in blocks(document) if language == "yaml"]
    assert samples
    for sample in samples:
        (tmp_path / "penstock.yaml").write_text(sample)
        load(tmp_path / "penstock.yaml", {"PIPELINE_TOKEN": "a-token-of-some-length"})
