"""`penstock bench streams`: very many streams with one envelope each. What they weigh, and whether anybody waits for them.

While the server is filled, scraped and asked, and while a full minute passes over it, another connection asks for something
small every few milliseconds: the slowest answer is the longest that the server's loop was busy, with the noise of the machine.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from penstock.bench import result
from penstock.bench.commands import Durable, show
from penstock.bench.jobs import percentiles_ms
from penstock.bench.processes import BenchError, Penstock, Stage
from penstock.bench.result import Cell, Outcome, Round
from penstock.bench.workloads import MIB
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_note

PROBE_EVERY_S = 0.002
PATIENCE_S = 120.0
LINES_A_WRITE = 256
MINUTE_S = 60.0
AFTER_MINUTE_S = 5.0
"""How long after the full minute its gauges may be written."""
DEPTH = b"penstock_q_depth "
LINE = (
    b'{"type":"enqueue","reqId":%d,"to":"bench/stream-%06d","env":{"id":"%d","ts":"2026-01-01T00:00:00Z",'
    b'"type":"bench","payload":"%b"}}\n'
)


class Probe(threading.Thread):
    """A connection that asks again and again how one stream is, and notes how long each answer takes."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._over = threading.Event()
        self.took_ns: list[int] = []
        self.start()

    def run(self) -> None:
        answers = self._sock.makefile("rb")
        while not self._over.wait(PROBE_EVERY_S):
            before = time.perf_counter_ns()
            self._sock.sendall(b'{"type":"stats","reqId":1,"stream":"bench/stream-000000"}\n')
            if not answers.readline():
                return
            self.took_ns.append(time.perf_counter_ns() - before)

    def end(self) -> list[int]:
        self._over.set()
        self.join(PATIENCE_S)
        self._sock.close()
        return self.took_ns


def streams(
    *,
    count: Annotated[int, Parameter(help="Streams, of one envelope each.")] = 100_000,
    size: Annotated[int, Parameter(help="Bytes of a payload.")] = 200,
    durable: Durable = False,
    minute: Annotated[
        bool, Parameter(help="Also wait for a full minute to pass, at which gauges are written.")
    ] = True,
    output: Output = PLAIN,
) -> int:
    """Measure a server that holds very many streams: its memory, and the longest that anybody waited for its loop.

    For example:

      penstock bench streams
      penstock bench streams --durable --json
    """
    outcome = result.begin("streams", {"count": count, "size": size, "durable": durable, "minute": minute})

    def fill(server: Penstock) -> None:
        payload = b"x" * size
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as sock:
            answers = sock.makefile("rb")
            for first in range(0, count, LINES_A_WRITE):
                numbers = range(first, min(first + LINES_A_WRITE, count))
                sock.sendall(b"".join([LINE % (number, number, number, payload) for number in numbers]))
                for _ in numbers:
                    line = answers.readline()
                    if b'"ok"' not in line:
                        raise BenchError(f"an enqueue was answered {line.decode(errors='replace')[:200]}")

    def run(stage: Stage) -> None:
        server = stage.penstock()
        rss_before = server.rss_bytes()
        _measured(outcome, server, f"fill, {count:,} streams", lambda: fill(server), count)
        outcome.cells[-1].rounds[0].bytes_each = round((server.rss_bytes() - rss_before) / count, 1)
        for path in ("/metrics", "/v1/metrics", "/v1/envelopes/1"):
            _measured(outcome, server, f"GET {path}", partial(_get, server, path))
        if minute:
            _measured(outcome, server, "a full minute passes", _pass_minute)
        held = sum(
            float(line.split()[-1])
            for line in _get(server, "/metrics").splitlines()
            if line.startswith(DEPTH)
        )
        if held != count:
            raise BenchError(f"{count} envelopes were sent and the server holds {held:.0f}")

    with Stage(durable=durable) as stage:
        try:
            run(stage)
        except BenchError as error:
            outcome.failures.append(str(error))
    return show(outcome, output)


def _measured(
    outcome: Outcome, server: Penstock, workload: str, work: Callable[[], object], count: int = 1
) -> None:
    """Do something to the server, and say what that meant for somebody else."""
    probe = Probe(server.port)
    before, cpu_before = time.perf_counter(), server.cpu_s()
    try:
        work()
    finally:
        took_ns = probe.end()
    seconds = time.perf_counter() - before
    done = Round(
        count,
        round(seconds, 3),
        round(count / seconds, 1),
        server_cpu_us=round((server.cpu_s() - cpu_before) / count * 1e6, 3),
        server_rss_mib=round(server.rss_bytes() / MIB, 1),
        latency_ms=percentiles_ms(took_ns),
    )
    outcome.cells.append(
        Cell(workload, "penstock", "probe", f"a small request each {PROBE_EVERY_S * 1e3:.0f} ms", [done])
    )
    print_note(
        f"{workload}: {seconds:.2f} s, the slowest answer to somebody else {max(took_ns, default=0) / 1e6:.1f} ms"
    )


def _get(server: Penstock, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise BenchError(f"GET {path} was answered {answer.status}")
    return body


def _pass_minute() -> None:
    time.sleep(MINUTE_S - time.time() % MINUTE_S + AFTER_MINUTE_S)
