"""A producer and a consumer with the stock client, as an application writes them, on the event loop of the standard library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import penstock
from penstock.bench.harness.drive import HOST
from penstock.bench.harness.load import Board, LoadJob, LoadReport, announce
from penstock.bench.queue.envelopes import ID_DIGITS, envelope
from penstock.client.queue.delivery import Delivery
from penstock.client.queue.subscription import Subscription

CREDIT = 1024
MARK_EVERY = 64  # deliveries between two looks at the board
POLL_S = 0.001


class ClientJob(LoadJob, kw_only=True, omit_defaults=True):
    """A load with a stock client."""

    stream: str = "bench"
    size: int = 300
    count: int = 20_000
    batch: int = 64  # envelopes of one call
    tasks: int = 16  # that send at the same time
    style: str = "plain loop"


Send = Callable[[list[bytes]], Awaitable[object]]
"""Sends envelopes in one call and returns when they are stored."""
Sender = Callable[[ClientJob], AbstractAsyncContextManager[Send]]


def run_producer(job: ClientJob, sender: Sender) -> LoadReport:
    """Send all envelopes with so many tasks, each of which waits for its calls."""
    board, one = Board(job.board), envelope(job.stream, job.size, "b")
    starts = iter(range(0, job.count, job.batch))

    async def work(send: Send) -> None:
        for first in starts:
            while first - board.acked > job.window:  # noqa: ASYNC110 - another process moves the board
                await asyncio.sleep(POLL_S)
            now_ns = time.monotonic_ns()
            await send([one % (number, now_ns) for number in range(first, min(first + job.batch, job.count))])

    async def main() -> LoadReport:
        async with sender(job) as send:
            announce()
            first_ns = time.monotonic_ns()
            await asyncio.gather(*(work(send) for _ in range(job.tasks)))
            return LoadReport(job.count, first_ns, time.monotonic_ns())

    return asyncio.run(main())


class Received:
    """Counts what arrived, once each, and shows the progress to the producer."""

    def __init__(self, job: ClientJob) -> None:
        self._board, self._seen = Board(job.board), bytearray(job.count)
        self._total = job.count
        self.count = 0

    def note(self, id_: str) -> bool:
        """Note an envelope by its id; whether all have arrived."""
        number = int(id_[-ID_DIGITS:])
        if not self._seen[number]:
            self._seen[number] = 1
            self.count += 1
            if self.count % MARK_EVERY == 0:
                self._board.acked = self.count
        return self.count == self._total


async def loop(jobs: Subscription, received: Received) -> None:
    async for job in jobs:
        job.payload  # noqa: B018 - an application reads it
        await job.ack()
        if received.note(job.id):
            return


async def work(jobs: Subscription, received: Received) -> None:
    async def handle(job: Delivery) -> None:
        job.payload  # noqa: B018
        if received.note(job.id):
            await job.ack()
            await jobs.close()

    await jobs.work(handle, concurrency=64)


async def work_batch(jobs: Subscription, received: Received) -> None:
    async def handle(batch: list[Delivery]) -> None:
        done = [received.note(job.id) for job in batch if job.payload]
        if done[-1]:
            await jobs.ack(batch)
            await jobs.close()

    await jobs.work_batch(handle, max=1024)


STYLES = {"plain loop": loop, "work": work, "work_batch": work_batch}


def produce(job: ClientJob) -> LoadReport:
    return run_producer(job, _sender)


@asynccontextmanager
async def _sender(job: ClientJob) -> AsyncIterator[Send]:
    async with penstock.connect(f"tcp://{HOST}:{job.port}") as client:
        stream = job.stream
        if job.batch == 1:
            yield lambda envelopes: client.enqueue(stream, envelopes[0])
        else:
            yield lambda envelopes: client.enqueue(stream, envelopes)


def consume(job: ClientJob) -> LoadReport:
    """Take and ack everything; the time ends when the last settle is confirmed."""

    async def main() -> LoadReport:
        async with penstock.connect(f"tcp://{HOST}:{job.port}") as client:
            jobs = await client.subscribe(job.stream, credit=CREDIT).open()
            announce()
            received = Received(job)
            await STYLES[job.style](jobs, received)
            await client.flush()
            return LoadReport(received.count, 0, time.monotonic_ns())

    return asyncio.run(main())
