"""One Spark session for every test that needs one: starting it costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores, small and quick to warm up."""
    from penstock.spark.session import make_session

    session = make_session(
        "tests",
        master="local[2]",
        conf={
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()
