"""The pipeline beside a server at work: how soon an envelope is in a table, what waiting costs, and what the doors feel of it."""

from __future__ import annotations

import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow.compute as pc

from penstock.bench.jobs import percentiles_ms
from penstock.bench.pipeline_processes import FedPenstock, FedStage, Tree, TreeRound
from penstock.bench.processes import BenchError, rss_bytes
from penstock.bench.result import Round
from penstock.bench.template import Lines
from penstock.bench.workloads import Workloads

MIB = 1024 * 1024
SIZE = 300
WINDOW = 8192
PROBE_STREAM = "bench/probe"
PROBE_EVERY_S = 0.27
"""Not a fraction of the pipeline's trigger, so that probes fall into all moments of it."""
LOOK_S = 0.05
LAST_S = 60.0
"""How long the last probe may take to be seen."""
QUIET_S = 75.0
"""A journal that has not grown for so long is at rest: ticks come every 30 s while there is anything to close."""
QUIET_MAX_S = 240.0
WARM_S = 60.0
"""Load before the first measurement, at most: a JVM needs a few dozen batches to find its feet."""
BATCH = 64


class Probes:
    """Envelopes to a stream of their own, and when the table `queue_minutes` has counted each of them."""

    def __init__(self, server: FedPenstock) -> None:
        from penstock.spark.lake.schemas import QUEUE_MINUTES
        from penstock.spark.lake.table import LakeTable

        self._table = LakeTable(server.data / "lake", QUEUE_MINUTES)
        self._lines = Lines(PROBE_STREAM, SIZE, "probe", 1)
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._sent_ns: list[int] = []
        self._version: int | None = None
        self._visible = 0

    def close(self) -> None:
        self._socket.close()

    def run(self, seconds: float) -> list[int]:
        """Send probes for a while; returns how long each took to be seen, in nanoseconds."""
        begun = time.monotonic()
        first = len(self._sent_ns)
        took: list[int] = []
        due = begun
        while (now := time.monotonic()) < begun + seconds or self._visible < len(self._sent_ns):
            if due <= now < begun + seconds:
                self._send()
                due += PROBE_EVERY_S
            if now > begun + seconds + LAST_S:
                raise BenchError(f"{self._visible} of {len(self._sent_ns)} probes came into `queue_minutes`")
            seen = self._look()
            seen_ns = time.monotonic_ns()
            took += [seen_ns - sent for sent in self._sent_ns[max(first, self._visible) : seen]]
            self._visible = max(seen, self._visible)
            time.sleep(LOOK_S)
        return took

    def _send(self) -> None:
        number = len(self._sent_ns)
        self._sent_ns.append(time.monotonic_ns())
        self._socket.sendall(self._lines.make(number, 1, self._sent_ns[-1]))
        while select.select([self._socket], [], [], 0)[0]:
            answer = self._socket.recv(1 << 16)
            if not answer or b'"type":"error"' in answer:
                raise BenchError(f"the server refused a probe: {answer[:200]!r}")

    def _look(self) -> int:
        """How many probes the table counts; read again only when it has a new version."""
        version = self._table.version()
        if version is None or version == self._version:
            return self._visible
        self._version = version
        rows = self._table.rows(["enqueued"], pc.field("channel") == PROBE_STREAM)
        return int(pc.sum(rows.column("enqueued")).as_py() or 0)


class Live:
    """Measures servers with a pipeline behind them."""

    def __init__(self, stage: FedStage) -> None:
        self._stage = stage
        self._loads = Workloads(stage, SIZE, WINDOW)
        self._steady: Steady | None = None
        self.command = ""
        """How the server with a pipeline was started."""

    def _fed(self) -> FedPenstock:
        server = self._stage.fed()
        self.command = "penstock " + " ".join(server.command[3:])
        return server

    def _warm(self, seconds: float, rate: int) -> Steady:
        """The server of the quiet parts, with a pipeline that has worked for a while."""
        if self._steady is None:
            self._steady = Steady(self._fed(), self._loads)
            self._steady.run(WARM_S, rate)
        return self._steady

    def freshness(self, seconds: float, rate: int) -> Round:
        """From the send of an envelope to its count in gold, as a reader without a JVM sees it."""
        steady = self._warm(seconds, rate)
        took = steady.run(seconds, rate)
        rss_mib = _rss_mib(steady.server)
        return Round(len(took), seconds, 0.0, latency_ms=percentiles_ms(took), server_rss_mib=rss_mib)

    def idle(self, seconds: float, rate: int) -> TreeRound:
        """What the pipeline's processes cost while nothing happens."""
        server = self._warm(seconds, rate).server
        server.wait_quiet(QUIET_S, QUIET_MAX_S)
        tree = Tree(server.status().pid)
        before_s, begun = tree.cpu_s(), time.monotonic()
        time.sleep(seconds)
        share = (tree.cpu_s() - before_s) / (time.monotonic() - begun)
        return TreeRound(
            len(tree.pids()),
            seconds,
            0.0,
            server_rss_mib=_rss_mib(server),
            server_cpu_share=round(share, 5),
            pss_mib=round(tree.pss_bytes() / MIB, 1),
            by_program={name: _weight(pids) for name, pids in tree.names().items()},
        )

    def busy(self, seconds: float, rounds: int) -> tuple[list[Round], list[Round], list[float]]:
        """Durable throughput with a pipeline and without, by turns, and the rows a second that the tables took.

        Between two rounds the pipeline works off what is left, or it would weigh on the round without it.
        """
        fed, plain = self._fed(), self._stage.fed(has_pipeline=False)
        done: dict[FedPenstock, list[Round]] = {fed: [], plain: []}
        speeds = []
        for number in range(rounds + 1):
            for server in (fed, plain):
                first, begun = server.end_offset(), time.monotonic()
                found = self._loads.flow(server, "lean", batch=BATCH, seconds=seconds / rounds)
                if server is fed:
                    fed.wait_caught_up()
                    speed = (server.end_offset() - first) / (time.monotonic() - begun)
                if number:  # the first of each warms up
                    done[server].append(found)
                    speeds += [speed] if server is fed else []
        for server in (fed, plain):
            server.stop()
        return done[fed], done[plain], speeds

    def end(self) -> None:
        """Stop the server of the quiet parts, so that it does not weigh on others."""
        if self._steady is not None:
            self._steady.close()
            self._steady = None


class Steady:
    """A server under a steady load, and the probes that go through it."""

    def __init__(self, server: FedPenstock, loads: Workloads) -> None:
        self.server = server
        self._loads = loads
        self._probes = Probes(server)

    def run(self, seconds: float, rate: int) -> list[int]:
        """Load for a while, all of it taken and acked; returns how long the probes meanwhile took, in nanoseconds."""
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(self._loads.flow, self.server, "lean", batch=1, seconds=seconds, rate=rate)
            took = self._probes.run(seconds)
            load.result()
        return took

    def close(self) -> None:
        self._probes.close()
        self.server.stop()


def _rss_mib(server: FedPenstock) -> float:
    return round(Tree(server.status().pid).rss_bytes() / MIB, 1)


def _weight(pids: list[int]) -> str:
    mib = sum(rss_bytes(pid) or 0 for pid in pids) / MIB
    return f"{len(pids)} with {mib:,.0f} MiB"
