"""The sensors example, end to end: frames to the collector, means by Spark, frames back to the dashboard."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from itertools import cycle
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import penstock
from penstock.core.clock import rfc3339
from penstock.spark import location
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.steps import built_in, only
from tests.paths import ROOT
from tests.server_process import ServerProcess, start_server  # noqa: F401 - a fixture
from tests.tiers import first_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = ROOT / "examples" / "sensors"
PATIENCE_S = 90.0
"""For a Spark that has nothing warm yet on a machine that is busy with other tests."""
WINDOW_US = 2_000_000
PAUSE_S = 0.05
WINDOWS = first_of((1, 2), 1)
"""Windows of each sensor that are waited for."""
READINGS = {"sensor-1": [1.0, 2.0, 6.0], "sensor-2": [20.5], "sensor-3": [-4.0, 4.5]}
"""Sent repeatedly."""


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"sensors_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def told(url: str, windows: int) -> list[dict[str, Any]]:
    """What the dashboard receives until it has some windows of each sensor."""
    sensors, dashboard = loaded("sensors"), loaded("dashboard")
    heard: list[dict[str, Any]] = []

    async def watch(space: penstock.Space) -> None:
        async for found in dashboard.averages(space):
            heard.append(found)
            counts = Counter(row["sensor"] for row in heard)
            if all(counts[sensor] >= windows for sensor in READINGS):
                return

    async with (
        asyncio.timeout(PATIENCE_S),
        penstock.Space(url, space="demo", participant="dashboard", token=dashboard.TOKEN) as space,
    ):
        work = [
            asyncio.create_task(sensors.measure(url, sensor, cycle(readings), PAUSE_S))
            for sensor, readings in READINGS.items()
        ]
        await watch(space)
        for task in work:
            task.cancel()
        ended = await asyncio.gather(*work, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
    return heard


def measured(data: Path) -> dict[tuple[str, str], list[float]]:
    """What the journal has of the sensors, by sensor and window."""
    journal = location.open_one(data)
    names = ["recorded_at", "event", "sender", "recipients", "body"]
    found: dict[tuple[str, str], list[float]] = {}
    for batch in journal.batches(0, journal.bounds().end, names):
        for row in batch.to_pylist():
            if row["event"] == "frame":
                assert row["recipients"] == 1, "a frame for the collector is given to nobody else"
                us = round(row["recorded_at"].timestamp() * 1_000_000) // WINDOW_US * WINDOW_US
                window = row["sender"], rfc3339(us)
                found.setdefault(window, []).append(msgspec.json.decode(row["body"])["celsius"])
    return found


@pytest.fixture
def server(start_server: Callable[..., ServerProcess]) -> ServerProcess:  # noqa: F811
    return start_server(config=f"spaces: [{EXAMPLE / 'space.yaml'}]")


@pytest.mark.promise(
    "Spark: pipeline",
    "sensor data goes through Spark to a dashboard: each window once, with the right mean",
)
@pytest.mark.parametrize("windows", WINDOWS)
def test_the_dashboard_receives_the_means_of_the_sensor_readings(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, windows: int
) -> None:
    query = loaded("collector").start(spark, {"path": str(server.data)}, str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()  # it reads from now on, so it has to have begun
        heard = asyncio.run(told(server.http, windows))
    finally:
        query.stop()
    windows = [(row["sensor"], rfc3339(_us(row["from"]))) for row in heard]
    assert len(set(windows)) == len(windows), "a window is told once"
    kept = measured(server.data)
    for window, row in zip(windows, heard, strict=True):
        assert row["readings"] == len(kept[window])
        assert row["celsius"] == pytest.approx(mean(kept[window]))
    check_tables(spark, server, tmp_path / "lake", frames=sum(map(len, kept.values())))


@pytest.mark.more
@pytest.mark.promise("Documentation", "blocks that need Spark run with a pipeline")
@pytest.mark.promise(
    "Spark: pipeline",
    "custom queries run in the pipeline's session, and a failing one disturbs no other",
)
def test_the_command_of_the_readme_shows_means_in_order_and_what_targets_save() -> None:
    assert "`python examples/sensors/run.py`" in (EXAMPLE.parents[1] / "README.md").read_text()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "run.py"), "--windows", "2"],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    progress, _, shown = done.stdout.partition("as the dashboard received them:\n")
    assert "Spark is starting" in progress
    means, streams, saved = shown.strip().split("\n\n")
    header, *windows = means.splitlines()
    assert header.split() == ["from", *READINGS]
    starts = [line.split()[0] for line in windows]
    assert len(starts) == 2 and starts == sorted(starts)
    assert all(line.count("°C of") == len(READINGS) for line in windows)
    rows = [line.split() for line in streams.splitlines()[1:]]
    frames = {owner: (to, int(count), int(deliveries)) for owner, to, count, deliveries, _ in rows}
    for sensor in READINGS:
        to, count, deliveries = frames[sensor]
        assert (to, deliveries) == ("collector", count)
    to, count, deliveries = frames["collector"]
    assert (to, deliveries) == ("everybody", 4 * count), "three sensors and the dashboard"
    assert re.fullmatch(r"targets saved 80% of the deliveries of readings: \d+ instead of \d+", saved)


def check_tables(spark: SparkSession, server: ServerProcess, lake: Path, frames: int) -> None:
    """What the lake has of it: every frame for the collector, and that the others were spared it."""
    ingest = Ingest(
        spark,
        location.open_one(server.data),
        lake,
        only(built_in(), ["frames", "fanout_minutes", "envelopes"]),
    )
    ingest.backfill()
    ingest.close()
    rows = ingest.table("frames").rows().to_pylist()
    assert len(rows) == frames
    assert {(row["space"], row["sender"], *row["targets"]) for row in rows} == {
        ("demo", sensor, "collector") for sensor in READINGS
    }
    minutes = ingest.table("fanout_minutes").rows().to_pylist()
    assert {row["space"] for row in minutes} == {"demo"}
    assert sum(row["frames"] for row in minutes) >= frames
    assert sum(row["saved"] for row in minutes) >= frames
    opened = [row for row in ingest.table("envelopes").rows().to_pylist() if row["type"] == "stream/request"]
    assert {(row["door"], row["channel"], row["sender"], row["payload_error"]) for row in opened} == {
        ("mew", "demo", sensor, None) for sensor in READINGS
    }


def _us(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1_000_000)
