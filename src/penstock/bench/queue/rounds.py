"""Rounds of the queue bench: each starts its loads, measures, and proves that no envelope was lost."""

from __future__ import annotations

import time

from penstock.bench.harness.load import Report
from penstock.bench.harness.processes import PenstockServer, ProcessGroup
from penstock.bench.harness.result import MIB, BenchError, BenchRound
from penstock.bench.queue.control_load import QueueJob
from penstock.bench.queue.redis import RedisServer

WINDOW = 8192
FILL_STREAM = 50_000  # envelopes that fill one stream: below the default limit of its depth


class QueueRounds:
    """Rounds in one process group. Every round has a stream of its own."""

    def __init__(self, group: ProcessGroup, size: int) -> None:
        self._group = group
        self._size = size
        self._rounds = 0

    def _job(self, server: PenstockServer | RedisServer, kind: str, seconds: float) -> QueueJob:
        self._rounds += 1
        stream, tag = f"bench/{kind}-{self._rounds}", f"b{self._rounds}"
        return QueueJob(
            port=server.port,
            seconds=seconds,
            board=self._group.board(),
            stream=stream,
            size=self._size,
            tag=tag,
        )

    def flow(
        self,
        server: PenstockServer | RedisServer,
        batch: int,
        seconds: float,
        rate: int = 0,
        client: str = "lean",
    ) -> BenchRound:
        """One producer, one consumer, everything acked: closed loop, or open loop at `rate` a second."""
        job = self._job(server, "flow", seconds)
        job.batch, job.rate = batch, rate
        prefix = "stock_" if client == "redis-py" else ""
        module = "redis" if isinstance(server, RedisServer) else "control_load"
        sender = f"queue.{module}:{'pace' if rate else prefix + 'produce'}"
        return self._measure(server, sender, job, f"queue.{module}:{prefix}consume", job)

    def posts(self, server: PenstockServer, batch: int, seconds: float, connections: int) -> BenchRound:
        """HTTP enqueues; a control subscription takes and acks them."""
        job = self._post(server, "posts", batch, seconds, connections)
        job.window = max(WINDOW, 4 * batch * connections)
        consumer = QueueJob(
            port=server.port, seconds=seconds, board=job.board, stream=job.stream, batch=64, tag=job.tag
        )
        return self._measure(server, "queue.http_load:post", job, "queue.control_load:consume", consumer)

    def fill(
        self, server: PenstockServer, batch: int, count: int, seconds: float, connections: int
    ) -> BenchRound:
        """HTTP enqueues without a consumer: at most `count`, over several streams because each is bounded."""
        job = self._post(server, "fill", batch, seconds, connections)
        job.window, job.count, job.stream_max = 1 << 40, count, FILL_STREAM // batch * batch
        before_s = server.cpu_s()
        report = self._group.load("queue.http_load:post", job).report()
        report.server_cpu_s = server.cpu_s() - before_s
        server.check_held(job.stream, report.count)
        return _to_round(server, report)

    def _post(
        self, server: PenstockServer, kind: str, batch: int, seconds: float, connections: int
    ) -> QueueJob:
        job = self._job(server, kind, seconds)
        job.port, job.batch, job.connections, job.token = server.http_port, batch, connections, server.token()
        return job

    def _measure(
        self,
        server: PenstockServer | RedisServer,
        sender: str,
        job: QueueJob,
        receiver: str,
        consumer: QueueJob,
    ) -> BenchRound:
        sent, taken = self._group.flow(server, (sender, job), (receiver, consumer))
        if sent.count != taken.count:
            raise BenchError(f"{sent.count} envelopes were sent and {taken.count} were acked")
        server.check_counts(job.stream, sent.count)
        sent.last_ns = taken.last_ns
        done = _to_round(server, sent)
        done.consumer_cpu_us = round(taken.cpu_s / max(sent.count, 1) * 1e6, 3)
        done.latency_ms = taken.latencies or sent.latencies
        return done

    def memory(self, server: PenstockServer, count: int) -> BenchRound:
        """Memory of a queued envelope: the server's RSS before and after `count` that stay queued."""
        rss_before, cpu_before = server.rss_bytes(), server.cpu_s()
        seconds = 0.0
        held = 0
        while held < count:
            job = self._job(server, "held", 60.0)
            job.count, job.window = min(count - held, FILL_STREAM), 1 << 40
            job.batch = min(64, job.count)
            report = self._group.load("queue.control_load:produce", job).report()
            server.check_held(job.stream, report.count)
            held += report.count
            seconds += report.seconds
        done = BenchRound.timed(held, seconds, server.cpu_s() - cpu_before, server.rss_bytes())
        done.bytes_each = round((server.rss_bytes() - rss_before) / held, 1)
        return done

    def idle(self, server: PenstockServer, count: int, seconds: float) -> BenchRound:
        """CPU and memory of subscribers that have nothing to do."""
        rss_before = server.rss_bytes()
        job = self._job(server, "idle", seconds)
        job.count = count
        load = self._group.load("queue.control_load:hold", job, is_announced=True)
        before_s = server.cpu_s()
        time.sleep(seconds)
        cpu_s, rss = server.cpu_s() - before_s, server.rss_bytes()
        held = load.report().count
        done = BenchRound(held, seconds, 0.0, server_rss_mib=round(rss / MIB, 1))
        done.bytes_each = round((rss - rss_before) / max(held, 1), 1)
        done.server_cpu_share = round(cpu_s / seconds, 5)
        return done

    def core(self, batch: int, seconds: float) -> BenchRound:
        """The queue machine alone, in a process of its own."""
        job = QueueJob(stream="bench/core", batch=batch, seconds=seconds, size=self._size)
        report = self._group.load("queue.core_alone:cycle", job).report()
        return BenchRound.timed(report.count, report.seconds)


def _to_round(server: PenstockServer | RedisServer, sent: Report) -> BenchRound:
    done = BenchRound.timed(sent.count, sent.seconds, sent.server_cpu_s, server.rss_bytes())
    done.producer_cpu_us = round(sent.cpu_s / max(sent.count, 1) * 1e6, 3)
    done.latency_ms, done.late_ms = sent.latencies, sent.late
    return done
