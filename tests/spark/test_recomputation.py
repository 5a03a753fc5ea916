"""The outside recomputation: it agrees with a pipeline whose server and driver are killed, and it finds planted errors."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.docs.documents import penstock
from tests.integration.serving import Http, envelope
from tests.object_store import BUCKET, ObjectStore
from tests.server_process import ServerProcess
from tests.spark.journal_builder import COPIES, STRICT, JournalBuilder, rule, speak, talk, work
from tests.spark.pipeline.queried import exported
from tests.spark.pipeline.test_process import POLL_S, command, until
from tests.spark.recomputation.alerts import alerts
from tests.spark.recomputation.check import TABLES, check, compare, lake_tables
from tests.spark.recomputation.rows import MINUTE_US, Journal, Row, plain
from tests.spark.shared_pipeline import START_S, status, stop

SILENT_MS = 3_000
RULES: list[Row] = [
    {"kind": "dead_letters", "id": "dead", "severity": "critical"},
    {"kind": "rate", "id": "many", "above": 5, "channel": "jobs/*"},
    {"kind": "latency", "id": "slow", "above": 0.5},
    {"kind": "trigger_failures", "id": "failing"},
    {"kind": "silence", "id": "quiet", "agent": "walker", "for_ms": SILENT_MS},
]
TRIGGERS = [COPIES | {"when": {"to": "jobs/a"}}, STRICT | {"when": {"to": "jobs/b"}}]
CONFIG: dict[str, Any] = {
    "triggers": TRIGGERS,
    "relay": {"journal": "full"},
    "pipeline": {
        "memory": "512m",
        "nice": 0,
        "trigger_ms": 1_000,
        "watch_ms": 1_000,
        "alerts": {"to": "ops", "rules": RULES},
    },
}
"""YAML, since it is JSON."""


def press(http: Http, name: str) -> None:
    """Traffic of the queue with every outcome, beside that of the demo; the agent `walker` acts once."""
    for stream in ("jobs/a", "jobs/b"):
        for number in range(8):
            more = {"corr": f"talk-{number % 3}", "refs": [f"{stream}-{name}-{number - 1}"], "tags": ["t", name]}
            made = envelope(
                f"{stream}-{name}-{number}", {"n": number}, **more, headers={"n": number, "h": "x"}, odd=[1]
            )
            for _ in range(1 + (number == 5)):  # one comes twice
                assert http.post("/v1/enqueue", {"to": stream, "envelope": made}).status == 200
        taken = {one["deliver"]["id"]: one["leaseId"] for one in http.pull(stream, max=6)}
        for place, (id_, lease) in enumerate(taken.items()):
            op = ("ack", "ack", "nack", "term", "ack", "release")[place % 6]
            assert http.settle(id_, op, leaseId=lease, reason=op).status == 200
        http.post("/v1/redrive", {"stream": f"dlq/{stream}"})
    http.enqueue("hung", f"h-{name}")
    http.pull("hung", lease_ms=1_000)
    http.enqueue("cleared", f"c-{name}-1", f"c-{name}-2")
    assert http.post("/v1/purge", {"stream": "cleared"}).status == 200
    assert (
        http.post("/v1/enqueue", {"to": "jobs/a", "envelope": envelope(f"w-{name}", **{"from": "walker"})}).status
        == 200
    )


def _running(server: ServerProcess, but: int | None = None) -> int:
    """Wait for a pipeline that runs; returns its process."""
    deadline = time.monotonic() + START_S
    while (now := status(server.data)).state != "running" or now.pid == but:
        assert time.monotonic() < deadline, server.log()
        time.sleep(POLL_S)
    assert now.pid is not None
    return now.pid


def _gauged(http: Http) -> bool:
    """Whether a minute of the pressed streams is closed."""
    rows = exported_over_http(http)
    return ("jobs/a", "gauge") in zip(rows["channel"].to_pylist(), rows["event"].to_pylist(), strict=True)


def exported_over_http(http: Http) -> pa.Table:
    """The rows of a running server, as `/v1/journal/rows` gives them."""
    answer = http.get("/v1/journal/rows", **{"from": 0, "to": http.get("/v1/journal").json["end"]})
    assert answer.status == 200, answer.body
    return pa.ipc.open_stream(answer.body).read_all()


@pytest.mark.more
@pytest.mark.promise(
    "Spark: pipeline", "a recomputation outside of Spark agrees in every cell, after kills, on a disk and in S3"
)
@pytest.mark.parametrize("place", ["disk", "store"])
def test_an_outside_recomputation_agrees_in_every_cell(
    request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    config, options = dict(CONFIG), None
    lake = str(tmp_path / "penstock-data" / "lake")
    if place == "store":
        store: ObjectStore = request.getfixturevalue("object_store")
        lake, options = f"s3://{BUCKET}/{tmp_path.name}", store.environment(AWS_ALLOW_HTTP="true")
        config |= {"lake": lake, "lake_credentials": str(store.credentials(tmp_path))}

    def start() -> tuple[ServerProcess, Http]:
        server = ServerProcess(tmp_path, "--pipeline", "--demo", "--relay", config=json.dumps(config))
        return server, Http(server.http, (server.data / "run" / "operator.token").read_text().strip())

    server, http = start()
    try:
        driver = _running(server)
        press(http, "first")
        os.kill(driver, signal.SIGKILL)
        press(http, "second")
        driver = _running(server, but=driver)
        press(http, "third")
        server.kill()
        os.kill(driver, signal.SIGKILL)
        shutil.rmtree(server.data / "lake" / "_checkpoints")
        server, http = start()
        press(http, "fourth")
        _running(server, but=driver)
        press(http, "last")
        until(lambda: _gauged(http), "the end of a minute")
        time.sleep(SILENT_MS / 1000)  # the agent `walker` is silent, while others act
        penstock(server, "pipeline", "wait", "--timeout", str(START_S))
        seen = plain(exported_over_http(http))
    finally:
        stop(server)
    given = ("--data", str(server.data), "--config", str(tmp_path / "config.yaml"))
    # Spark gives a Python worker ten seconds to start. On a busy machine that may fail, and the next run continues.
    runs = (command("pipeline", "run", "--once", *given, check=False, timeout=2 * START_S) for _ in range(3))
    assert any(done.returncode == 0 for done in runs)
    events = DeltaTable(f"{lake}/events", storage_options=options).to_pyarrow_table()
    sealed = [row for row in plain(events.drop_columns(["date"])) if row["offset"] < len(seen)]
    compare("events", ("offset",), sealed, seen)
    assert set(events.column("door").to_pylist()) == {"courier", "mew", "streamservice", "server"}
    assert events.column("event").to_pylist().count("start") == 2
    cells = check(events, lake_tables(lake, options), rules=RULES)
    assert min(count for name, count in cells.items() if name != "gaps") > 0, cells


# Planted errors

STORY_RULES: list[Row] = [
    {"kind": "dead_letters", "id": "dead"},
    {"kind": "silence", "id": "quiet", "agent": "bob", "for_ms": 10_000},
]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, dict[str, list[Row]]]:
    """Two minutes of work, and its tables as they should be."""
    made = JournalBuilder(tmp_path_factory.mktemp("story"))
    rule(made, COPIES, STRICT)
    talk(made, 0)
    speak(made, 0)
    work(made, 2, each=4)
    made.close()
    events = exported(made.data)
    journal = Journal(events)
    tables = {name: list(compute(journal)) for name, (_, compute) in TABLES.items()}
    return events, tables | {"alerts": list(alerts(journal, STORY_RULES))}


def _first(rows: list[Row], **changed: Any) -> list[Row]:
    return [rows[0] | changed, *rows[1:]]


MUTANTS: dict[str, tuple[str, Callable[[list[Row]], list[Row]]]] = {
    "a delivery is lost": ("deliveries", lambda rows: rows[1:]),
    "a delivery is there twice": ("deliveries", lambda rows: [*rows, rows[0]]),
    "an envelope is invented": ("envelopes", lambda rows: [*rows, rows[0] | {"offset": 1_000_000}]),
    "a minute is shifted": (
        "queue_minutes",
        lambda rows: _first(rows, minute=rows[0]["minute"] - MINUTE_US),
    ),
    "a minute is final too early": ("queue_minutes", lambda rows: [row | {"final": True} for row in rows]),
    "a percentile is the mean": ("queue_minutes", lambda rows: [row | {"wait_p95_ms": 0.0} for row in rows]),
    "one ack too many": ("queue_minutes", lambda rows: _first(rows, acked=rows[0]["acked"] + 1)),
    "the arrival counts as the enqueue": (
        "deliveries",
        lambda rows: _first(rows, enqueued_at=rows[0]["enqueued_at"] - 250),
    ),
    "a payload is written anew": ("envelopes", lambda rows: _first(rows, payload=f"{rows[0]['payload']} ")),
    "a frame is short": ("frames", lambda rows: _first(rows, body=rows[0]["body"][1:])),
    "a chain is cut": (
        "conversations",
        lambda rows: [row | {"critical_path": row["critical_path"][-1:]} for row in rows],
    ),
    "a gap is ignored": ("token_streams", lambda rows: [row | {"gaps": 0} for row in rows]),
    "an agent seems older": ("agents", lambda rows: _first(rows, offset=rows[0]["offset"] - 1)),
    "a silence is missed": ("alerts", lambda rows: [row for row in rows if row["rule"] != "quiet"]),
    "a silence begins later": (
        "alerts",
        lambda rows: [row | {"fired_at": row["fired_at"] + 1} if row["rule"] == "quiet" else row for row in rows],
    ),
    "a column is new": ("gaps", lambda _: [{"from_offset": 0}]),
}


def _reader(tables: dict[str, list[Row]]) -> Callable[[str], list[Row]]:
    """Tables as a lake would give them: `extra` is text there."""

    def read(name: str) -> list[Row]:
        rows = tables[name]
        return [row | {"extra": json.dumps(row["extra"])} if row.get("extra") else row for row in rows]

    return read


def test_the_recomputation_agrees_with_itself(story: tuple[pa.Table, dict[str, list[Row]]]) -> None:
    events, tables = story
    cells = check(events, _reader(tables), rules=STORY_RULES)
    assert cells["gaps"] == 0 and min(count for name, count in cells.items() if name != "gaps") > 0, cells


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_recomputation_finds_a_planted_error(story: tuple[pa.Table, dict[str, list[Row]]], mutant: str) -> None:
    events, tables = story
    name, change = MUTANTS[mutant]
    with pytest.raises(AssertionError, match=name):
        check(events, _reader(tables | {name: change(tables[name])}), rules=STORY_RULES)
