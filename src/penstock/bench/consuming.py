"""The consumer over Control v1 lines: decodes every delivery, acks all of a chunk in one line, checks the order."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import cast

import msgspec

from penstock.bench.board import Board
from penstock.bench.jobs import Job, Report, percentiles_ms
from penstock.transports.outbox import StreamTransport

STALL_S = 20.0
"""Without a delivery for this long, something is lost."""
POLL_S = 0.02
CREDIT = 8192
ACK_MAX = 4096
"""Ids in one ack, as the server allows."""


class Payload(msgspec.Struct):
    t: str


class Env(msgspec.Struct):
    id: str
    payload: Payload


class One(msgspec.Struct):
    """A line from the server, when deliveries come singly."""

    type: str
    env: Env | None = None
    seq: int = 0
    detail: str = ""


class Many(msgspec.Struct):
    """A line from the server, when deliveries come in arrays."""

    type: str
    env: list[Env] | None = None
    seq: list[int] = []
    detail: str = ""


class Consumer(asyncio.Protocol):
    """Acks everything it gets until the board says that this was all."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._board = Board(Path(job.board))
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Report] = self._loop.create_future()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._one = msgspec.json.Decoder(One)
        self._many = msgspec.json.Decoder(Many)
        self._tail = b""
        self._acked = 0
        self._latencies: list[int] = []
        self._is_timed = job.rate > 0
        self._first_ns = self._last_ns = 0
        self._heard_ns = time.monotonic_ns()
        self._wire: StreamTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = StreamTransport(cast(asyncio.Transport, transport))
        line = b'{"type":"subscribe","reqId":"sub","stream":"%b","batch":%d,"auto":%d}\n'
        self._wire.send([line % (self._job.stream.encode(), self._job.batch, CREDIT)])

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if self._tail:
            data = self._tail + data
        cut = data.rfind(b"\n") + 1
        self._tail = data[cut:]
        if not cut:
            return
        ids: list[str] = []
        seen: list[int] = []
        if self._job.batch == 1:
            for one in self._one.decode_lines(data[:cut]):
                if one.env is None:
                    self._other(one.type, one.detail)
                    continue
                ids.append(one.env.id)
                seen.append(one.seq)
                if self._is_timed:
                    self._latencies.append(now_ns - int(one.env.payload.t))
        else:
            for many in self._many.decode_lines(data[:cut]):
                if many.env is None:
                    self._other(many.type, many.detail)
                    continue
                ids += [env.id for env in many.env]
                seen += many.seq
        if not ids:
            return
        if seen != list(range(self._acked + 1, self._acked + 1 + len(seen))):
            self._finish(f"deliveries out of order: {seen[:3]} after {self._acked}")
            return
        encode = msgspec.json.encode
        parts = [ids] if len(ids) <= ACK_MAX else [ids[i : i + ACK_MAX] for i in range(0, len(ids), ACK_MAX)]
        self._wire.send([b'{"type":"ack","id":%b}\n' % encode(part) for part in parts])
        self._first_ns = self._first_ns or now_ns
        self._last_ns = self._heard_ns = time.monotonic_ns()
        self._acked += len(ids)
        self._board.acked = self._acked

    def _other(self, kind: str, detail: str) -> None:
        if kind == "ok" and not self.ready.done():
            self.ready.set_result(None)
        elif kind != "ok":
            self._finish(f"the server sent `{kind}`: {detail}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(f"the connection was lost: {exc}")

    def watch(self) -> None:
        """Look whether that was all, now and then."""
        total = self._board.total
        if self._acked == total:
            self._finish(None)
        elif time.monotonic_ns() - self._heard_ns > STALL_S * 1e9:
            self._finish(
                f"{self._acked} deliveries came and then none for {STALL_S:.0f} s (expected {total})"
            )
        if not self.done.done():
            self._loop.call_later(POLL_S, self.watch)

    def _finish(self, error: str | None) -> None:
        if not self.ready.done():
            self.ready.set_result(None)
        if not self.done.done():
            latencies = percentiles_ms(self._latencies) or None
            self.done.set_result(
                Report(self._acked, self._first_ns, self._last_ns, latencies=latencies, error=error)
            )


async def open_consumer(job: Job) -> Consumer:
    """Connect and subscribe; deliveries may come from now on."""
    loop = asyncio.get_running_loop()
    _, consumer = await loop.create_connection(lambda: Consumer(job), job.host, job.port)
    await consumer.ready
    consumer.watch()
    return consumer
