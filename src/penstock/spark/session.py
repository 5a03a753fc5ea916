"""The Spark session of the pipeline, and of your own programs that use its formats."""

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
    # The time to pass lists and maps to Python grows with the square of this.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Batches are small and many: adaptive replanning costs more than it saves."""
PYTHON_SETTING = "spark.pyspark.python"
"""Spark reads it only if its own launcher starts the driver, so `make_session` applies it."""
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -Xss4m"
"""Quick to warm up and small. A code cache for many small plans; deep stacks, because Spark matches long texts recursively."""


def make_session(
    name: str, *, master: str | None = None, memory: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Make a Spark session that finds Java, uses the current Python, and has the settings of the pipeline.

    Parameters
    ----------
    name
        The name of the application.
    master
        `local[N]`, or the address of a cluster; by default that of Spark's own configuration.
    memory
        The heap of the driver, which in local mode is all of Spark. For executors set `spark.executor.memory`.
    conf
        Spark settings that override the others. Executors start the Python at the path of the driver's, or that of
        `spark.pyspark.python`.

    Returns
    -------
    SparkSession
        The session, or the one that this process already has.
    """
    java.use()
    python = (conf or {}).get(PYTHON_SETTING)
    # Spark runs functions with the first and reads sources with the second, on executors too.
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


def pipeline_conf(scratch: str) -> dict[str, str]:
    """Spark settings of the pipeline's own session; `scratch` is a directory for temporary files."""
    return {
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    }
