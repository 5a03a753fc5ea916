"""The pipeline behind a working server: how soon an envelope is in a table, the idle cost, and the effect on the queue."""

from __future__ import annotations

import math
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import pyarrow.compute as pc

from penstock.bench.harness import processes
from penstock.bench.harness.drive import HOST
from penstock.bench.harness.load import percentiles_ms
from penstock.bench.harness.result import MIB, BenchError, BenchRound, Side
from penstock.bench.queue.commands import QueueRounds
from penstock.bench.queue.envelopes import EnqueueLines
from penstock.ipc.pipeline import STATUS_FILE, PipelineStatus
from penstock.journal.reader import JournalReader

JOIN_S = 120.0  # how long Spark may take to join a server
CATCH_UP_S = 600.0  # how long a pipeline may take to process what a round left
STOP_S = 40.0  # a server lets its pipeline finish a batch before it ends
SIZE, BATCH = 300, 64
PROBE_STREAM = "bench/probe"
PROBE_EVERY_S = 0.27  # not a fraction of the pipeline's trigger, so that probes fall into all its phases
POLL_S = 0.05
LAST_S = 60.0  # how long the last probe may take to be counted
QUIET_S, QUIET_MAX_S = 75.0, 240.0  # ticks come every 30 s while there is anything to close
WARM_S = 60.0  # load before the first measurement: a JVM needs a few dozen batches to warm up


class PipelineServer(processes.PenstockServer):
    """`penstock up` on a disk, with a pipeline or without."""

    def status(self) -> PipelineStatus:
        try:
            return msgspec.json.decode((self.data / "run" / STATUS_FILE).read_bytes(), type=PipelineStatus)
        except FileNotFoundError:
            return PipelineStatus("off")

    def end_offset(self) -> int:
        return JournalReader(self.data).mark().end

    def wait_caught_up(self) -> None:
        """Until every table holds all rows that the journal has now."""
        goal = self.end_offset()
        self.wait_for(lambda: self.status().offset >= goal, CATCH_UP_S, f"did not reach row {goal}")

    def wait_quiet(self) -> None:
        """Until the journal has not grown for a while: a queue that changed is measured until a minute later."""
        seen, since = -1, time.monotonic()

        def is_quiet() -> bool:
            nonlocal seen, since
            if (now := self.end_offset()) != seen:
                seen, since = now, time.monotonic()
            return time.monotonic() - since >= QUIET_S

        self.wait_for(is_quiet, QUIET_MAX_S, "kept getting rows")
        self.wait_caught_up()

    def wait_for(self, is_done: Callable[[], bool], bound_s: float, what: str) -> None:
        deadline = time.monotonic() + bound_s
        while not is_done():
            status = self.status()
            if status.state in ("failed", "halted") or time.monotonic() > deadline:
                raise BenchError(f"the pipeline {what}: it is {status.state}, {status.message or 'no message'}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        processes.end(self.process, STOP_S)


def start_server(group: processes.ProcessGroup, *, has_pipeline: bool = True) -> PipelineServer:
    """A server that accepts and, with a pipeline, has been joined by it."""
    start = partial(PipelineServer, durable=True, has_pipeline=has_pipeline)
    server = group.start(start, "penstock" if has_pipeline else None)
    if has_pipeline:
        server.wait_for(lambda: server.status().state == "running", JOIN_S, "did not join")
    return server


class ProcessTree:
    """A process and its descendants."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._spent_s: dict[int, float] = {}

    def pids(self) -> list[int]:
        found = [self._pid]
        for pid in found:  # grows while it is walked
            found += processes.read_children(pid)
        return found

    def cpu_s(self) -> float:
        """CPU seconds of all; of a process that has ended, what it had when it was last seen."""
        for pid in self.pids():
            self._spent_s[pid] = processes.cpu_s(pid) or self._spent_s.get(pid, 0.0)
        return sum(self._spent_s.values())

    def rss_bytes(self) -> int:
        """Resident memory. Pages that processes share count for each of them."""
        return sum(processes.rss_bytes(pid) for pid in self.pids())

    def pss_bytes(self) -> int:
        """The same, with shared pages divided among the processes."""
        lines = [line for pid in self.pids() for line in processes.read_proc(pid, "smaps_rollup").splitlines()]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))

    def names(self) -> dict[str, list[int]]:
        """The processes by the name of their program."""
        found: dict[str, list[int]] = {}
        for pid in self.pids():
            if name := processes.read_proc(pid, "comm").strip():
                found.setdefault(name, []).append(pid)
        return found


class FreshnessProbes:
    """Envelopes to a stream of their own, and when the table `queue_minutes` has counted each of them."""

    def __init__(self, server: PipelineServer) -> None:
        from penstock.spark.lake.schemas import QUEUE_MINUTES
        from penstock.spark.lake.table import LakeTable

        self._table = LakeTable(server.data / "lake", QUEUE_MINUTES)
        self._lines = EnqueueLines(PROBE_STREAM, SIZE, "probe", 1)
        self.socket = socket.create_connection((HOST, server.port))
        self._sent_ns: list[int] = []
        self._version: int | None = None
        self._visible = 0

    def run(self, seconds: float) -> list[int]:
        """Send probes, one every `PROBE_EVERY_S`; returns how long each took to be counted, in nanoseconds."""
        due = begun = time.monotonic()
        first = len(self._sent_ns)
        last = first + math.ceil(seconds / PROBE_EVERY_S)
        took: list[int] = []
        while (now := time.monotonic()) < begun + seconds or self._visible < last:
            if due <= now and len(self._sent_ns) < last:
                self._send()
                due += PROBE_EVERY_S
            if now > begun + seconds + LAST_S:
                raise BenchError(f"{self._visible} of {len(self._sent_ns)} probes reached `queue_minutes`")
            seen = self._count()
            seen_ns = time.monotonic_ns()
            took += [seen_ns - sent for sent in self._sent_ns[max(first, self._visible) : seen]]
            self._visible = max(seen, self._visible)
            time.sleep(POLL_S)
        return took

    def _send(self) -> None:
        number = len(self._sent_ns)
        self._sent_ns.append(time.monotonic_ns())
        self.socket.sendall(self._lines.make(number, 1, self._sent_ns[-1]))
        while select.select([self.socket], [], [], 0)[0]:
            answer = self.socket.recv(1 << 16)
            if not answer or b'"type":"error"' in answer:
                raise BenchError(f"the server refused a probe: {answer[:200]!r}")

    def _count(self) -> int:
        """The probes that the table counts; read again only when it has a new version."""
        version = self._table.version()
        if version is None or version == self._version:
            return self._visible
        self._version = version
        rows = self._table.rows(["enqueued"], pc.field("channel") == PROBE_STREAM)
        return int(pc.sum(rows.column("enqueued")).as_py() or 0)


class PipelineRounds:
    """Rounds of servers with a pipeline. The quiet parts share one server that has warmed up."""

    def __init__(self, group: processes.ProcessGroup) -> None:
        self._group = group
        self._queue = QueueRounds(group, SIZE)
        self._warm: tuple[PipelineServer, FreshnessProbes] | None = None

    def _run_load(self, seconds: float, rate: int) -> tuple[PipelineServer, list[int]]:
        """A steady load, all of it acked; returns the server and how long the probes took, in nanoseconds."""
        if self._warm is None:
            server = start_server(self._group)
            self._warm = server, FreshnessProbes(server)
            self._run_load(WARM_S, rate)
        server, probes = self._warm
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(self._queue.flow, Side("penstock", server), 1, seconds, rate)
            took = probes.run(seconds)
            load.result()
        return server, took

    def freshness(self, seconds: float, rate: int) -> BenchRound:
        """From the send of an envelope to its count in a table, as a reader without a JVM sees it."""
        server, took = self._run_load(seconds, rate)
        rss_mib = round(ProcessTree(server.status().pid).rss_bytes() / MIB, 1)
        return BenchRound(len(took), seconds, 0.0, latency_ms=percentiles_ms(took), server_rss_mib=rss_mib)

    def idle(self, seconds: float, rate: int) -> BenchRound:
        """What the pipeline's processes cost while no message flows."""
        server, _ = self._run_load(0.0, rate) if self._warm is None else (self._warm[0], [])
        server.wait_quiet()
        tree = ProcessTree(server.status().pid)
        before_s, begun = tree.cpu_s(), time.monotonic()
        time.sleep(seconds)
        share = (tree.cpu_s() - before_s) / (time.monotonic() - begun)
        rss_mib, pss_mib = (round(size / MIB, 1) for size in (tree.rss_bytes(), tree.pss_bytes()))
        words = {name: (len(pids), sum(map(processes.rss_bytes, pids)) / MIB) for name, pids in tree.names().items()}
        done = BenchRound(len(tree.pids()), seconds, 0.0, server_rss_mib=rss_mib, pss_mib=pss_mib)
        done.by_program = {name: f"{count} with {mib:,.0f} MiB" for name, (count, mib) in words.items()}
        done.server_cpu_share = round(share, 5)
        return done

    def busy(self, seconds: float, rounds: int) -> tuple[list[BenchRound], list[BenchRound], list[float]]:
        """Durable throughput with a pipeline and without, alternating, and the rows a second of the tables."""
        fed, plain = start_server(self._group), start_server(self._group, has_pipeline=False)
        done: dict[PipelineServer, list[BenchRound]] = {fed: [], plain: []}
        speeds = []
        for number in range(rounds + 1):  # the first round warms up
            for server in (fed, plain):
                first, begun = server.end_offset(), time.monotonic()
                done[server].append(self._queue.flow(Side("penstock", server), BATCH, seconds / rounds))
                if server is fed:
                    fed.wait_caught_up()  # or it would slow the round without it
                    speed = (server.end_offset() - first) / (time.monotonic() - begun)
                    speeds += [speed] if number else []
        for server in (fed, plain):
            server.stop()
        return done[fed][1:], done[plain][1:], speeds

    def end(self) -> None:
        """Stop the server of the quiet parts."""
        if self._warm is not None:
            self._warm[1].socket.close()
            self._warm[0].stop()
