"""Producers over HTTP: keep-alive connections that each have one request under way.

A hand-made client, because stock ones cost several times what the server does. It reads the status line and
`Content-Length`, no more.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import cast

from penstock.bench.board import Board
from penstock.bench.jobs import Job, Report, percentiles_ms
from penstock.bench.template import Posts
from penstock.transports.outbox import StreamTransport

POLL_S = 0.001


class Poster:
    """What the connections of one process share."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.board = Board(Path(job.board))
        self.loop = asyncio.get_running_loop()
        self._streams = 0
        self._room = 0
        self._posts: Posts
        self.sent = 0
        self.latencies: list[int] = []
        self.first_ns = time.monotonic_ns()
        self.stop_ns = self.first_ns + int(job.seconds * 1e9)
        self.error: str | None = None

    def next_post(self, now_ns: int) -> bytes | None:
        """The next request, None when it is time to stop."""
        job = self.job
        if self.error is not None or now_ns >= self.stop_ns or (job.count and self.sent >= job.count):
            return None
        if self._room < job.batch:
            stream = f"{job.stream}-{self._streams}" if job.stream_max else job.stream
            self._posts = Posts(stream, job.size, job.tag, job.batch, f"{job.host}:{job.port}", job.token)
            self._streams += 1
            self._room = job.stream_max or 1 << 60
        request = self._posts.make(self.sent, now_ns)
        self._room -= job.batch
        self.sent += job.batch
        return request

    @property
    def is_full(self) -> bool:
        return self.sent - self.board.acked > self.job.window


class Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, poster: Poster) -> None:
        self._poster = poster
        self.done: asyncio.Future[None] = poster.loop.create_future()
        self._wire: StreamTransport
        self._buffer = b""
        self._sent_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = StreamTransport(cast(asyncio.Transport, transport))
        self._post()

    def _post(self) -> None:
        poster, now_ns = self._poster, time.monotonic_ns()
        if poster.is_full and now_ns < poster.stop_ns:
            poster.loop.call_later(POLL_S, self._post)
            return
        request = poster.next_post(now_ns)
        if request is None:
            self._end(None)
            return
        self._sent_ns = now_ns
        self._wire.send([request])

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._buffer = data
            return
        start = data.find(b"Content-Length: ") + 16
        size = int(data[start : data.find(b"\r\n", start)])
        if len(data) < end + 4 + size:
            self._buffer = data
            return
        self._buffer = b""
        if data[9:12] != b"200":
            self._end(f"the server answered {data[9:300].decode(errors='replace')}")
            return
        self._poster.latencies.append(time.monotonic_ns() - self._sent_ns)
        self._post()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection was lost: {exc}")

    def _end(self, error: str | None) -> None:
        if not self.done.done():
            self._poster.error = self._poster.error or error
            self.done.set_result(None)


async def post(job: Job) -> Report:
    """Post until the time is over, then wait for the answers under way."""
    poster = Poster(job)
    loop = poster.loop
    connections = [
        (await loop.create_connection(lambda: Connection(poster), job.host, job.port))[1]
        for _ in range(job.connections)
    ]
    await asyncio.gather(*[connection.done for connection in connections])
    poster.board.total = poster.sent
    times = percentiles_ms(poster.latencies)
    return Report(poster.sent, poster.first_ns, time.monotonic_ns(), latencies=times, error=poster.error)
