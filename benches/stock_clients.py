"""The peers of `penstock bench clients`: redis-py on Redis Streams, and nats-py on NATS JetStream.

Each is used as its documentation shows it: redis-py reads up to 64 entries and acks them in one XACK; nats-py acks each message of a
subscription. Durable Redis syncs its log before it answers; durable NATS has its default sync, or `sync_interval: always`.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from redis_streams import RedisServer

from penstock.bench.clients.loads import ClientJob, Received, Send, run_producer
from penstock.bench.harness.drive import HOST
from penstock.bench.harness.load import LoadReport, announce
from penstock.bench.harness.processes import ServerProcess

GROUP = "bench"
READ_MAX = 64
BLOCK_MS = 1000
PENDING_MAX = 4096  # messages that nats-py publishes without an answer, its default
NEEDED = {"redis": ("redis-server", "redis"), "nats": ("nats-server", "nats")}


def missing(name: str) -> str | None:
    """Why this machine does not have a peer."""
    program, library = NEEDED[name.partition("-")[0]]
    if shutil.which(program) is None:
        return f"{program} is not installed"
    return f"its Python client `{library}` is not installed" if find_spec(library) is None else None


def version(name: str) -> str:
    """The version of a peer's server."""
    program = NEEDED[name.partition("-")[0]][0]
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def start(name: str, folder: Path, *, durable: bool) -> ServerProcess:
    """Start a peer: `redis`, `nats` or `nats-always`."""
    if name == "redis":
        return RedisServer(folder, durable=durable, sync="always")
    return NatsServer(folder, durable=durable, is_always=name.endswith("always"))


class NatsServer(ServerProcess):
    """nats-server with JetStream."""

    def __init__(self, folder: Path, *, durable: bool, is_always: bool) -> None:
        with socket.socket() as sock:
            sock.bind((HOST, 0))
            self.port = sock.getsockname()[1]
        file = folder.with_suffix(".conf")
        sync = "sync_interval: always" if is_always else ""
        file.write_text(f'jetstream {{ store_dir: "{folder}/js"\n {sync}\n }}\n')
        super().__init__(folder, ["nats-server", "-a", HOST, "-p", str(self.port), "-c", str(file)])
        self.is_durable = durable

    def is_ready(self) -> bool:
        return "Server is ready" in self.log.read_text(errors="replace")

    def check_counts(self, stream: str, count: int) -> None:
        """The consumer has checked that nothing is pending, and deleted its stream."""


def consumed(job: ClientJob, take: Callable[[ClientJob, Received], Awaitable[None]]) -> LoadReport:
    """Run a consumer; the time ends when the last settle is confirmed."""

    async def main() -> LoadReport:
        received = Received(job)
        await take(job, received)
        return LoadReport(received.count, 0, time.monotonic_ns())

    return asyncio.run(main())


# -- redis-py


@asynccontextmanager
async def _redis(job: ClientJob) -> AsyncIterator[Any]:
    client = import_module("redis.asyncio").Redis(host=HOST, port=job.port, max_connections=job.tasks + 1)
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def _redis_sender(job: ClientJob) -> AsyncIterator[Send]:
    async with _redis(job) as client:

        async def send_all(envelopes: list[bytes]) -> None:
            pipe = client.pipeline(transaction=False)
            for one in envelopes:
                pipe.xadd(job.stream, {b"e": one})
            await pipe.execute()

        yield send_all if job.batch > 1 else lambda envelopes: client.xadd(job.stream, {b"e": envelopes[0]})


def redis_produce(job: ClientJob) -> LoadReport:
    return run_producer(job, _redis_sender)


async def _redis_take(job: ClientJob, received: Received) -> None:
    async with _redis(job) as client:
        await client.xgroup_create(job.stream, GROUP, "0", mkstream=True)
        announce()
        is_last = False
        while not is_last:
            reply = await client.xreadgroup(GROUP, "c", {job.stream: ">"}, count=READ_MAX, block=BLOCK_MS)
            if not reply:
                continue
            rows = (reply if isinstance(reply, list) else list(reply.items()))[0][1]
            rows = rows if isinstance(rows[0], tuple) else rows[0]
            for _, fields in rows:
                is_last = received.note(msgspec.json.decode(fields[b"e"])["id"])
            await client.xack(job.stream, GROUP, *[id_ for id_, _ in rows])


def redis_consume(job: ClientJob) -> LoadReport:
    return consumed(job, _redis_take)


# -- nats-py


@asynccontextmanager
async def _nats(job: ClientJob) -> AsyncIterator[tuple[Any, Any]]:
    client = await import_module("nats").connect(f"nats://{HOST}:{job.port}")
    try:
        yield client, client.jetstream(timeout=60, publish_async_max_pending=PENDING_MAX)
    finally:
        await client.close()


@asynccontextmanager
async def _nats_sender(job: ClientJob) -> AsyncIterator[Send]:
    async with _nats(job) as (_, stream):

        async def send_all(envelopes: list[bytes]) -> None:
            await asyncio.gather(*[await stream.publish_async(job.stream, one) for one in envelopes])

        yield send_all if job.batch > 1 else lambda envelopes: stream.publish(job.stream, envelopes[0])


def nats_produce(job: ClientJob) -> LoadReport:
    return run_producer(job, _nats_sender)


async def _nats_take(job: ClientJob, received: Received) -> None:
    api = import_module("nats.js.api")
    async with _nats(job) as (_, stream):
        await stream.add_stream(name=job.stream, subjects=[job.stream])
        config = api.ConsumerConfig(max_ack_pending=job.window, ack_wait=60)
        limits = {"pending_msgs_limit": -1, "pending_bytes_limit": -1}
        messages = await stream.subscribe(job.stream, durable=GROUP, manual_ack=True, config=config, **limits)
        announce()
        async for message in messages.messages:
            if received.note(msgspec.json.decode(message.data)["id"]):
                await message.ack_sync(timeout=60)
                break
            await message.ack()
        info = await messages.consumer_info()
        if info.num_ack_pending:
            raise ValueError(f"nats has {info.num_ack_pending} messages pending")
        await stream.delete_stream(job.stream)


def nats_consume(job: ClientJob) -> LoadReport:
    return consumed(job, _nats_take)
