"""`penstock bench streams`: very many streams with one envelope each, their memory and the stalls they cause.

The slowest answer to a small request every few milliseconds shows how long the server's loop was busy.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from penstock.bench.harness.drive import HOST
from penstock.bench.harness.load import percentiles_ms
from penstock.bench.harness.processes import ANSWER_S, PenstockServer, ProcessGroup
from penstock.bench.harness.result import BenchResult, BenchRound
from penstock.bench.queue.commands import Durable, Size
from penstock.bench.queue.loads import QueueJob
from penstock.cli.options import PLAIN, Output

PROBE_EVERY_S = 0.002
FILL_RATE, FILL_S = 100_000, 600.0
MINUTE_S = 60.0
AFTER_MINUTE_S = 5.0  # how long after the full minute its gauges may be written


class StallProbe(threading.Thread):
    """A connection that requests the stats of one stream again and again, and notes how long each answer takes."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._sock = socket.create_connection((HOST, port), ANSWER_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stopped = threading.Event()
        self.took_ns: list[int] = []
        self.start()

    def run(self) -> None:
        with self._sock, self._sock.makefile("rb") as answers:
            while not self.stopped.wait(PROBE_EVERY_S):
                before = time.perf_counter_ns()
                self._sock.sendall(b'{"type":"stats","reqId":1,"stream":"agents/bench-0/inbox"}\n')
                if not answers.readline():
                    return
                self.took_ns.append(time.perf_counter_ns() - before)


def streams(
    *,
    count: Annotated[int, Parameter(help="Streams, with one envelope each.")] = 100_000,
    size: Size = 300,
    durable: Durable = False,
    minute: Annotated[bool, Parameter(help="Also wait for a full minute to pass, when gauges are written.")] = True,
    output: Output = PLAIN,
) -> int:
    """Measure a server that holds very many streams: its memory, and the longest stall of its loop.

    For example:

      penstock bench streams --durable --json
    """
    result = BenchResult.begin("streams", locals())

    def run(group: ProcessGroup) -> None:
        server = group.penstock()
        rss_before = server.rss_bytes()
        job = QueueJob(port=server.port, size=size, inboxes=count, count=count, rate=FILL_RATE, seconds=FILL_S)
        fill = group.load("queue.loads:pace", job)
        done = _measure(result, server, f"fill, {count:,} streams", fill.report, count)
        done.bytes_each = round((server.rss_bytes() - rss_before) / count, 1)
        for path in ("/metrics", "/v1/metrics", "/v1/envelopes/b-0000000001"):
            _measure(result, server, f"GET {path}", partial(server.get, path))
        if minute:
            wait_s = MINUTE_S - time.time() % MINUTE_S + AFTER_MINUTE_S
            _measure(result, server, "a full minute passes", partial(time.sleep, wait_s))
        server.check_counts("agents/bench-", count, is_held=True)

    return ProcessGroup(result, durable=durable).run(run, output)


def _measure(
    result: BenchResult, server: PenstockServer, workload: str, work: Callable[[], object], count: int = 1
) -> BenchRound:
    """Do the work while a probe measures how long another client waits."""
    probe = StallProbe(server.port)
    before, cpu_before = time.perf_counter(), server.cpu_s()
    work()
    probe.stopped.set()
    probe.join(ANSWER_S)
    seconds = time.perf_counter() - before
    cpu_s, times = {"server": server.cpu_s() - cpu_before}, percentiles_ms(probe.took_ns)
    done = BenchRound.timed(count, seconds, server.rss_bytes(), cpu_s, latency_ms=times)
    result.add(workload, f"a small request each {PROBE_EVERY_S * 1e3:.0f} ms", [done], client="probe")
    return done
