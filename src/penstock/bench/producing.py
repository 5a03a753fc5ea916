"""Producers over Control v1 lines: closed loop (as fast as a window allows) and open loop (by the clock)."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from pathlib import Path
from typing import cast

from penstock.bench.board import Board
from penstock.bench.jobs import Job, Report, percentiles_ms
from penstock.bench.template import Lines
from penstock.transports.outbox import StreamTransport

TURN = 256
"""Envelopes a producer writes in one go: several loop turns' worth would only fill buffers."""
POLL_S = 0.001
GRACE_S = 20.0
"""How long the answers to what was sent may take."""


class Producer(asyncio.Protocol):
    """Keeps up to `window` envelopes between its own send and the consumer's ack."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._board = Board(Path(job.board))
        self._lines = Lines(job.stream, job.size, job.tag, job.batch)
        self._turn = max(1, TURN // job.batch)
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Report] = self._loop.create_future()
        self._sent = 0
        self._confirmed = 0
        self._paused = False
        self._stopped = False
        self._first_ns = self._stop_ns = 0
        self._tail = b""
        self._wire: StreamTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = StreamTransport(cast(asyncio.Transport, transport))
        self._first_ns = time.monotonic_ns()
        self._stop_ns = self._first_ns + int(self._job.seconds * 1e9)
        self._pump()

    def data_received(self, data: bytes) -> None:
        if b'"type":"error"' in self._tail + data:
            self._fail(f"the server refused: {(self._tail + data)[:400].decode(errors='replace')}")
            return
        self._tail = data[-400:]
        self._confirmed += data.count(b"\n") * self._job.batch
        if self._stopped and self._confirmed == self._sent:
            self._finish()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost: {exc}")

    def _pump(self) -> None:
        if self.done.done():
            return
        job, now_ns = self._job, time.monotonic_ns()
        if now_ns >= self._stop_ns or (job.count and self._sent >= job.count):
            self._stopped = True
            self._board.total = self._sent
            if self._confirmed == self._sent:
                self._finish()
            else:
                self._loop.call_later(GRACE_S, self._fail, "not every enqueue was answered")
            return
        free = job.window - (self._sent - min(self._board.acked, self._confirmed))
        lines = min(self._turn, free // job.batch)
        if job.count:
            lines = min(lines, -(-(job.count - self._sent) // job.batch))
        if lines > 0 and not self._paused:
            self._wire.send([self._lines.make(self._sent, lines, now_ns)])
            self._sent += lines * job.batch
            self._loop.call_soon(self._pump)
        else:
            self._loop.call_later(POLL_S, self._pump)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(Report(self._sent, self._first_ns, time.monotonic_ns()))

    def _fail(self, message: str) -> None:
        if not self.done.done():
            self._board.total = self._sent
            self.done.set_result(Report(self._sent, error=message))


async def produce(job: Job) -> Report:
    """Closed loop."""
    loop = asyncio.get_running_loop()
    _, producer = await loop.create_connection(lambda: Producer(job), job.host, job.port)
    return await producer.done


def pace(job: Job) -> Report:
    """Open loop: one envelope a line at fixed times, whatever the server does.

    A plain socket and a sleep, because the timers of the loops have a grain of a millisecond. The stamp is the moment of
    sending; how far that was behind the schedule is reported beside it.
    """
    lines = Lines(job.stream, job.size, job.tag, 1)
    board = Board(Path(job.board))
    late: list[int] = []
    answered = 0
    with socket.create_connection((job.host, job.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first_ns = time.monotonic_ns()
        count = min(int(job.seconds * job.rate), job.count or 1 << 60)
        step_ns = 1_000_000_000 // job.rate
        for number in range(count):
            due_ns = first_ns + number * step_ns
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
            now_ns = time.monotonic_ns()
            late.append(now_ns - due_ns)
            sock.sendall(lines.make(number, 1, now_ns))
            if number % 64 == 0:
                answered += _drain(sock, 0.0)
        board.total = count
        deadline = time.monotonic() + GRACE_S
        while answered < count and time.monotonic() < deadline:
            answered += _drain(sock, 0.05)
    error = None if answered == count else f"{count} enqueues and {answered} answers"
    return Report(count, first_ns, time.monotonic_ns(), late=percentiles_ms(late), error=error)


def _drain(sock: socket.socket, wait_s: float) -> int:
    """Read the answers that are there; returns how many, all of them confirmations."""
    found = 0
    while select.select([sock], [], [], wait_s)[0]:
        data = sock.recv(1 << 16)
        if not data or b'"type":"error"' in data:
            raise ConnectionError(f"the server refused: {data[:400]!r}")
        found += data.count(b"\n")
        wait_s = 0.0
    return found
