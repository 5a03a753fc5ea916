"""Rounds of the relay bench: what was sent, that all of it arrived, and what the relay spent on it."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from penstock.bench.harness.load import Report
from penstock.bench.harness.processes import (
    HOST,
    STOP_S,
    PenstockServer,
    ProcessGroup,
    ServerProcess,
    rss_bytes,
    wait_until,
)
from penstock.bench.harness.result import MIB, BenchError, BenchRound
from penstock.bench.queue.rounds import QueueRounds
from penstock.bench.relay.loads import RelayJob
from penstock.bench.relay.messages import SIGNERS

TOGETHER_S = 120.0  # how long the relay may work while the queue is measured; it ends with the queue's load
REGISTERED, REFUSED = "penstock_relay_registered_total", "penstock_relay_refused_total"


class RelayedServer(PenstockServer):
    """`penstock up` with a relay, which is a process of its own."""

    @property
    def relay_rss_bytes(self) -> int:
        return rss_bytes(self.relay_pid() or 0)

    def check_registered(self, count: int) -> None:
        """So many topics were registered since the start, and none was refused."""

        def explain() -> str:
            taken, refused = self.metric(REGISTERED), self.metric(REFUSED)
            return f"{taken:.0f} of {count} registrations were accepted, {refused:.0f} refused"

        wait_until(lambda: self.metric(REGISTERED) == count and not self.metric(REFUSED), STOP_S, explain)


class ZmqProxy(ServerProcess):
    """libzmq's proxy between the same sockets: what a relay without memory or rules could do at best."""

    def __init__(self, folder: Path, transport: str) -> None:
        ends = [
            f"ipc://{folder / name}" if transport == "ipc" else f"tcp://{HOST}:*" for name in ("pub", "pull")
        ]
        super().__init__(folder, [sys.executable, "-m", "penstock.bench.relay.loads", *ends])
        self.pub = self.pull = ""

    def is_ready(self) -> bool:
        line = self.log.read_bytes().partition(b"\n")
        if not line[1]:
            return False
        try:
            self.pub, self.pull = json.loads(line[0])
        except ValueError:
            raise BenchError(f"the proxy did not start: {line[0][:200]!r}") from None
        return True


def start_relay(group: ProcessGroup, transport: str) -> RelayedServer:
    config = {"relay": {"signers": SIGNERS}}
    return group.start(partial(RelayedServer, config=config, relay=transport))


class RelayRounds:
    """Rounds in one process group. Every round has topics of its own."""

    def __init__(self, group: ProcessGroup, size: int, window: int) -> None:
        self._group, self._size, self._window = group, size, window
        self._rounds = 0

    def _job(
        self, server: RelayedServer | ZmqProxy | None, count: int = 1, seconds: float = 60.0
    ) -> RelayJob:
        self._rounds += 1
        job = RelayJob(
            size=self._size, window=self._window, tag=f"r{self._rounds}", count=count, seconds=seconds
        )
        if server is not None:
            job.pub, job.pull, job.board = server.pub, server.pull, self._group.board()
            job.server_pid = server.pid if isinstance(server, ZmqProxy) else server.relay_pid() or 0
            job.is_plain = isinstance(server, ZmqProxy)
        return job

    def flow(self, server: RelayedServer | ZmqProxy, topics: int, seconds: float) -> BenchRound:
        """One publisher and one subscriber of so many topics, as fast as it goes."""
        job = self._job(server, topics, seconds)
        sent, taken = self._group.flow(server, ("relay.loads:publish", job), ("relay.loads:receive", job))
        return _to_round(server, sent, taken)

    def register(self, server: RelayedServer, count: int, before: int) -> BenchRound:
        """So many registrations in a row, after those of earlier rounds."""
        sent = self._group.load("relay.loads:register", self._job(server, count)).report()
        server.check_registered(before + count)
        return _to_round(server, sent)

    def memory(self, server: RelayedServer, count: int, each: int) -> BenchRound:
        """Memory of open topics, each with a subscriber and a few messages that are kept."""
        before = server.relay_rss_bytes
        job = self._job(server, count)
        job.each = each
        load = self._group.load("relay.loads:hold", job, is_announced=True)
        rss = server.relay_rss_bytes
        server.check_registered(count)
        report = load.report()
        done = BenchRound.timed(report.count, report.seconds, rss_bytes=rss)  # the time is mostly signatures
        done.server_rss_mib, done.bytes_each = round(rss / MIB, 1), round((rss - before) / count, 1)
        return done

    def verify(self, seconds: float) -> BenchRound:
        """A client's reader alone, in a process of its own."""
        report = self._group.load("relay.loads:verify", self._job(None, 1, seconds)).report()
        return BenchRound.timed(report.count, report.seconds)

    def together(
        self, server: RelayedServer, queue: QueueRounds, seconds: float, rate: int, speed: int
    ) -> tuple[BenchRound, BenchRound]:
        """The queue's latencies while the server's relay works at `speed`, and the speed that it reached."""
        job = self._job(server, 1, TOGETHER_S)
        job.rate = speed
        taking = self._group.load("relay.loads:receive", job, is_announced=True)
        publishing = self._group.load("relay.loads:publish", job)
        queued = queue.flow(server, 1, seconds, rate)
        return queued, _to_round(server, publishing.report(), taking.report())


def _to_round(server: RelayedServer | ZmqProxy, sent: Report, taken: Report | None = None) -> BenchRound:
    rss = server.rss_bytes() if isinstance(server, ZmqProxy) else server.relay_rss_bytes
    done = BenchRound.timed(sent.count, sent.seconds, sent.server_cpu_s, rss)
    if taken is not None:
        if taken.count != sent.count:
            raise BenchError(f"{sent.count} messages were sent and {taken.count} arrived")
        done.producer_cpu_us = round(sent.cpu_s / max(sent.count, 1) * 1e6, 3)
        done.consumer_cpu_us = round(taken.cpu_s / max(sent.count, 1) * 1e6, 3)
    return done
