"""`python -m tests.cluster_node NAME FOLDER SHARDS URL…`: a node that owns shards and appends to them, until it is killed.

Each line it prints is one event: `owned`, `ended`, `kept` and `refused`, with the shard and what it is about.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import nats

from penstock.core.clock import Now
from penstock.core.cluster.assignment import LiveNodes, may_take
from penstock.core.cluster.ownership import ShardOwnership
from penstock.core.cluster.reader import ShardReader
from penstock.core.cluster.stream_space import StreamSpace
from penstock.core.records import Entry
from penstock.journal.disk import RealDisk
from penstock.journal.port import Committed, Outcome
from penstock.journal.replicated.jetstream import FAILURES, JetStreamLog, stream_name
from penstock.journal.replicated.membership import ClusterBuckets, Membership
from penstock.journal.replicated.replicated_journal import ReplicatedJournal
from penstock.journal.replicated.spool import Spool
from penstock.journal.replicated.worker import Worker

CLUSTER = "test"
BYTES_MAX = 32 * 1024 * 1024
JOURNAL = "cd" * 16
EVERY_S = 0.02
T = TypeVar("T")


def say(*words: object) -> None:
    print(*words, flush=True)


def boot_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Shard:
    """One shard at this node: appends a record at a time while it may."""

    def __init__(self, name: str, shard: int, log: JetStreamLog, folder: Path, live: LiveNodes, shards: int) -> None:
        self.name, self.shard, self.live, self.shards = name, shard, live, shards
        self.loop = asyncio.get_running_loop()
        self.is_open = self.is_waiting = False
        self.count = 0
        spool = Spool(RealDisk(folder), JOURNAL)
        list(spool.rows())
        reader = ShardReader(log.stream, spool.log_end())
        self.ownership = ShardOwnership(name, reader, os.urandom, kept_offset=spool.offset)
        self.journal = ReplicatedJournal(
            JOURNAL,
            self.ownership,
            log,
            spool,
            StreamSpace(BYTES_MAX),
            now=lambda: Now(boot_us(), time.time_ns() // 1000),
            at=self.at,
            encode=Worker(self.loop, "encode"),
            write=Worker(self.loop, "spool"),
            may_take=self.may_take,
            on_owned=self.owned,
            on_ended=self.ended,
        )
        self.journal.pump()

    def at(self, us: int, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(max(us - boot_us(), 0) / 1e6, call)

    def may_take(self, ownership: ShardOwnership) -> bool:
        return may_take(self.name, self.shard, self.live.nodes, self.shards, silent=ownership.silent_owner)

    def owned(self) -> None:
        rows = sum(1 for _ in self.journal.rows())
        say("owned", self.shard, self.ownership.writer.epoch, rows)
        self.is_open = True

    def ended(self, reason: str) -> None:
        say("ended", self.shard, reason)
        self.is_open = self.is_waiting = False

    def send(self) -> None:
        if not self.is_open or self.is_waiting or not self.ownership.may_serve(boot_us()):
            return
        self.is_waiting = True
        self.count += 1
        record = f"{self.name}-{os.getpid()}-{self.count}"

        def done(outcome: Outcome) -> None:
            self.is_waiting = False
            say("kept" if isinstance(outcome, Committed) else "refused", self.shard, record)

        self.journal.append(0, 0, [Entry("courier", "enqueue", "q", id=record, body=b"x" * 300)], done)


async def until(ask: Callable[[], Awaitable[T]]) -> T:
    """The first answer that the servers give: they may still be starting."""
    while True:
        try:
            return await ask()
        except FAILURES:
            await asyncio.sleep(EVERY_S)


async def main(name: str, folder: Path, shards: int, urls: list[str]) -> None:
    async def ignore(error: Exception) -> None:
        """A server that is gone is part of the test."""

    client = await until(
        lambda: nats.connect(urls, max_reconnect_attempts=-1, reconnect_time_wait=0.2, error_cb=ignore)
    )
    buckets = await until(lambda: ClusterBuckets.open(client, CLUSTER))
    live = LiveNodes()
    jobs = asyncio.gather(*Membership(buckets, name, live, boot_us).jobs())
    cells = []
    for shard in range(shards):
        (folder / str(shard)).mkdir(parents=True, exist_ok=True)
        log = JetStreamLog(client, stream_name(CLUSTER, shard, 1))
        cells.append(Shard(name, shard, log, folder / str(shard), live, shards))
    while not jobs.done():
        for cell in cells:
            cell.send()
        await asyncio.sleep(EVERY_S)
    await jobs


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
