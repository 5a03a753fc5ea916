"""A Spark Connect server as a process of its own, started from the pip package."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.spark import java
from tests.parts import QUICK_JAVA
from tests.paths import ROOT
from tests.server_process import environment
from tests.spark.clusters import SMALL, SPARK_CLASS, until
from tests.spark.shared_pipeline import QUICK_SPARK

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def plain_environment(**more: str) -> dict[str, str]:
    """An environment that knows this checkout, and names no Python for Spark."""
    env = environment(PATH="/usr/bin:/bin", SPARK_LOCAL_IP="127.0.0.1", JAVA_TOOL_OPTIONS=QUICK_JAVA)
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(ROOT)])
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_REMOTE"):
        env.pop(name, None)
    return env | more


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A server that runs in a directory; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        **QUICK_SPARK,
        "spark.master": "local[2]",
        "spark.log.level": "ERROR",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.extraJavaOptions": SMALL,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [str(SPARK_CLASS), "org.apache.spark.deploy.SparkSubmit", "--class", SERVER, *words, "spark-internal"]
    env = plain_environment(PYSPARK_PYTHON=sys.executable, JAVA_HOME=str(java.find().home))
    with (folder / "connect.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)

    def answers() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            return False
        return True

    try:
        until(answers, "the Connect server", process)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
