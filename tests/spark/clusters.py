"""A standalone Spark cluster on loopback, a master and some workers started from the pip package."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyspark

from penstock.spark import java

PATIENCE_S = 180.0
"""How long a test waits for what must happen, on a busy machine."""
POLL_S = 0.02
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_MASTER = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str, runs: subprocess.Popen[bytes] | None = None) -> Found:
    """Ask again until the answer is true, while the process that should bring it about runs."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        assert runs is None or runs.poll() is None, f"the process ended before {what}"
        time.sleep(POLL_S)
    raise AssertionError(f"{what} did not come true")


class Cluster:
    """A master and two workers with a core each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        words = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = self._run("master", "master.Master", *words)
        url = until(lambda: _MASTER.search(self.log("master")), "the master", master)
        self.master = url[1]
        for name in ("worker-1", "worker-2"):
            words = [
                "-h",
                "127.0.0.1",
                "-c",
                "1",
                "-m",
                "1g",
                "-d",
                str(self.folder / name),
                "--webui-port",
                "0",
            ]
            self.workers[name] = self._run(name, "worker.Worker", self.master, *words)
        for name, worker in self.workers.items():
            until(lambda: "Successfully registered with master" in self.log(name), name, worker)  # noqa: B023 - called here

    def _run(self, name: str, kind: str, *words: str) -> subprocess.Popen[bytes]:
        """A process of the cluster, leading a group that has the executors in it too."""
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        local = self.folder / f"{name}-local"
        local.mkdir()
        environment = {
            **kept,
            "JAVA_HOME": str(java.find().home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(local),
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL,
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind}", *words],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def worker_of(self, folder: str) -> str:
        """The worker in whose directory an executor runs."""
        return next(name for name in self.workers if Path(folder).is_relative_to(self.folder / name))

    def kill(self, name: str) -> None:
        """A worker and its executors, as when its machine loses power."""
        worker = self.workers.pop(name)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        self._processes.remove(worker)

    def stop(self) -> None:
        for process in reversed(self._processes):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
