"""`GET /v1/resources`: processor time and memory of the server and its child processes, disk space, and the bounds on memory."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.server.admin.journal import Count
from penstock.server.engine.runtime import Runtime
from penstock.server.journal.lifecycle import JournalLifecycle

PROC = Path("/proc")
PROCESSES_MAX = 50
"""Processes of one answer. A server has a few: relay, pipeline with its workers, and short ones for SQL and sealing."""
NAMES = {
    "penstock.server.relay.process": "relay", "penstock.spark.pipeline.process": "pipeline",
    "penstock.server.admin.sql_process": "SQL query", "penstock.server.journal.seal_process": "sealing",
    "penstock.demo.process": "demo", "pyspark.daemon": "Spark worker (Python)",
}  # fmt: skip
"""Names of child processes by the module that they run. The command line itself is not shown, because it may hold a secret."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessRow(msgspec.Struct, rename="camel"):
    """One process."""

    pid: Count
    name: str
    memory_bytes: Annotated[int, msgspec.Meta(ge=0, description="Resident memory")]
    cpu_s: Annotated[float, msgspec.Meta(ge=0, description="Processor time since its start")]
    threads: Count


class DiskRow(msgspec.Struct, rename="camel"):
    """The disk of the data directory."""

    path: str
    total_bytes: Count
    free_bytes: Annotated[int, msgspec.Meta(ge=0, description="Free for new envelopes")]
    reserved_bytes: Annotated[
        int, msgspec.Meta(ge=0, description="Reserved for settles, so that acks fit on a full disk")
    ]


class MemoryRow(msgspec.Struct):
    """A bound on memory, and how much of it is used."""

    limit: Annotated[str, msgspec.Meta(description="Its name under `limits`")]
    used: Count
    bound: Count


class ResourcesReply(msgspec.Struct):
    """The answer of `/v1/resources`."""

    processes: list[ProcessRow]
    disk: DiskRow | None
    memory: list[MemoryRow]


def measure(runtime: Runtime, archive: JournalLifecycle | None) -> ResourcesReply:
    """What the server uses now. The server comes first, then its children."""
    limits = runtime.machine.limits
    memory = [
        MemoryRow("memory_max", runtime.machine.bytes, limits.memory_max),
        MemoryRow("pending_max", runtime.machine.pending_bytes, limits.pending_max),
        MemoryRow("outbox_total_max", runtime.peers.outboxes.total, limits.outbox_total_max),
        MemoryRow("input_total_max", runtime.peers.inputs.total, limits.input_total_max),
    ]
    return ResourcesReply(_processes(os.getpid()), None if archive is None else _disk(archive), memory)


def _disk(archive: JournalLifecycle) -> DiskRow | None:
    free, reserved = archive.journal.space
    if free is None:
        return None
    return DiskRow(str(archive.data), shutil.disk_usage(archive.data).total, free, reserved)


def _processes(pid: int) -> list[ProcessRow]:
    """A process and its descendants; where the system has no `/proc`, the process alone."""
    if not PROC.joinpath("self", "stat").exists():
        usage = resource.getrusage(resource.RUSAGE_SELF)
        size = usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024
        return [ProcessRow(pid, "server", size, usage.ru_utime + usage.ru_stime, 0)]
    found: list[ProcessRow] = []
    waiting = [pid]
    while waiting and len(found) < PROCESSES_MAX:
        folder = PROC / str(waiting.pop(0))
        try:
            # The name in parentheses may contain spaces; the fields after it do not.
            fields = folder.joinpath("stat").read_text().rpartition(")")[2].split()
            waiting += [int(child) for task in folder.glob("task/*/children") for child in task.read_text().split()]
            command = folder.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
        name = _name(command) if found else "server"
        found.append(ProcessRow(int(folder.name), name, int(fields[21]) * _PAGE, cpu_s, int(fields[17])))
    return found


def _name(command: list[str]) -> str:
    module = next((after for word, after in pairwise(command) if word == "-m"), "")
    return NAMES.get(module) or ("Spark (Java)" if command[0].endswith("java") else Path(command[0]).name)
