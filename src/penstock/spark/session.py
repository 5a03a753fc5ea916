"""The Spark session of the pipeline and of everything else here that needs one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.spark import java
from penstock.spark.master import check_master, is_local, master_refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Lists and maps are handed to Python in a time that grows with the square of this.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Batches are small and many: plans that are made twice cost more than they save."""
PYTHON_SETTING = "spark.pyspark.python"
"""Spark obeys it only where its own launcher starts the driver, so we obey it here."""


def make_session(
    name: str, *, master: str | None = None, memory: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with the right Java and the Python that runs this; `conf` has the last word.

    `memory` is the driver's heap, which in local mode is all of Spark; that of executors is `spark.executor.memory`. Executors start a
    Python of the same path as the driver's, or as `spark.pyspark.python` says; the driver starts it too, to plan what a source reads.
    """
    java.use()
    python = (conf or {}).get(PYTHON_SETTING)
    # Functions run in the first and sources are read by the second, on executors too.
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if python is not None:
            os.environ[variable] = python
        else:
            os.environ.setdefault(variable, sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
        if is_local(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        check_master(master)
    settings = dict(DEFAULTS)
    if memory is not None:
        settings["spark.driver.memory"] = memory
    settings.update(conf or {})
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        if master is None or "stopped SparkContext" not in str(error):
            raise
        raise master_refused(master) from error
