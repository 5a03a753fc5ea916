"""Shared by every test: deterministic property tests, Ctrl-C for child processes, and one Spark session."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.object_store import object_store, s3_server  # noqa: F401 - fixtures
from tests.spark.shared_pipeline import QUICK_SPARK, demo_pipeline  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A shell that starts the tests in the background has them ignore it, and their children with them.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores, small and quick to warm up; starting one costs more than most tests."""
    from penstock.spark.session import make_session

    session = make_session(
        "tests",
        master="local[2]",
        conf={
            **QUICK_SPARK,
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()
