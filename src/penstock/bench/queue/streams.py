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
from penstock.bench.harness.result import BenchError, BenchResult, BenchRound
from penstock.bench.queue.commands import Durable
from penstock.cli.options import PLAIN, Output

PROBE_EVERY_S = 0.002
LINES_A_WRITE = 256
MINUTE_S = 60.0
AFTER_MINUTE_S = 5.0  # how long after the full minute its gauges may be written
LINE = (
    b'{"type":"enqueue","reqId":%d,"to":"bench/stream-%06d","env":{"id":"%d","ts":"2026-01-01T00:00:00Z",'
    b'"type":"bench","payload":"%b"}}\n'
)


class StallProbe(threading.Thread):
    """A connection that requests the stats of one stream again and again, and notes how long each answer takes."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._sock = socket.create_connection((HOST, port), ANSWER_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stopped = threading.Event()
        self.took_ns: list[int] = []
        self.start()

    def run(self) -> None:
        with self._sock, self._sock.makefile("rb") as answers:
            while not self._stopped.wait(PROBE_EVERY_S):
                before = time.perf_counter_ns()
                self._sock.sendall(b'{"type":"stats","reqId":1,"stream":"bench/stream-000000"}\n')
                if not answers.readline():
                    return
                self.took_ns.append(time.perf_counter_ns() - before)

    def stop(self) -> None:
        self._stopped.set()
        self.join(ANSWER_S)


def streams(
    *,
    count: Annotated[int, Parameter(help="Streams, with one envelope each.")] = 100_000,
    size: Annotated[int, Parameter(help="Bytes of a payload.")] = 200,
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
        fill = partial(_fill, server, count, size)
        done = _measure(result, server, f"fill, {count:,} streams", fill, count)
        done.bytes_each = round((server.rss_bytes() - rss_before) / count, 1)
        for path in ("/metrics", "/v1/metrics", "/v1/envelopes/1"):
            _measure(result, server, f"GET {path}", partial(server.get, path))
        if minute:
            wait_s = MINUTE_S - time.time() % MINUTE_S + AFTER_MINUTE_S
            _measure(result, server, "a full minute passes", partial(time.sleep, wait_s))
        held = server.metric("penstock_q_depth")
        if held != count:
            raise BenchError(f"{count} envelopes were sent and the server holds {held:.0f}")

    return ProcessGroup(result, durable=durable).run(run, output)


def _fill(server: PenstockServer, count: int, size: int) -> None:
    payload = b"x" * size
    with socket.create_connection((HOST, server.port), ANSWER_S) as sock:
        answers = sock.makefile("rb")
        for first in range(0, count, LINES_A_WRITE):
            numbers = range(first, min(first + LINES_A_WRITE, count))
            sock.sendall(b"".join([LINE % (number, number, number, payload) for number in numbers]))
            for _ in numbers:
                if b'"ok"' not in (line := answers.readline()):
                    raise BenchError(f"an enqueue was answered {line.decode(errors='replace')[:200]}")


def _measure(
    result: BenchResult, server: PenstockServer, workload: str, work: Callable[[], object], count: int = 1
) -> BenchRound:
    """Do the work while a probe measures how long another client waits."""
    probe = StallProbe(server.port)
    before, cpu_before = time.perf_counter(), server.cpu_s()
    try:
        work()
    finally:
        probe.stop()
    seconds = time.perf_counter() - before
    cpu_s, times = {"server": server.cpu_s() - cpu_before}, percentiles_ms(probe.took_ns)
    done = BenchRound.timed(count, seconds, server.rss_bytes(), cpu_s, latency_ms=times)
    result.add(workload, f"a small request each {PROBE_EVERY_S * 1e3:.0f} ms", [done], client="probe")
    return done
