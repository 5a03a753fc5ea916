"""The peer's clients: Redis Streams driven by a lean hand-made client, and by redis-py as most people would.

Both speak to the same server in the same way: XADD (trimmed to about `Adds.KEPT` entries, because XACK deletes nothing),
XREADGROUP with a count, XACK of all that came. hiredis parses the replies of both.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec

from penstock.bench.board import Board
from penstock.bench.consuming import POLL_S, STALL_S, Env
from penstock.bench.jobs import Job, Report, percentiles_ms
from penstock.bench.producing import GRACE_S, TURN
from penstock.bench.template import ID_DIGITS, Adds, envelope
from penstock.transports.outbox import StreamTransport

GROUP = b"bench"
READ_MAX = 256
"""Entries of one XREADGROUP: about what our server merges into one write."""
BLOCK_MS = 1000


def command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))


def _reader() -> Any:
    return import_module("hiredis").Reader()


class LeanProducer(asyncio.Protocol):
    """Pipelines XADDs within the window; counts the replies."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._board = Board(Path(job.board))
        self._adds = Adds(job.stream, job.size, job.tag)
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Report] = self._loop.create_future()
        self._sent = self._replied = 0
        self._breaks = 0
        self._paused = self._stopped = False
        self._first_ns = self._stop_ns = 0
        self._wire: StreamTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = StreamTransport(cast(asyncio.Transport, transport))
        self._first_ns = time.monotonic_ns()
        self._stop_ns = self._first_ns + int(self._job.seconds * 1e9)
        self._pump()

    def data_received(self, data: bytes) -> None:
        if data[:1] == b"-":
            self._fail(f"redis refused: {data[:200]!r}")
            return
        # A reply is `$<length>\r\n<id>\r\n`: two line ends each.
        self._breaks += data.count(b"\n")
        self._replied = self._breaks // 2
        if self._stopped and self._replied == self._sent:
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
            if self._replied == self._sent:
                self._finish()
            else:
                self._loop.call_later(GRACE_S, self._fail, "not every XADD was answered")
            return
        count = min(TURN, job.window - (self._sent - min(self._board.acked, self._replied)))
        if job.count:
            count = min(count, job.count - self._sent)
        if count > 0 and not self._paused:
            self._wire.send([self._adds.make(self._sent, count, now_ns)])
            self._sent += count
            self._loop.call_soon(self._pump)
        else:
            self._loop.call_later(0.001, self._pump)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(Report(self._sent, self._first_ns, time.monotonic_ns()))

    def _fail(self, message: str) -> None:
        if not self.done.done():
            self._board.total = self._sent
            self.done.set_result(Report(self._sent, error=message))


class LeanConsumer(asyncio.Protocol):
    """Sends the acks of what came and the next read in one write."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._key = job.stream.encode()
        self._board = Board(Path(job.board))
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Report] = self._loop.create_future()
        self._reader = _reader()
        self._decode = msgspec.json.Decoder(Env).decode
        self._read = command(
            b"XREADGROUP", b"GROUP", GROUP, b"c", b"COUNT", b"%d" % READ_MAX, b"BLOCK", b"%d" % BLOCK_MS,
            b"STREAMS", self._key, b">",
        )  # fmt: skip
        self._acked = 0
        self._latencies: list[int] = []
        self._first_ns = self._last_ns = 0
        self._heard_ns = time.monotonic_ns()
        self._wire: StreamTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = StreamTransport(cast(asyncio.Transport, transport))
        self._wire.send([command(b"XGROUP", b"CREATE", self._key, GROUP, b"0", b"MKSTREAM"), self._read])

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, list):
                self._take(reply[0][1])
            elif reply is None:
                self._wire.send([self._read])
            elif isinstance(reply, Exception):
                self._finish(f"redis refused: {reply}")

    def _take(self, entries: list[Any]) -> None:
        now_ns = time.monotonic_ns()
        ids = []
        number = self._acked
        for id_, (_, body) in entries:
            env = self._decode(body)
            if int(env.id[-ID_DIGITS:]) != number:
                self._finish(f"entry {env.id} came when number {number} was due")
                return
            number += 1
            if self._job.rate:
                self._latencies.append(now_ns - int(env.payload.t))
            ids.append(id_)
        self._wire.send([command(b"XACK", self._key, GROUP, *ids), self._read])
        self._first_ns = self._first_ns or now_ns
        self._last_ns = self._heard_ns = time.monotonic_ns()
        self._acked = self._board.acked = number

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(f"the connection was lost: {exc}")

    def watch(self) -> None:
        total = self._board.total
        if self._acked == total:
            self._finish(None)
        elif time.monotonic_ns() - self._heard_ns > STALL_S * 1e9:
            self._finish(f"{self._acked} entries came and then none (expected {total})")
        if not self.done.done():
            self._loop.call_later(POLL_S, self.watch)

    def _finish(self, error: str | None) -> None:
        if not self.done.done():
            times = percentiles_ms(self._latencies) or None
            self.done.set_result(
                Report(self._acked, self._first_ns, self._last_ns, latencies=times, error=error)
            )


async def lean_produce(job: Job) -> Report:
    loop = asyncio.get_running_loop()
    _, producer = await loop.create_connection(lambda: LeanProducer(job), job.host, job.port)
    return await producer.done


async def open_lean_consumer(job: Job) -> LeanConsumer:
    loop = asyncio.get_running_loop()
    _, consumer = await loop.create_connection(lambda: LeanConsumer(job), job.host, job.port)
    consumer.watch()
    return consumer


def lean_pace(job: Job) -> Report:
    """Open loop, like `producing.pace`."""
    adds = Adds(job.stream, job.size, job.tag)
    board = Board(Path(job.board))
    late: list[int] = []
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
            sock.sendall(adds.make(number, 1, now_ns))
            if number % 64 == 0:
                while select.select([sock], [], [], 0)[0]:
                    sock.recv(1 << 16)
        board.total = count
    return Report(count, first_ns, time.monotonic_ns(), late=percentiles_ms(late))


def stock_produce(job: Job) -> Report:
    """redis-py with a pipeline of `batch` XADDs: one round trip a batch, within the window."""
    board = Board(Path(job.board))
    one = envelope(job.stream, job.size, job.tag)
    client = import_module("redis").Redis(job.host, job.port)
    first_ns = time.monotonic_ns()
    stop_ns = first_ns + int(job.seconds * 1e9)
    sent = 0
    while (now_ns := time.monotonic_ns()) < stop_ns and not (job.count and sent >= job.count):
        if sent - board.acked > job.window:
            time.sleep(0.001)
            continue
        pipe = client.pipeline(transaction=False)
        for number in range(sent, sent + job.batch):
            pipe.xadd(job.stream, {b"e": one % (number, now_ns)}, maxlen=Adds.KEPT, approximate=True)
        pipe.execute()
        sent += job.batch
    board.total = sent
    return Report(sent, first_ns, time.monotonic_ns())


def stock_consume(job: Job) -> Report:
    """redis-py: XREADGROUP, then one XACK of all that came."""
    board = Board(Path(job.board))
    decode = msgspec.json.Decoder(Env).decode
    client = import_module("redis").Redis(job.host, job.port)
    client.xgroup_create(job.stream, GROUP, "0", mkstream=True)
    print('{"ready":true}', flush=True)
    acked = first_ns = last_ns = 0
    heard = time.monotonic()
    error = None
    while acked != board.total:
        reply: Any = client.xreadgroup(GROUP, "c", {job.stream: ">"}, count=READ_MAX, block=50)
        now_ns = time.monotonic_ns()
        if not reply:
            if time.monotonic() - heard > STALL_S:
                error = f"{acked} entries came and then none"
                break
            continue
        heard = time.monotonic()
        entries = (reply if isinstance(reply, list) else list(reply.items()))[0][1]
        rows = entries if isinstance(entries[0], tuple) else entries[0]
        ids = [id_ for id_, _ in rows]
        numbers = [int(decode(fields[b"e"]).id[-ID_DIGITS:]) for _, fields in rows]
        if numbers != list(range(acked, acked + len(numbers))):
            error = f"entries {numbers[:3]} came when number {acked} was due"
            break
        client.xack(job.stream, GROUP, *ids)
        acked += len(ids)
        board.acked = acked
        first_ns, last_ns = first_ns or now_ns, time.monotonic_ns()
    return Report(acked, first_ns, last_ns, error=error)
