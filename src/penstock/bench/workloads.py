"""The workloads: each starts its loads on a stage, measures one round, and proves that nothing was lost."""

from __future__ import annotations

import resource
import time

import msgspec

from penstock.bench.board import Board
from penstock.bench.jobs import Job, Report
from penstock.bench.processes import BenchError, Penstock, Redis, Stage
from penstock.bench.result import Round

MIB = 1024 * 1024
COUNT_MAX = 20_000_000
"""Envelopes of one round at most, whatever its time."""
FILL_STREAM = 50_000
"""Envelopes a stream is filled with: below the default bound of its depth."""
SPARE_FILES = 200
"""Descriptors that a process needs beside its connections."""


class Workloads:
    """Rounds on one stage. Every round has a stream of its own."""

    def __init__(self, stage: Stage, size: int, window: int) -> None:
        self._stage = stage
        self._size = size
        self._window = window
        self._rounds = 0

    def _job(self, role: str, server: Penstock | Redis | None, **more: object) -> Job:
        self._rounds += 1
        fields: dict[str, object] = {"size": self._size, "window": self._window, "tag": f"b{self._rounds}"}
        if server is not None:
            fields["port"] = server.port
        return Job(role, **{**fields, **more})  # type: ignore[arg-type]

    def _board(self) -> str:
        path = self._stage.folder / f"board-{self._rounds}"
        Board.create(path)
        return str(path)

    def flow(
        self, server: Penstock | Redis, client: str, *, batch: int, seconds: float, rate: int = 0
    ) -> Round:
        """One producer, one consumer, everything acked: closed loop, or open loop at `rate` a second."""
        prefix = {"lean": "redis-" if isinstance(server, Redis) else "", "redis-py": "redis-py-"}[client]
        stream = f"bench/flow-{self._rounds}"
        board = self._board()
        consumer = self._job(
            f"{prefix}consume", server, stream=stream, board=board, batch=batch, seconds=seconds, rate=rate
        )
        producer = self._job(
            f"{prefix}{'pace' if rate else 'produce'}",
            server,
            stream=stream,
            board=board,
            batch=batch,
            seconds=seconds,
            rate=rate,
            count=COUNT_MAX // batch * batch,
        )
        return self._measure(server, producer, consumer)

    def posts(self, server: Penstock, *, batch: int, seconds: float, connections: int) -> Round:
        """HTTP enqueues; a control subscription takes and acks them, or the stream would fill."""
        stream = f"bench/posts-{self._rounds}"
        board = self._board()
        consumer = self._job("consume", server, stream=stream, board=board, batch=64, seconds=seconds)
        window = max(self._window, 4 * batch * connections)
        producer = self._post(server, stream, board, batch, seconds, connections)
        return self._measure(server, msgspec.structs.replace(producer, window=window), consumer)

    def fill(self, server: Penstock, *, batch: int, count: int, seconds: float, connections: int) -> Round:
        """HTTP enqueues that nobody takes: at most `count`, over several streams because each is bounded."""
        stream = f"bench/fill-{self._rounds}"
        job = self._post(server, stream, self._board(), batch, seconds, connections)
        job = msgspec.structs.replace(
            job, window=1 << 40, count=count, stream_max=FILL_STREAM // batch * batch
        )
        cpu_before = server.cpu_s()
        report = self._stage.load(job).report()
        cpu_s = server.cpu_s() - cpu_before
        server.check_held(stream, report.count)
        return self._round(server, report, report.last_ns, cpu_s)

    def _post(
        self, server: Penstock, stream: str, board: str, batch: int, seconds: float, connections: int
    ) -> Job:
        return self._job(
            "post",
            server,
            port=server.http_port,
            stream=stream,
            board=board,
            batch=batch,
            seconds=seconds,
            connections=connections,
            token=server.token(),
        )

    def _measure(self, server: Penstock | Redis, producer: Job, consumer: Job) -> Round:
        taking = self._stage.load(consumer, is_announced=True)
        cpu_before = server.cpu_s()
        produced = self._stage.load(producer).report()
        consumed = taking.report()
        cpu_s = server.cpu_s() - cpu_before
        if produced.count != consumed.count:
            raise BenchError(f"{produced.count} envelopes were sent and {consumed.count} were acked")
        server.check_counts(producer.stream, produced.count)
        done = self._round(server, produced, consumed.last_ns, cpu_s)
        done.consumer_cpu_us = round(consumed.cpu_s / max(produced.count, 1) * 1e6, 3)
        done.latency_ms = consumed.latencies or produced.latencies
        return done

    @staticmethod
    def _round(server: Penstock | Redis, produced: Report, last_ns: int, cpu_s: float) -> Round:
        seconds = max(last_ns - produced.first_ns, 1) / 1e9
        each = 1e6 / max(produced.count, 1)
        return Round(
            produced.count,
            round(seconds, 4),
            round(produced.count / seconds, 1),
            server_cpu_us=round(cpu_s * each, 3),
            server_rss_mib=round(server.rss_bytes() / MIB, 1),
            producer_cpu_us=round(produced.cpu_s * each, 3),
            latency_ms=produced.latencies,
            late_ms=produced.late,
        )

    def memory(self, server: Penstock, count: int) -> Round:
        """What a queued envelope weighs: the server's RSS before and after `count` that nobody takes."""
        rss_before, cpu_before = server.rss_bytes(), server.cpu_s()
        seconds = 0.0
        held = 0
        while held < count:
            stream = f"bench/held-{self._rounds}"
            part = min(count - held, FILL_STREAM)
            job = self._job(
                "produce", server, stream=stream, board=self._board(), batch=min(64, part), seconds=60.0,
                count=part, window=1 << 40,
            )  # fmt: skip
            report = self._stage.load(job).report()
            server.check_held(stream, report.count)
            held += report.count
            seconds += (report.last_ns - report.first_ns) / 1e9
        return Round(
            held,
            round(seconds, 3),
            round(held / seconds, 1),
            server_cpu_us=round((server.cpu_s() - cpu_before) / held * 1e6, 3),
            server_rss_mib=round(server.rss_bytes() / MIB, 1),
            bytes_each=round((server.rss_bytes() - rss_before) / held, 1),
        )

    def idle(self, server: Penstock, count: int, seconds: float) -> Round:
        """What subscribers cost that have nothing to do."""
        rss_before = server.rss_bytes()
        load = self._stage.load(
            self._job("idle", server, stream=f"bench/idle-{self._rounds}", count=count), is_announced=True
        )
        cpu_before = server.cpu_s()
        time.sleep(seconds)
        cpu_s = server.cpu_s() - cpu_before
        rss = server.rss_bytes()
        held = load.report().count
        return Round(
            held,
            seconds,
            0.0,
            server_rss_mib=round(rss / MIB, 1),
            bytes_each=round((rss - rss_before) / max(held, 1), 1),
            server_cpu_share=round(cpu_s / seconds, 5),
        )

    def core(self, batch: int, seconds: float) -> Round:
        """The machine alone, in a process of its own."""
        report = self._stage.load(
            self._job("core", None, stream="bench/core", batch=batch, seconds=seconds)
        ).report()
        took = (report.last_ns - report.first_ns) / 1e9
        return Round(report.count, round(took, 4), round(report.count / took, 1))


def allow_files(wanted: int) -> int:
    """Raise the bound of open files as far as allowed, for us and our children; returns the connections that fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        need = min(need, hard)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    return min(wanted, need - SPARE_FILES)
