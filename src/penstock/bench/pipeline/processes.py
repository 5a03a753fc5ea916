"""A server with a pipeline behind it, and what a tree of processes costs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from penstock.bench.harness.processes import PenstockServer, ProcessGroup, end, rss_bytes
from penstock.bench.harness.result import BenchError
from penstock.ipc.pipeline import STATUS_FILE, PipelineStatus
from penstock.journal.reader import JournalReader

JOIN_S = 120.0  # how long Spark may take to join a server
CATCH_UP_S = 600.0  # how long a pipeline may take to process what a round left
STOP_S = 40.0  # a server lets its pipeline finish a batch before it ends
POLL_S = 0.1


class PipelineServer(PenstockServer):
    """`penstock up` on a disk, with a pipeline or without."""

    def status(self) -> PipelineStatus:
        try:
            return msgspec.json.decode((self.data / "run" / STATUS_FILE).read_bytes(), type=PipelineStatus)
        except FileNotFoundError:
            return PipelineStatus("off")

    def end_offset(self) -> int:
        return JournalReader(self.data).mark().end

    def wait_running(self) -> None:
        self._wait(lambda: self.status().state == "running", JOIN_S, "did not join")

    def wait_caught_up(self) -> None:
        """Until every table holds all rows that the journal has now."""
        goal = self.end_offset()
        self._wait(lambda: self.status().offset >= goal, CATCH_UP_S, f"did not reach row {goal}")

    def wait_quiet(self, quiet_s: float, bound_s: float) -> None:
        """Until the journal has not grown for a while: a queue that changed is measured until a minute later."""
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
                raise BenchError(f"the pipeline {what}: it is {status.state}, {status.message or 'no message'}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        end(self.process, STOP_S)


def start_server(group: ProcessGroup, *, has_pipeline: bool = True) -> PipelineServer:
    """A server that accepts and, with a pipeline, has been joined by it."""
    server = group.start(partial(PipelineServer, durable=True, has_pipeline=has_pipeline))
    if has_pipeline:
        server.wait_running()
    return server


class ProcessTree:
    """A process and its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ticks: dict[int, int] = {}

    def pids(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdecimal() and (fields := _read_stat(int(entry))):
                children.setdefault(int(fields[1]), []).append(int(entry))
        found = [self._pid]
        for pid in found:  # grows while it is walked
            found += children.get(pid, [])
        return found

    def cpu_s(self) -> float:
        """CPU seconds of all; of a process that has ended, what it had when it was last seen."""
        for pid in self.pids():
            self._ticks[pid] = sum(int(one) for one in _read_stat(pid)[11:13]) or self._ticks.get(pid, 0)
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Resident memory. Pages that processes share count for each of them."""
        return sum(rss_bytes(pid) for pid in self.pids())

    def pss_bytes(self) -> int:
        """The same, with shared pages divided among the processes."""
        lines = [line for pid in self.pids() for line in _read(pid, "smaps_rollup").splitlines()]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

    def names(self) -> dict[str, list[int]]:
        """The processes by the name of their program."""
        found: dict[str, list[int]] = {}
        for pid in self.pids():
            if name := _read(pid, "comm").strip():
                found.setdefault(name, []).append(pid)
        return found


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""  # the process has ended


def _read_stat(pid: int) -> list[str]:
    """The fields after a process's name."""
    return _read(pid, "stat").rpartition(")")[2].split()
