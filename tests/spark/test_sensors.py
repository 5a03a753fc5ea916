"""The example of the sensors, end to end: frames to the collector, means by Spark, frames back to the dashboard."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.spark import places
from tests.server_process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "sensors"
PATIENCE_S = 90.0
"""For a Spark that has nothing warm yet on a machine that is busy with other tests."""
READINGS = {"sensor-1": [1.0, 2.0, 6.0], "sensor-2": [20.5] * 10, "sensor-3": [-4.0]}


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"sensors_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def told(url: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What the dashboard hears until every reading is in it: the last word on each sensor and window."""
    sensors, dashboard = loaded("sensors"), loaded("dashboard")
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    total = sum(map(len, READINGS.values()))

    async def watch(space: penstock.Space) -> None:
        async for found in dashboard.averages(space):
            latest[found["sensor"], found["from"]] = found
            if sum(row["readings"] for row in latest.values()) == total:
                return

    async with (
        asyncio.timeout(PATIENCE_S),
        penstock.Space(url, space="demo", participant="dashboard", token=dashboard.TOKEN) as space,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(watch(space))
        for sensor, readings in READINGS.items():
            tasks.create_task(sensors.measure(url, sensor, readings, pause_s=0))
    return latest


@pytest.fixture
def server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server(config=f"spaces: [{EXAMPLE / 'space.yaml'}]")


def test_the_dashboard_hears_the_means_of_what_the_sensors_told_the_collector(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    query = loaded("collector").start(spark, str(server.data), str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()  # it reads from now on, so it has to have begun
        latest = asyncio.run(told(server.http))
    finally:
        query.stop()
    for sensor, readings in READINGS.items():
        windows = [row for (name, _), row in latest.items() if name == sensor]
        assert sum(row["readings"] for row in windows) == len(readings)
        weighed = sum(row["celsius"] * row["readings"] for row in windows) / len(readings)
        assert weighed == pytest.approx(mean(readings))
    journal = places.open_one(server.data)
    rows = [
        row
        for batch in journal.batches(0, journal.bounds().end, ["event", "recipients", "meta"])
        for row in batch.to_pylist()
    ]
    kept = [row["recipients"] for row in rows if row["event"] == "frame"]
    assert kept == [1] * 14, "a frame for the collector is kept, and given to nobody else"
