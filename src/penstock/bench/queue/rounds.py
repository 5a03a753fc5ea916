"""Rounds of the queue: each starts its loads, measures, and proves that no envelope was lost."""

from __future__ import annotations

import time

from penstock.bench.harness.load import LoadReport
from penstock.bench.harness.processes import PenstockServer, ProcessGroup
from penstock.bench.harness.result import BenchError, BenchRound
from penstock.bench.queue.loads import QueueJob
from penstock.bench.queue.redis import RedisServer

WINDOW = 8192
FILL_STREAM = 50_000  # envelopes that fill one stream: below the default limit of its depth
Server = PenstockServer | RedisServer


class QueueRounds:
    """Rounds in one process group. Every round has a stream of its own."""

    def __init__(self, group: ProcessGroup, size: int) -> None:
        self._group, self._size = group, size
        self._rounds = 0

    def _job(self, server: Server, kind: str, seconds: float, batch: int = 1) -> QueueJob:
        self._rounds += 1
        job = QueueJob(port=server.port, seconds=seconds, board=self._group.board(), size=self._size, batch=batch)
        job.stream, job.tag, job.window = f"bench/{kind}-{self._rounds}", f"b{self._rounds}", WINDOW
        return job

    def flow(self, server: Server, batch: int, seconds: float, rate: int = 0, client: str = "lean") -> BenchRound:
        """One producer, one consumer, everything acked: closed loop, or open loop at `rate` a second."""
        job = self._job(server, "flow", seconds, batch)
        job.rate = rate
        module = "redis" if isinstance(server, RedisServer) else "loads"
        prefix = f"queue.{module}:" + ("stock_" if client == "redis-py" else "")
        return self._measure(server, prefix + ("pace" if rate else "produce"), job, prefix + "consume", job)

    def posts(self, server: PenstockServer, batch: int, seconds: float, connections: int) -> BenchRound:
        """HTTP enqueues; a control subscription takes and acks them."""
        job = self._post(server, "posts", batch, seconds, connections)
        job.window = max(WINDOW, 4 * batch * connections)
        consumer = QueueJob(port=server.port, seconds=seconds, board=job.board, stream=job.stream, batch=64)
        return self._measure(server, "queue.loads:post", job, "queue.loads:consume", consumer)

    def fill(self, server: PenstockServer, batch: int, count: int, seconds: float, connections: int) -> BenchRound:
        """HTTP enqueues without a consumer: at most `count`, over several streams because each is bounded."""
        job = self._post(server, "fill", batch, seconds, connections)
        job.window, job.count, job.stream_max = 1 << 40, count, FILL_STREAM // batch * batch
        report = self._group.measure(server.cpu_s, "queue.loads:post", job)
        server.check_counts(job.stream, report.count, is_held=True)
        return _to_round(server, report, report)

    def _post(self, server: PenstockServer, kind: str, batch: int, seconds: float, connections: int) -> QueueJob:
        job = self._job(server, kind, seconds, batch)
        job.port, job.connections, job.token = server.http_port, connections, server.token()
        return job

    def _measure(self, server: Server, sender: str, job: QueueJob, receiver: str, receiver_job: QueueJob) -> BenchRound:
        sent, taken = self._group.flow(server.cpu_s, sender, job, receiver, receiver_job)
        if sent.count != taken.count:
            raise BenchError(f"{sent.count} envelopes were sent and {taken.count} were acked")
        server.check_counts(job.stream, sent.count)
        sent.last_ns = taken.last_ns
        done = _to_round(server, sent, taken)
        done.consumer_cpu_us = round(taken.cpu_s / max(sent.count, 1) * 1e6, 3)
        return done

    def memory(self, server: PenstockServer, count: int) -> BenchRound:
        """Memory of a queued envelope: the server's RSS before and after `count` that stay queued."""
        rss_before, cpu_before = server.rss_bytes(), server.cpu_s()
        seconds, held = 0.0, 0
        while held < count:
            part = min(count - held, FILL_STREAM)
            job = self._job(server, "held", 60.0, min(64, part))
            job.count, job.window = part, 1 << 40
            report = self._group.load("queue.loads:produce", job).report()
            server.check_counts(job.stream, report.count, is_held=True)
            held += report.count
            seconds += report.seconds
        done = BenchRound.timed(held, seconds, server.rss_bytes(), server=server.cpu_s() - cpu_before)
        done.bytes_each = round((server.rss_bytes() - rss_before) / held, 1)
        return done

    def idle(self, server: PenstockServer, count: int, seconds: float) -> BenchRound:
        """CPU and memory of subscribers that have nothing to do."""
        rss_before = server.rss_bytes()
        job = self._job(server, "idle", seconds)
        job.count = count
        load = self._group.load("queue.loads:hold", job, is_announced=True)
        before_s = server.cpu_s()
        time.sleep(seconds)
        done = BenchRound.timed(0, seconds, server.rss_bytes())
        done.server_cpu_share = round((server.cpu_s() - before_s) / seconds, 5)
        done.bytes_each = round((server.rss_bytes() - rss_before) / max(count, 1), 1)
        done.count = load.report().count
        return done

    def core(self, batch: int, seconds: float) -> BenchRound:
        """The queue machine alone, in a process of its own."""
        job = QueueJob(stream="bench/core", batch=batch, seconds=seconds, size=self._size)
        report = self._group.load("queue.core_alone:cycle", job).report()
        return BenchRound.timed(report.count, report.seconds)


def _to_round(server: Server, sent: LoadReport, taken: LoadReport) -> BenchRound:
    cpu_s = {"server": sent.server_cpu_s, "producer": sent.cpu_s}
    done = BenchRound.timed(sent.count, sent.seconds, server.rss_bytes(), **cpu_s)
    done.latency_ms, done.late_ms = taken.latencies or sent.latencies, sent.late
    return done
