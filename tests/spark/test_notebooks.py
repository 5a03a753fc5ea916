"""The notebook and the code for notebooks of the pages, in the session of the tests, on the directory that the pages filled."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal.lake_location import ObjectPath
from tests.docs.documents import blocks, penstock
from tests.docs.test_object_store import PAGE as STORE_PAGE
from tests.object_store import ObjectStore
from tests.paths import ROOT
from tests.server_process import ServerProcess
from tests.spark.connect_server import connect_server, plain_environment
from tests.spark.shared_pipeline import START_S, stop
from tests.spark.test_lake_objects import placed

SPARK_PAGE = "docs/how-to/spark.md"
WITH_CODE_FOR_SPARK = ["docs/tutorial/first-pipeline.md", SPARK_PAGE]
OWN_PAGE = "docs/how-to/own-table.md"
NOTEBOOK = "examples/pipeline.ipynb"


def _cells() -> list[str]:
    """The code of the notebook."""
    cells = [cell for cell in json.loads((ROOT / NOTEBOOK).read_text())["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells), "a notebook is kept without what it printed"
    return ["".join(cell["source"]) for cell in cells]


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
    pieces.append((NOTEBOOK, "\n".join(_cells())))
    monkeypatch.chdir(quiet.folder)
    monkeypatch.setenv("PENSTOCK_DATA", str(quiet.data))
    for name, code in pieces:
        capsys.readouterr()
        # Spark was started elsewhere, so what is relative for a reader cannot be so here.
        here = code.replace('"penstock-data', f'"{quiet.data}').replace("'penstock-data", f"'{quiet.data}")
        exec(compile(here, name, "exec"), {"__name__": "__main__"})
    assert "|enqueue" in capsys.readouterr().out


def _own_tables() -> str:
    """The functions of the page about tables of one's own, on rows that a session of Connect reads."""
    [(_, functions)] = blocks(OWN_PAGE, "file")
    return f"""{functions}
from penstock.spark import make_session, tables

spark = make_session("own", master="local[2]")
tables(spark, "penstock-data")
events = spark.read.format("penstock").load("penstock-data")
sent = events.where(SENT)
before = spark.createDataFrame([], "journal string, sender string, envelopes bigint, bytes bigint")
session = sent.withColumn("session_start", f.col("recorded_at")).withColumn("session_end", f.col("recorded_at"))
made = [
    given_up(events.where("event = 'dead'")), last_sent(sent), waits(events.where("event = 'ack'")), visits(session),
    outcomes(spark.table("envelopes"), spark.table("deliveries")), senders(sent, before),
]
for one in made:
    assert one.count() > 0
"""


def _in_a_store(lake: ObjectPath) -> str:
    """The block about a lake in an object store, after a table was written there."""
    [(_, block)] = blocks(STORE_PAGE, "spark")
    written = f'.option("credentials", "{lake.credentials}").mode("append").save("{lake.url}/events")'
    return f"""
from penstock.spark import make_session

spark = make_session("store", master="local[2]")
spark.range(3).write.format("penstock_delta"){written}
{placed(block, lake)}
assert rows.count() == 3
"""


@pytest.mark.more
@pytest.mark.promise("Documentation", "every block of the Spark pages runs in a classic session and over Connect")
def test_the_pages_run_over_connect(quiet: ServerProcess, object_store: ObjectStore, tmp_path: Path) -> None:
    """As programs of their own: a process has either a classic session or one of Connect."""
    penstock(quiet, "log", "seal")
    programs = {page: "\n".join(code for _, code in blocks(page, "spark")) for page in WITH_CODE_FOR_SPARK}
    programs |= {
        NOTEBOOK: "\n".join(_cells()),
        OWN_PAGE: _own_tables(),
        STORE_PAGE: _in_a_store(object_store.lake(tmp_path)),
    }
    local = 'master="local[2]"'
    with connect_server(quiet.folder) as url:
        for name, code in programs.items():
            assert code.count(local) == 1
            done = subprocess.run(
                [sys.executable, "-c", code.replace(local, f'master="{url}"')],
                cwd=quiet.folder,
                env=plain_environment(),
                capture_output=True,
                text=True,
                timeout=START_S,
                check=False,
            )
            assert done.returncode == 0, name + done.stdout + done.stderr
