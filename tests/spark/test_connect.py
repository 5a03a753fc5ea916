"""Spark Connect as a way in: a session of its own, and one of a separate server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from penstock.spark import java
from tests.docs.documents import penstock
from tests.integration.serving import Http, ids
from tests.paths import ROOT
from tests.server_process import ServerProcess
from tests.spark.connect_server import connect_server, plain_environment

PROGRAM = ("-m", "tests.spark.over_connect")
PATIENCE_S = 600.0
"""A JVM starts, and a dozen jobs run, on a machine that is busy with other tests."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Three envelopes, and one that is acknowledged; sealed."""
    process = ServerProcess(tmp_path)
    try:
        Http(process.http).enqueue("jobs", "a", "b", "c")
        settle(process, "w")
        penstock(process, "log", "seal")
        yield process
    finally:
        process.kill()


def settle(server: ServerProcess, *names: str) -> None:
    """Send envelopes and acknowledge them."""
    http = Http(server.http)
    http.enqueue("work", *names)
    for name in ids(http.pull("work", max=len(names))):
        assert http.settle(name, "ack", stream="work").status == 200


def run(server: ServerProcess, *words: str) -> None:
    """Run a program in the server's directory; the Python of its workers is not on the PATH."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=server.folder,
        env=plain_environment(SPARK_TESTING="1"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise("Spark: source and sinks", "everything works over Spark Connect as in a classic session")
@pytest.mark.promise("Spark: source and sinks", "workers run the Python that imported `penstock.spark`")
@pytest.mark.more
def test_a_local_connect_session_reads_writes_and_has_the_tables(server: ServerProcess) -> None:
    run(server, *PROGRAM, str(server.data), "local[1]")
    assert len(Http(server.http).get("/v1/peek", stream="ones", max=10).json["rows"]) == 1


@pytest.mark.more
@pytest.mark.promise("Spark: source and sinks", "everything works over Spark Connect as in a classic session")
def test_a_separate_connect_server_does_the_same(server: ServerProcess) -> None:
    with connect_server(server.folder) as url:
        run(server, *PROGRAM, str(server.data), url)


def test_the_declarative_project_is_complete() -> None:
    """The short case of the next one: the spec is read as Spark reads it, and it finds the definitions."""
    from pyspark.pipelines.cli import load_pipeline_spec

    file = ROOT / "examples/declarative/spark-pipeline.yml"
    spec = load_pipeline_spec(file)
    found = [path.name for library in spec.libraries for path in file.parent.glob(library.include) if path.is_file()]
    assert "settled.py" in found and spec.storage.startswith("file:///")


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "a declarative pipeline of Spark keeps a table of the lake")
def test_the_declarative_project_runs_as_documented(server: ServerProcess) -> None:
    """Each run adds what came since the one before."""
    folder = server.folder / "declarative"
    shutil.copytree(ROOT / "examples/declarative", folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/penstock-declarative", f"file://{folder}/storage"))
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run", "--spec", str(spec)]
    env = plain_environment(PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(java.find().home))
    for names in (("a", "b"), ("c",)):
        settle(server, *names)
        done = subprocess.run(
            command, cwd=server.folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rows = penstock(server, "sql", "select id, took_ms from settled order by id", "--json").splitlines()
    assert [json.loads(row)["id"] for row in rows] == ["a", "b", "c", "w"]
    assert all(json.loads(row)["took_ms"] >= 0 for row in rows)
