"""Idle subscribers: control connections that subscribed and then say nothing."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import cast

from penstock.bench.jobs import Job, Report
from penstock.transports.outbox import StreamTransport

AT_ONCE = 200
"""Connections made side by side: a listener's backlog is bounded."""


class Holder(asyncio.Protocol):
    """One subscriber of a stream that stays empty."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        line = b'{"type":"subscribe","reqId":1,"stream":"%b","credit":10}\n' % self._stream.encode()
        StreamTransport(cast(asyncio.Transport, transport)).send([line])

    def data_received(self, data: bytes) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("the server closed a connection"))


async def hold(job: Job) -> Report:
    """Open them, say so, and keep them until stdin ends."""
    loop = asyncio.get_running_loop()
    holders: list[Holder] = []
    while len(holders) < job.count:
        part = min(AT_ONCE, job.count - len(holders))
        made = await asyncio.gather(
            *[
                loop.create_connection(partial(Holder, f"{job.stream}-{number}"), job.host, job.port)
                for number in range(len(holders), len(holders) + part)
            ]
        )
        holders += [holder for _, holder in made]
        await asyncio.gather(*[holder.ready for _, holder in made])
    print('{"ready":true}', flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    lost = sum(holder.is_lost for holder in holders)
    return Report(len(holders) - lost, error=f"{lost} connections were closed" if lost else None)
