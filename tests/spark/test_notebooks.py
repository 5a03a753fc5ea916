"""The notebook and the code for notebooks of the pages, in the session of the tests, on the directory that the pages filled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.docs.documents import blocks, penstock
from tests.paths import ROOT
from tests.server_process import ServerProcess
from tests.spark.connect_server import connect_server, plain_environment
from tests.spark.shared_pipeline import START_S, stop

SPARK_PAGE = "docs/how-to/spark.md"
WITH_CODE_FOR_SPARK = ["docs/tutorial/first-pipeline.md", SPARK_PAGE]
NOTEBOOK = "examples/pipeline.ipynb"


@pytest.fixture
def quiet(demo_pipeline: ServerProcess) -> Iterator[ServerProcess]:
    """The directory with its tables, when only the broker runs on it."""
    if demo_pipeline.process.poll() is None:
        penstock(demo_pipeline, "pipeline", "wait", "--timeout", str(START_S))
        stop(demo_pipeline)
    server = ServerProcess(demo_pipeline.folder)
    yield server
    stop(server)


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
        here = code.replace('"penstock-data', f'"{quiet.data}').replace("'penstock-data", f"'{quiet.data}")
        exec(compile(here, name, "exec"), {"__name__": "__main__"})
    assert "|enqueue" in capsys.readouterr().out


@pytest.mark.more
@pytest.mark.promise("Documentation", "every block of the Spark page runs in a classic session and over Connect")
def test_the_page_runs_over_connect(quiet: ServerProcess) -> None:
    """As a program of its own: a process has either a classic session or one of Connect."""
    penstock(quiet, "log", "seal")
    code = "\n".join(code for _, code in blocks(SPARK_PAGE, "spark"))
    local = 'master="local[2]"'
    assert code.count(local) == 1
    with connect_server(quiet.folder) as url:
        program = code.replace(local, f'master="{url}"')
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=quiet.folder,
            env=plain_environment(),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "|enqueue" in done.stdout
