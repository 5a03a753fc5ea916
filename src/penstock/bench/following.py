"""Followers of a view on WebSockets, and the producer that changes its rows.

The followers read and count; one of them also looks at the time in each row. At the end all of them must have come to the same version.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from functools import partial
from typing import cast

from penstock.bench.jobs import Job, Report, percentiles_ms
from penstock.transports.outbox import StreamTransport

AT_ONCE = 200
"""Connections made side by side: a listener's backlog is bounded."""
TICK_S = 0.01
"""How often a producer sends what is due."""
GRACE_S = 20.0
QUIET_S = 0.5
_REQUEST = (
    b"GET /v1/live?view=latestPerAgent HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
_VERSION = b'"version":'
_SENT = b'"sentNs":'


class Follower(asyncio.Protocol):
    """One follower: it counts changes, and remembers the newest version."""

    def __init__(self, *, is_probe: bool) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.count = 0
        self.bytes = 0
        self.is_lost = False
        self.version = 0
        self.latencies_ns: list[int] = []
        self._is_probe = is_probe
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        StreamTransport(cast(asyncio.Transport, transport)).send([_REQUEST])

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        if not self.ready.done():
            self._tail += data
            if b'"watermark":' in self._tail:
                self._tail = b""
                self.ready.set_result(None)
            return
        # A mark may be cut by the end of a chunk; a change is longer than what is kept of the last one.
        whole = self._tail + data
        self.count += whole.count(_VERSION) - self._tail.count(_VERSION)
        at = whole.rfind(_VERSION)
        if at >= 0:
            digits = whole[at + len(_VERSION) : at + len(_VERSION) + 20].partition(b",")
            if digits[1]:
                self.version = int(digits[0])
        if self._is_probe:
            self._time(whole)
        self._tail = whole[-64:]

    def _time(self, whole: bytes) -> None:
        now_ns = time.monotonic_ns()
        at = whole.find(_SENT, max(len(self._tail) - len(_SENT) + 1, 0))
        while at >= 0:
            text = whole[at + len(_SENT) : at + len(_SENT) + 24].partition(b",")[0]
            if text.isdigit():
                self.latencies_ns.append(now_ns - int(text))
            at = whole.find(_SENT, at + 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("the server closed a connection"))


async def follow(job: Job) -> Report:
    """Follow, say so, and go on until stdin has ended and everybody has everything."""
    loop = asyncio.get_running_loop()
    followers: list[Follower] = []
    while len(followers) < job.count:
        first = len(followers)
        made = await asyncio.gather(
            *[
                loop.create_connection(partial(Follower, is_probe=n == 0), job.host, job.port)
                for n in range(first, min(first + AT_ONCE, job.count))
            ]
        )
        followers += [follower for _, follower in made]
        await asyncio.gather(*[follower.ready for _, follower in made])
    print('{"ready":true}', flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    await _settle(followers)
    report = Report(sum(follower.count for follower in followers))
    report.latencies = percentiles_ms(followers[0].latencies_ns)
    report.note = str(sum(follower.bytes for follower in followers))
    lost = sum(follower.is_lost for follower in followers)
    versions = {follower.version for follower in followers}
    if lost or len(versions) > 1:
        report.error = (
            f"{lost} of {len(followers)} followers were lost, the others are at {len(versions)} versions"
        )
    return report


async def _settle(followers: list[Follower]) -> None:
    """Wait until all are at one version and nothing more comes."""
    deadline = time.monotonic() + GRACE_S
    before = -1
    while time.monotonic() < deadline:
        total = sum(follower.bytes for follower in followers)
        if total == before and len({follower.version for follower in followers}) == 1:
            return
        before = total
        await asyncio.sleep(QUIET_S)


class Changer(asyncio.Protocol):
    """Sends and counts answers."""

    def __init__(self) -> None:
        self.answered = 0
        self.error: str | None = None
        self._wanted = -1
        self._done = asyncio.Event()
        self.wire: StreamTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = StreamTransport(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self.answered += data.count(b"\n")
        if self.answered == self._wanted:
            self._done.set()
        if b'"type":"error"' in data and self.error is None:
            self.error = data[:300].decode(errors="replace")

    async def wait(self, count: int) -> None:
        """Wait for so many answers, but not for ever."""
        self._wanted = count
        if self.answered < count:
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await self._done.wait()


async def change(job: Job) -> Report:
    """Send one envelope to each of `count` inboxes in turn, `rate` a second; with rate 0, once to each."""
    loop = asyncio.get_running_loop()
    _, changer = await loop.create_connection(Changer, job.host, job.port)
    filler = "x" * max(0, job.size - 150)
    first_ns = time.monotonic_ns()
    sent = 0
    wanted = job.count if job.rate == 0 else int(job.rate * job.seconds)
    while sent < wanted:
        elapsed_s = (time.monotonic_ns() - first_ns) / 1e9
        due = wanted if job.rate == 0 else min(wanted, int(elapsed_s * job.rate) + 1)
        if due > sent:
            lines = [_line(job, number, filler) for number in range(sent, due)]
            changer.wire.send(lines)
            sent = due
        await asyncio.sleep(TICK_S)
    await changer.wait(sent)
    missing = None if changer.answered == sent else f"{sent} were sent and {changer.answered} answered"
    return Report(sent, first_ns, time.monotonic_ns(), error=changer.error or missing)


def _line(job: Job, number: int, filler: str) -> bytes:
    return (
        b'{"type":"enqueue","to":"agents/%b-%d/inbox","env":{"id":"%b-%d","ts":"2026-01-01T00:00:00Z","type":"bench",'
        b'"payload":{"sentNs":%d,"text":"%b"}}}\n'
        % (
            job.stream.encode(),
            number % job.count,
            job.tag.encode(),
            number,
            time.monotonic_ns(),
            filler.encode(),
        )
    )
