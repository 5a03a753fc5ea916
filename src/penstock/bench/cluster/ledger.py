"""What SDK clients were promised during a bench of a cluster, and how long each shard kept them waiting."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Protocol

import penstock
from penstock.bench.harness.result import BenchError
from penstock.cli.output import print_note
from penstock.core.errors import LeaseLost, PenstockError
from penstock.core.placement import SHARDS, shard_of, stream_key

EACH_S, LOOK_S = 0.02, 0.05
ANSWER_S = 120.0
"""How long a shard may give no answer after the cluster has dealt with an event."""
GRACE_S = 60.0
"""For what is still on its way at the end; a lease that ended with its owner is over by then."""


class Disturbed(Protocol):
    """What is disturbed, in a thread."""

    def disturb(self, event: str, number: int) -> Collection[int]:
        """Cause one event and wait until it is dealt with; returns the shards that it affected."""

    def abort(self) -> None:
        """End a `disturb` that runs."""


def percentiles(pauses: Iterable[float]) -> list[float]:
    """How many, the median, the 99th percentile and the longest."""
    found = sorted(pauses) or [0.0]
    return [len(found), *(round(found[min(int(len(found) * part), len(found) - 1)], 2) for part in (0.5, 0.99, 1.0))]


class ClusterLedger:
    """A sender and a receiver for each shard. The pause of a shard is the longest time between two confirmed enqueues."""

    def __init__(self, url: str = "", grace_s: float = GRACE_S) -> None:
        self._url = url
        self._grace_s = grace_s
        self._prefix = os.urandom(4).hex()
        self._waited: dict[int, float] = {}
        self._answered: Counter[int] = Counter()
        self._settled: set[str] = set()
        self._due: set[str] = set()
        """Confirmed, and not settled yet."""
        self._unsure: set[str] = set()
        """Received; their settle failed, so it may have been kept or not."""
        self.pauses: dict[str, list[float]] = {}
        self.seconds: dict[str, float] = {}
        self.during: Counter[str] = Counter()
        """Enqueues that were confirmed during an event."""
        self.refused: Counter[str] = Counter()
        """Requests that the SDK gave up, by code; the next one has another id."""
        self.confirmed = self.returned = self.stale = 0

    # -- what was promised

    def confirm(self, name: str) -> None:
        """An enqueue was confirmed."""
        self.confirmed += 1
        if name not in self._settled:
            self._due.add(name)

    def settle(self, name: str, error: PenstockError | None = None) -> None:
        """An envelope was received, and its settle was confirmed or failed."""
        is_again = name in self._settled
        if is_again and isinstance(error, LeaseLost):
            self.stale += 1  # of an owner that is no longer: allowed, because its settle is refused
        elif is_again:
            self.returned += 1
        elif error is not None:
            self._unsure.add(name)
        else:
            self._settled.add(name)
            self._due.discard(name)
            self._unsure.discard(name)

    @property
    def lost(self) -> int:
        """Confirmed and not received by now."""
        return len(self._due - self._unsure)

    @property
    def unsure(self) -> int:
        """Received, with a settle that failed, and not received again by now."""
        return len(self._unsure)

    def failures(self) -> list[str]:
        """What breaks a promise."""
        found = {"confirmed envelopes are lost": self.lost, "settled envelopes returned": self.returned}
        return [f"{count:,} {what}" for what, count in found.items() if count]

    # -- the clients

    async def run(self, found: Disturbed, events: list[str], rounds: int) -> None:
        """All events in turn, so many times. Raises BenchError when a shard does not come back."""
        streams: dict[int, str] = {}
        for number in range(1_000):
            streams.setdefault(shard_of(stream_key(f"bench/{number}")), f"bench/{number}")
        assert len(streams) == SHARDS
        stopping = asyncio.Event()
        async with penstock.connect(self._url) as client:
            takers = [asyncio.create_task(self._take(client, stream)) for stream in streams.values()]
            senders = [asyncio.create_task(self._send(client, shard, streams[shard], stopping)) for shard in streams]
            try:
                await self._all_answer("the start")
                for number in range(rounds):
                    for event in events:
                        await self._measure(found, event, number)
                stopping.set()
                await self._ends(senders)
            finally:
                found.abort()
                for task in (*takers, *senders):
                    task.cancel()
                await asyncio.gather(*takers, *senders, return_exceptions=True)

    async def _measure(self, found: Disturbed, event: str, number: int) -> None:
        began, before = time.monotonic(), self.confirmed
        self._waited.clear()
        shards = await asyncio.to_thread(found.disturb, event, number)
        await self._all_answer(event)
        self.pauses.setdefault(event, []).extend(self._waited[shard] for shard in shards)
        self.seconds[event] = self.seconds.get(event, 0.0) + time.monotonic() - began
        self.during[event] += self.confirmed - before
        longest_s = max((self._waited[shard] for shard in shards), default=0.0)
        print_note(f"round {number + 1}, {event}: {len(shards)} shards, longest pause {longest_s:.2f} s")

    async def _all_answer(self, event: str) -> None:
        """Until each shard has confirmed an enqueue that began now or later: the pause of each is over then."""
        goals = {shard: self._answered[shard] + 2 for shard in range(SHARDS)}
        until = time.monotonic() + ANSWER_S
        while silent := [shard for shard, goal in goals.items() if self._answered[shard] < goal]:
            if time.monotonic() > until:
                raise BenchError(f"after {event}, shards {silent} confirm nothing for {ANSWER_S:.0f} s; {self.refused}")
            await asyncio.sleep(LOOK_S)

    async def _ends(self, senders: list[asyncio.Task[None]]) -> None:
        """Until everything that was sent is settled, or the time for it is over."""
        _, late = await asyncio.wait(senders, timeout=ANSWER_S)
        if late:
            raise BenchError(f"{len(late)} enqueues have no answer after {ANSWER_S:.0f} s")
        for _ in range(int(self._grace_s / LOOK_S)):
            if not self._due:
                break
            await asyncio.sleep(LOOK_S)

    async def _send(self, client: penstock.Client, shard: int, stream: str, stopping: asyncio.Event) -> None:
        number, last = 0, time.monotonic()
        while not stopping.is_set():
            number += 1  # also after a refusal: a request without an answer may have been kept
            name = f"{stream}#{self._prefix}{number}"
            try:
                await client.enqueue(stream, {"id": name, "type": "bench", "payload": number})
            except PenstockError as error:
                self.refused[error.code] += 1
            else:
                self.confirm(name)
                last, before = time.monotonic(), last
                self._waited[shard] = max(self._waited.get(shard, 0.0), last - before)
                self._answered[shard] += 1
            await asyncio.sleep(EACH_S)

    async def _take(self, client: penstock.Client, stream: str) -> None:
        while True:
            try:
                async with client.subscribe(stream, credit=8) as jobs:
                    async for job in jobs:
                        try:
                            await job.ack(confirm=True)
                        except PenstockError as error:
                            self.settle(job.id, error)
                        else:
                            self.settle(job.id)
            except PenstockError as error:
                self.refused[error.code] += 1
            await asyncio.sleep(EACH_S)
