"""The pipeline on a standalone cluster: executors know only the server's URL, and the tables equal those of local mode.

Driver and executors use the Python that runs the tests, where the package is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.ipc.pipeline import (
    STATUS_FILE,
    AlertsSection,
    DeadLetterRule,
    PipelineStatus,
    SilenceRule,
)
from penstock.spark import location
from penstock.spark.lake.catalog import open_table
from penstock.spark.lake.schemas import ALERTS, ENVELOPES
from penstock.spark.lake.table import LakeTable
from penstock.spark.pipeline import own_tables, steps
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.watch import AlertWatch
from tests.integration.serving import Http
from tests.server_process import SOURCE, ServerProcess, environment
from tests.spark.clusters import PATIENCE_S, SMALL, Cluster, until
from tests.spark.journal_builder import WATCHED, JournalBuilder, content, work
from tests.spark.journaled import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = f"{JOURNAL}/0"
RULES = AlertsSection((DeadLetterRule("dead"), SilenceRule("quiet", for_ms=100 * 365 * 86_400_000)), to="ops")
CONFIG = """\
pipeline:
  batch_rows_max: {rows_max}
  tables: [{tables}]
  alerts: {alerts}
"""
TABLES = """\
import os
import shutil
import socket
from pathlib import Path

from penstock.spark import table

FOLDER = Path({folder!r})


@table()
def senders(events):
    def pass_on(batches):
        \"\"\"The first task says where it runs, then waits for something that never comes.\"\"\"
        draft = FOLDER / f"draft-{{os.getpid()}}"
        draft.write_text(os.getcwd())
        try:
            os.link(draft, FOLDER / "first")
        except FileExistsError:
            draft.rename(FOLDER / "later")
        else:
            (FOLDER / "gate").read_bytes()
        yield from batches

    rows = events.where("event = 'enqueue'").select("journal", "offset", "sender")
    return rows.mapInArrow(pass_on, rows.schema)
"""
SCRIPT = """\
import json
import sys

import penstock
from penstock.spark.session import make_session
from pyspark.sql.functions import udf

assert ".zip" in penstock.__file__, penstock.__file__
options = json.loads(sys.argv[1])
spark = make_session("zipped", master=options["master"], conf=options["conf"])


@udf("string")
def where(_):
    import penstock

    return json.dumps(penstock.__file__)


door = {"url": options["url"], "tokenFile": options["token"]}
jobs = (
    spark.readStream.format("penstock").options(**door, startingOffsets="earliest")
    .options(event="enqueue", channel="jobs", columns="id").load()
)
copies = jobs.select("id", where("id").alias("payload"))
writer = copies.writeStream.format("penstock").options(**door, app="copies", to="stream:copies", type="copy")
writer.option("checkpointLocation", options["checkpoint"]).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SMALL,
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on a directory with a few minutes of work in it, half of them sealed."""
    folder = tmp_path_factory.mktemp("server")
    story = JournalBuilder(folder / "penstock-data")
    work(story, 1)
    story.seal()
    work(story, 1)
    story.close()
    process = ServerProcess(folder, config="journal: {retention: {age_ms: 0}}")  # the work is from long ago
    yield process
    process.kill()


def run(server: ServerProcess, master: str, *words: str) -> subprocess.Popen[bytes]:
    """`penstock pipeline run --once` on a cluster, as a user types it."""
    command = [sys.executable, "-m", "penstock.cli", "pipeline", "run", "--once", "--data", str(server.data)]
    command += ["--url", server.http, "--master", master, *words]
    for key, value in SETTINGS.items():
        command += ["--conf", f"{key}={value}"]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "a standalone cluster with a killed worker gives the same tables as local mode")
def test_a_killed_worker_changes_nothing_and_the_tables_are_those_of_local_mode(
    cluster: Cluster, server: ServerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    tables, config = tmp_path / "my_tables.py", tmp_path / "config.yaml"
    tables.write_text(TABLES.format(folder=str(tmp_path)))
    rules = msgspec.json.encode(RULES).decode()
    config.write_text(CONFIG.format(rows_max=60, tables=tables, alerts=rules))
    os.mkfifo(tmp_path / "gate")
    driver = run(server, cluster.master, "--config", str(config))
    try:
        until((tmp_path / "first").exists, "a task of the first batch", driver)
        cluster.kill(cluster.worker_of((tmp_path / "first").read_text()))
        output, _ = driver.communicate(timeout=PATIENCE_S)
    finally:
        driver.kill()
        driver.communicate()
    assert driver.returncode == 0, output.decode()
    [survivor] = cluster.workers
    assert cluster.worker_of((tmp_path / "later").read_text()) == survivor

    status = msgspec.json.decode((server.data / "run" / STATUS_FILE).read_bytes(), type=PipelineStatus)
    assert status.state == "stopped" and status.behind == {}
    for query in status.queries.values():  # more than one batch
        assert 0 < query.rows < query.offset
    journal = location.open_one(server.data)
    lake, expected = server.data / "lake", tmp_path / "expected"
    ends = {name: LakeTable(lake, table).progress(APP) for name, table in (("e", ENVELOPES), ("a", ALERTS))}
    assert ends["e"] == status.queries["ingest"].offset and ends["a"] == status.queries["watch"].offset
    ingest = Ingest(spark, journal, expected, steps.built_in() + own_tables.load(spark, [tables]))
    ingest.on_batch({journal.id: ends["e"]})
    watch = AlertWatch(spark, journal, expected, RULES, None)
    watch.on_batch({journal.id: ends["a"]})
    assert content(lake) == content(expected)
    senders = [open_table(location, "senders").rows().sort_by("offset") for location in (lake, expected)]
    assert senders[0].equals(senders[1]) and senders[0].num_rows > 0
    made, wanted = content(lake, WATCHED), content(expected, WATCHED)
    told = {row.pop("envelope_id") for row in made["alerts"]}
    assert [row.pop("envelope_id") for row in wanted["alerts"]] == [None] * len(told)
    assert made == wanted and len(told) == 2 and len(made["agents"]) == 3
    ids = [delivery["deliver"]["id"] for delivery in Http(server.http).pull("agents/ops/inbox", max=100)]
    assert len(ids) == len(set(ids)) and told <= set(ids)


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "the package is shipped to executors")
def test_a_zip_of_the_package_serves_source_and_sink_where_it_is_not_installed(
    cluster: Cluster, server: ServerProcess, tmp_path: Path
) -> None:
    """In `PYTHONPATH` for the driver's own Python processes, and in `spark.submit.pyFiles` for the executors."""
    zipped = shutil.make_archive(str(tmp_path / "penstock-all"), "zip", SOURCE)
    options = {
        "master": cluster.master,
        "url": server.http,
        "token": str(server.data / "run" / "operator.token"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "conf": {
            **SETTINGS,
            "spark.submit.pyFiles": zipped,
            "spark.local.dir": str(tmp_path),
            "spark.driver.extraJavaOptions": SMALL,
        },
    }
    script = tmp_path / "copies.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [bare_python(tmp_path / "bare"), str(script), msgspec.json.encode(options).decode()],
        env=environment(PYTHONPATH=zipped),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    jobs = location.open_one(server.data).batches(0, 120, ["event", "channel", "id"])
    sent = [
        row["id"]
        for batch in jobs
        for row in batch.to_pylist()
        if (row["event"], row["channel"]) == ("enqueue", "jobs")
    ]
    copies = [delivery["deliver"] for delivery in Http(server.http).pull("copies", max=100)]
    assert sorted(copy["id"] for copy in copies) == sorted(sent) != []
    assert {"penstock-all.zip/penstock/" in copy["payload"] for copy in copies} == {True}


def bare_python(folder: Path) -> str:
    """A Python that has everything that is installed here but the package itself, which `.pth` files bring."""
    venv.create(folder, symlinks=True, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "bin" / "python"
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run([python, "-c", "import pyspark, penstock"], env=bare, capture_output=True, check=False)
    assert b"No module named 'penstock'" in found.stderr
    return str(python)
