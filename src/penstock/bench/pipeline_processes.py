"""The processes of the pipeline's bench: a server with a pipeline behind it, work inside Spark, and what a tree of them costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from penstock.bench.processes import BenchError, Penstock, Server, Stage, end, rss_bytes
from penstock.bench.result import Round
from penstock.ipc.pipeline import STATUS_FILE, Status
from penstock.journal.reader import JournalReader

JOIN_S = 120.0
"""How long Spark may take to join a server."""
CATCH_UP_S = 600.0
"""How long a pipeline may take to work off what a round left."""
STOP_S = 40.0
"""A server lets its pipeline finish a batch before it ends."""
LOOK_S = 0.1


class SparkJob(msgspec.Struct):
    """What a process with a Spark session of its own is told to do."""

    role: str
    """`source` or `growth`."""
    folder: str
    rows: list[int]
    rounds: int = 1
    master: str = "local[2]"
    queries: list[str] = []
    """Of `source`: which ones."""


class TimedRound(Round, omit_defaults=True):
    """A round inside Spark."""

    wall_s: float | None = None
    """With the start of the query, which `seconds` leaves out."""


class TreeRound(Round, omit_defaults=True):
    """A round that watched a tree of processes."""

    pss_mib: float | None = None
    """Memory with what several processes share divided among them; RSS counts it for each."""
    by_program: dict[str, str] | None = None
    """How many processes of each program, and their RSS."""


class Found(msgspec.Struct):
    """One cell that such a process has measured."""

    workload: str
    target: str
    client: str
    words: str
    rounds: list[TimedRound]


class Said(msgspec.Struct, omit_defaults=True):
    """One line of its output."""

    note: str | None = None
    found: Found | None = None
    error: str | None = None


class FedPenstock(Penstock):
    """`penstock up` on a disk, with a pipeline or without."""

    def __init__(self, folder: Path, *, has_pipeline: bool) -> None:
        words = [
            "-m",
            "penstock",
            "up",
            "--no-relay",
            "--data",
            "data",
            "--http",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
        ]
        more = [] if has_pipeline else ["--no-pipeline"]
        Server.__init__(self, folder, [sys.executable, *words, *more])
        self.port = self.http_port = 0
        self.data = folder / "data"

    def status(self) -> Status:
        """What the pipeline says about itself."""
        try:
            return msgspec.json.decode((self.data / "run" / STATUS_FILE).read_bytes(), type=Status)
        except FileNotFoundError:
            return Status("off")

    def end_offset(self) -> int:
        return JournalReader(self.data).mark().end

    def wait_running(self) -> None:
        """Until the pipeline has joined."""
        self._wait(lambda: self.status().state == "running", JOIN_S, "did not join")

    def wait_caught_up(self) -> None:
        """Until every table holds all that is in the journal now."""
        goal = self.end_offset()
        self._wait(lambda: self.status().offset >= goal, CATCH_UP_S, f"did not come to row {goal}")

    def wait_quiet(self, quiet_s: float, bound_s: float) -> None:
        """Until the journal has not grown for a while: a queue that changed is still measured a minute later."""
        seen, since = -1, time.monotonic()

        def is_quiet() -> bool:
            nonlocal seen, since
            if (now := self.end_offset()) != seen:
                seen, since = now, time.monotonic()
            return time.monotonic() - since >= quiet_s

        self._wait(is_quiet, bound_s, "kept getting rows")
        self.wait_caught_up()

    def _wait(self, is_done: Callable[[], bool], bound_s: float, what: str) -> None:
        deadline = time.monotonic() + bound_s
        while not is_done():
            status = self.status()
            if status.state in ("failed", "halted") or time.monotonic() > deadline:
                raise BenchError(
                    f"the pipeline {what}: it is {status.state}, {status.message or 'without a word'}"
                )
            time.sleep(LOOK_S)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                pass  # the end of every server comes next, and is not polite
        super().stop()


class SparkProcess:
    """A process that measures something inside Spark and says what it finds, line by line."""

    def __init__(self, job: SparkJob) -> None:
        self._job = job
        self._log = Path(job.folder) / f"{job.role}.log"
        words = [sys.executable, "-m", "penstock.bench.pipeline_work", msgspec.json.encode(job).decode()]
        with self._log.open("wb") as log:  # Spark's own words are long, and for the day when it fails
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,  # its end is the end of the process
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "TMPDIR": job.folder},
            )

    def said(self) -> Iterator[Said]:
        """Its lines as they come; an error of its own is one here."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = msgspec.json.decode(line, type=Said)
            if said.error is not None:
                raise BenchError(f"{self._job.role}: {said.error}")
            yield said
        if self.process.wait() != 0:
            log = self._log.read_text(errors="replace")[-500:]
            raise BenchError(f"the {self._job.role} process ended with code {self.process.returncode}: {log}")

    def stop(self) -> None:
        end(self.process)


class FedStage(Stage):
    """A stage for servers with a pipeline, and for work inside Spark."""

    def __init__(self) -> None:
        super().__init__(durable=True)
        self._sparks: list[SparkProcess] = []

    def fed(self, *, has_pipeline: bool = True) -> FedPenstock:
        """A server that is open and, with a pipeline, joined by it."""
        server = FedPenstock(self.folder / f"server-{len(self._servers)}", has_pipeline=has_pipeline)
        self._servers.append(server)
        server.wait()
        if has_pipeline:
            server.wait_running()
        return server

    def spark(self, job: SparkJob) -> SparkProcess:
        process = SparkProcess(job)
        self._sparks.append(process)
        return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._sparks:
            process.stop()
        super().__exit__(kind, error, trace)


class Tree:
    """A process and everything that it has started, as the kernel sees them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ticks: dict[int, int] = {}

    def pids(self) -> list[int]:
        """The process and its descendants."""
        children: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                fields = _stat(int(entry))
                if fields:
                    children.setdefault(int(fields[1]), []).append(int(entry))
        found = [self._pid]
        for pid in found:  # grows while it is walked
            found += children.get(pid, [])
        return found

    def cpu_s(self) -> float:
        """CPU seconds of all of them; of one that has ended, what it had when it was last seen."""
        for pid in self.pids():
            self._ticks[pid] = sum(int(one) for one in _stat(pid)[11:13]) or self._ticks.get(pid, 0)
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Memory in RAM. What workers share with the process they were forked from counts for each of them."""
        return sum(rss_bytes(pid) or 0 for pid in self.pids())

    def pss_bytes(self) -> int:
        """The same, with what several share divided among them: what would be free without them."""
        return sum(_pss(pid) for pid in self.pids())

    def names(self) -> dict[str, list[int]]:
        """The processes by the name of their program."""
        found: dict[str, list[int]] = {}
        for pid in self.pids():
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            found.setdefault(name, []).append(pid)
        return found


def _stat(pid: int) -> list[bytes]:
    """The fields behind a process's name; none when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
