"""The Spark session of the pipeline and of everything else here that needs one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Batches are small and many: plans that are made twice cost more than they save."""


def make_session(
    name: str, *, master: str | None = None, memory: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with the right Java and the Python that runs this; `conf` has the last word."""
    java.use()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = dict(DEFAULTS)
    if memory is not None:
        settings["spark.driver.memory"] = memory
    settings.update(conf or {})
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
