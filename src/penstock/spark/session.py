"""The Spark session of the pipeline, and of your own programs that use its formats.

Spark itself tries a master for a minute and then fails with a misleading message, so the master is checked before Java starts.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_S = 5.0
"""How long a master may take to accept a connection."""
_SCHEME = "spark://"
_CONNECT = "sc://"
_PORT = 7077
"""The default port of a standalone master."""


class MasterError(Exception):
    """The master cannot be used; the hint says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def is_local(master: str) -> bool:
    """Whether everything runs on this machine: in one process, or with a master on a loopback address."""
    if not master.startswith(_SCHEME):
        return master.startswith("local")
    return all(host == "localhost" or host.startswith("127.") for host, _ in _addresses(master))


def check_master(master: str) -> None:
    """Refuse a standalone master that does not answer. Of several, one is enough. Other cluster managers are left to Spark."""
    if not master.startswith(_SCHEME):
        return
    reasons = []
    for address in _addresses(master):
        try:
            socket.create_connection(address, ANSWER_S).close()
        except OSError as error:
            reasons.append(error.strerror or "no answer" if not isinstance(error, TimeoutError) else "no answer")
        else:
            return
    raise MasterError(
        f"no Spark master answers at `{master}`: {', '.join(dict.fromkeys(reasons)).lower()}",
        "start the master, or correct its address; the master's own page shows it",
    )


def _addresses(master: str) -> list[tuple[str, int]]:
    """The hosts and ports of `spark://host:port,host:port`."""
    found = []
    for part in master.removeprefix(_SCHEME).split(","):
        host, mark, port = part.rpartition(":")
        if mark and not port.isdigit():
            raise MasterError(f"`{master}` is not the address of a Spark master", f"write `{_SCHEME}host:{_PORT}`")
        found.append((host.strip("[]"), int(port)) if mark else (part, _PORT))
    return found


DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The time to pass lists and maps to Python grows with the square of this.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""Batches are small and many: adaptive replanning costs more than it saves."""
PYTHON_SETTING = "spark.pyspark.python"
"""Spark reads it only if its own launcher starts the driver, so `make_session` applies it."""
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -Xss4m -XX:-UsePerfData"
"""Quick to warm up and small. A code cache for many small plans; deep stacks, because Spark matches long texts recursively; no figures
for other programs, which a thread collects twenty times a second."""


def make_session(
    name: str, *, master: str | None = None, memory: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Make a Spark session that finds Java, uses the current Python, and has the settings of the pipeline.

    Parameters
    ----------
    name
        The name of the application.
    master
        `local[N]`, or the address of a cluster; by default that of Spark's own configuration. `sc://host:port` is a Spark Connect
        server: the session then has the SQL settings, and the server's Python needs Penstock.
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
    if master is not None and master.startswith(_CONNECT):
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName(name).remote(master)
        for key, value in {**DEFAULTS, **(conf or {})}.items():
            if key.startswith("spark.sql."):  # a Connect server refuses settings of the JVM
                builder = builder.config(key, value)
        return builder.getOrCreate()
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
        raise MasterError(  # Spark tried the master for a minute
            f"`{master}` accepts connections but no applications",
            "is it the port of a master, and of the same version of Spark? The master's own page shows both",
        ) from error


def pipeline_conf(scratch: str) -> dict[str, str]:
    """Spark settings of the pipeline's own session; `scratch` is a directory for temporary files."""
    return {
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    }


SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.ui.explainMode": "simple",
}
"""Settings for batches of a few rows, where planning takes longer than the work: one partition, and plans are not checked or printed."""


@lru_cache(maxsize=1)
def small_session(spark: SparkSession) -> SparkSession:
    """A twin of a session for small batches: it has the same functions and views, and its own settings."""
    from pyspark.sql import SparkSession

    twin = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for key, value in SMALL.items():
        twin.conf.set(key, value)
    return twin
