"""Rounds of the relay: what was sent, that all of it arrived, and what the relay spent on it."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from penstock.bench.harness.load import LoadReport
from penstock.bench.harness.processes import (
    HOST,
    STOP_S,
    PenstockServer,
    ProcessGroup,
    ServerProcess,
    cpu_s,
    rss_bytes,
    wait_until,
)
from penstock.bench.harness.result import BenchError, BenchRound
from penstock.bench.queue.rounds import QueueRounds
from penstock.bench.relay.loads import SIGNERS, RelayJob

TOGETHER_S = 120.0  # how long the relay may work while the queue is measured; it ends with the queue's load
REGISTERED, REFUSED = "penstock_relay_registered_total", "penstock_relay_refused_total"


class ZmqProxy(ServerProcess):
    """libzmq's proxy between the same sockets: what a relay without memory or rules could do at best."""

    pub = pull = ""

    def __init__(self, folder: Path, transport: str) -> None:
        ends = [f"ipc://{folder / name}" if transport == "ipc" else f"tcp://{HOST}:*" for name in ("pub", "pull")]
        super().__init__(folder, [sys.executable, "-m", "penstock.bench.relay.loads", *ends])
        self.relay_pid = self.pid

    def is_ready(self) -> bool:
        line = self.log.read_bytes().partition(b"\n")
        if not line[1]:
            return False
        try:
            self.pub, self.pull = json.loads(line[0])
        except ValueError:
            raise BenchError(f"the proxy did not start: {line[0][:200]!r}") from None
        return True


Relay = PenstockServer | ZmqProxy


def start_relay(group: ProcessGroup, transport: str) -> PenstockServer:
    config = {"relay": {"signers": SIGNERS}}
    return group.start(partial(PenstockServer, config=config, relay=transport))


def check_registered(server: PenstockServer, count: int) -> None:
    """So many topics were registered since the start, and none was refused."""

    def explain() -> str:
        return f"{server.metric(REGISTERED):.0f} of {count} registrations were accepted, {server.metric(REFUSED):.0f} refused"

    wait_until(lambda: server.metric(REGISTERED) == count and not server.metric(REFUSED), STOP_S, explain)


class RelayRounds:
    """Rounds in one process group. Every round has topics of its own."""

    def __init__(self, group: ProcessGroup, size: int, window: int) -> None:
        self._group, self._size, self._window = group, size, window
        self._rounds = 0

    def _job(self, server: Relay, count: int = 1, seconds: float = 60.0) -> RelayJob:
        self._rounds += 1
        job = RelayJob(pub=server.pub, pull=server.pull, board=self._group.board(), count=count, seconds=seconds)
        job.size, job.window, job.tag = self._size, self._window, f"r{self._rounds}"
        job.is_plain = isinstance(server, ZmqProxy)
        return job

    def flow(self, server: Relay, topics: int, seconds: float) -> BenchRound:
        """One publisher and one subscriber of so many topics, as fast as it goes."""
        job = self._job(server, topics, seconds)
        read_cpu_s = partial(_cpu_s, server)
        sent, taken = self._group.flow(read_cpu_s, "relay.loads:publish", job, "relay.loads:receive")
        return _to_round(server, sent, taken)

    def register(self, server: PenstockServer, count: int, before: int) -> BenchRound:
        """So many registrations in a row, after those of earlier rounds."""
        sent = self._group.measure(partial(_cpu_s, server), "relay.loads:register", self._job(server, count))
        check_registered(server, before + count)
        return BenchRound.timed(sent.count, sent.seconds, _rss(server), server=sent.server_cpu_s)

    def memory(self, server: PenstockServer, count: int, each: int) -> BenchRound:
        """Memory of open topics, each with a subscriber and a few messages that are kept."""
        before = _rss(server)
        job = self._job(server, count)
        job.each = each
        load = self._group.load("relay.loads:hold", job, is_announced=True)
        rss = _rss(server)
        check_registered(server, count)
        report = load.report()
        done = BenchRound.timed(report.count, report.seconds, rss)  # without CPU: most of it is signatures
        done.bytes_each = round((rss - before) / count, 1)
        return done

    def verify(self, seconds: float) -> BenchRound:
        """A client's reader alone, in a process of its own."""
        report = self._group.load("relay.loads:verify", RelayJob(seconds=seconds)).report()
        return BenchRound.timed(report.count, report.seconds)

    def together(
        self, server: PenstockServer, queue: QueueRounds, seconds: float, rate: int, speed: int
    ) -> tuple[BenchRound, BenchRound]:
        """The queue's latencies while the server's relay works at `speed`, and the speed that it reached."""
        job = self._job(server, 1, TOGETHER_S)
        job.rate = speed
        taking = self._group.load("relay.loads:receive", job, is_announced=True)
        publishing = self._group.load("relay.loads:publish", job, is_announced=True)
        before_s = _cpu_s(server)
        queued = queue.flow(server, 1, seconds, rate)
        sent = publishing.report()
        sent.server_cpu_s = _cpu_s(server) - before_s
        return queued, _to_round(server, sent, taking.report())


def _cpu_s(server: Relay) -> float:
    return cpu_s(server.relay_pid or 0) or 0.0


def _rss(server: Relay) -> int:
    return rss_bytes(server.relay_pid or 0)


def _to_round(server: Relay, sent: LoadReport, taken: LoadReport) -> BenchRound:
    if taken.count != sent.count:
        raise BenchError(f"{sent.count} messages were sent and {taken.count} arrived")
    cpu_s = {"server": sent.server_cpu_s, "producer": sent.cpu_s, "consumer": taken.cpu_s}
    return BenchRound.timed(sent.count, sent.seconds, _rss(server), **cpu_s)
