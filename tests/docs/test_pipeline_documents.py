"""The pages about the pipeline, and the blocks of the README that need one: commands run with a real pipeline, in one server.

Starting Spark is expensive, so one server with a pipeline serves every page. `tests/spark/test_notebooks.py` runs the code for notebooks.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.cli import build
from penstock.client.admin import Stage
from penstock.server.config.load import load
from penstock.spark.pipeline.alerts import Alert, envelope
from penstock.spark.pipeline.watch import APP
from tests.docs.documents import ROOT, blocks, penstock, reader_environment, run_blocks
from tests.server_process import ServerProcess
from tests.spark.shared_pipeline import OWN_CONFIG, OWN_TABLE, status, stop

BLOCK_SECONDS = 240
"""A page may have to wait for Spark, on a machine that is busy with other tests."""
STOP_SECONDS = 60
OWN_PAGE = "docs/how-to/own-table.md"
BESIDE_A_PIPELINE = ["docs/tutorial/first-pipeline.md", "docs/how-to/pipeline.md"]
IN_PART = ["README.md", "docs/tutorial/ten-minutes.md"]
"""Pages that only need it for their blocks `sh spark`."""


def ask(server: ServerProcess, query: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in penstock(server, "sql", query, "--json").splitlines()]


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path)
    yield server
    stop(server)


@pytest.mark.parametrize("document", BESIDE_A_PIPELINE)
def test_every_command_of_a_page_runs_beside_the_pipeline(document: str, demo_pipeline: ServerProcess) -> None:
    assert run_blocks(document, demo_pipeline, BLOCK_SECONDS) >= 3, f"{document} has lost its examples"


@pytest.mark.promise("Documentation", "blocks that need Spark run with a pipeline")
@pytest.mark.parametrize("document", IN_PART)
def test_the_commands_of_a_page_that_need_the_pipeline_run_beside_it(
    document: str, demo_pipeline: ServerProcess
) -> None:
    assert run_blocks(document, demo_pipeline, BLOCK_SECONDS, mark="spark") >= 1, f"{document} has lost its examples"


@pytest.mark.promise("Spark: pipeline", "a custom table is one function and one line")
def test_a_table_of_ones_own_is_one_function_and_one_line(demo_pipeline: ServerProcess) -> None:
    """The page shows the example and the config that the server runs with, and its commands fill the tables."""
    assert [code for _, code in blocks(OWN_PAGE, "file")] == [(ROOT / OWN_TABLE).read_text()]
    assert run_blocks(OWN_PAGE, demo_pipeline, BLOCK_SECONDS) >= 3
    assert (demo_pipeline.folder / "penstock.yaml").read_text() == OWN_CONFIG
    given_up = ask(demo_pipeline, "select reason from given_up where id = 'sluice-1'")
    assert given_up == [{"reason": "term"}]
    assert ask(demo_pipeline, "select envelopes from senders where sender = 'ann'") == [{"envelopes": 2}]
    assert ask(demo_pipeline, "select sum(envelopes) as sent from visits where sender = 'ann'") == [{"sent": 2}]
    outcome = "select outcome from outcomes where id = 'sluice-1' and channel = 'jobs/sluice'"
    assert ask(demo_pipeline, outcome) == [{"outcome": "dead"}]
    settled = ask(demo_pipeline, "select count(*) as acked from deliveries where outcome = 'acked'")
    assert ask(demo_pipeline, "select sum(acked) as acked from waits") == settled
    (last,) = ask(demo_pipeline, "select offset from last_sent where sender = 'ann'")
    assert last == ask(demo_pipeline, "select max(offset) as offset from envelopes where sender = 'ann'")[0]
    typed = ask(demo_pipeline, "select gate, level, measured_at, place_river from types_plant_reading_v1")
    assert typed == [{"gate": 3, "level": 2.5, "measured_at": None, "place_river": "Aare"}]
    schemas = "schemas/plant/reading@v1.json"
    assert (demo_pipeline.folder / schemas).read_text() == (ROOT / "examples" / schemas).read_text()
    assert {(one.table, one.on_fail) for one in status(demo_pipeline.data).expectations} >= {
        ("given_up", "drop"),
        ("outcomes", "warn"),
    }


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
