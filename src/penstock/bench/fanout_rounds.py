"""Rounds of a fan-out on one stage: what was sent, what arrived, and what the server spent on it."""

from __future__ import annotations

import time

from penstock.bench.board import Board
from penstock.bench.fanout_loads import spent_s
from penstock.bench.fanout_servers import SPACE, FanStage, Relay
from penstock.bench.jobs import Job, Report
from penstock.bench.processes import BenchError, Penstock
from penstock.bench.result import Round

MIB = 1024 * 1024
BLOCK = 256
"""Frames of one write."""
REST_S = 0.2
REST_SHARE = 0.05
REST_MAX_S = 20.0
"""A server that still works on the leaving of the last round is waited for, but not for ever."""


class FanRound(Round, omit_defaults=True):
    """A round of frames. `count` and `per_second` are deliveries, and so is what `server_cpu_us` is divided by."""

    frames: int = 0
    """Frames that were sent."""
    dropped: int = 0
    """Deliveries that should have been and were not."""


class Fans:
    """Measures rounds."""

    def __init__(self, stage: FanStage, size: int, window: int) -> None:
        self._stage = stage
        self._size = size
        self._window = window
        self._rounds = 0

    def flow(
        self, server: Penstock | Relay, participants: int, seconds: float, *, is_targeted: bool
    ) -> FanRound:
        """One publisher, as fast as the slowest reader reads."""
        self._rounds += 1
        board = self._stage.folder / f"board-{self._rounds}"
        Board.create(board)

        def job(role: str) -> Job:
            return Job(
                role,
                port=server.http_port,
                stream=SPACE,
                board=str(board),
                size=self._size,
                batch=min(BLOCK, self._window),
                seconds=seconds,
                count=participants,
                window=self._window,
                server_pid=server.pid,
                is_targeted=is_targeted,
            )

        reading = self._stage.load(job("fan-receive"), is_announced=True)
        try:
            published = self._stage.load(job("fan-publish")).report()
        except BenchError:
            if reading.process.poll() is not None:
                reading.report()  # Readers who gave up know why; the publisher only saw them leave.
            raise
        read = reading.report()
        heard = read.count + published.heard
        expected = published.count * (1 if is_targeted else participants)
        done = self._round(server, published, heard, expected - heard)
        done.producer_cpu_us = round(published.cpu_s / max(heard, 1) * 1e6, 4)
        done.consumer_cpu_us = round(read.cpu_s / max(heard, 1) * 1e6, 4)
        return done

    def paced(
        self,
        server: Penstock | Relay,
        count: int,
        seconds: float,
        rate: int,
        *,
        is_targeted: bool,
        is_aggregated: bool,
    ) -> FanRound:
        """Everybody publishes by the clock, in one process that also reads for everybody."""
        load = Job(
            "fan-pace",
            port=server.http_port,
            stream=SPACE,
            size=self._size,
            seconds=seconds,
            count=count,
            rate=rate,
            server_pid=server.pid,
            is_targeted=is_targeted,
            is_aggregated=is_aggregated,
        )
        sent = self._stage.load(load).report()
        done = self._round(server, sent, sent.heard, sent.missing)
        done.frame_cpu_us = None  # At this pace a server mostly wakes up, and its share of a core says more.
        done.server_cpu_share = round(sent.server_cpu_s / done.seconds, 5)
        done.others_per_second = round((sent.heard - sent.echoes) / done.seconds, 1)
        return done

    @staticmethod
    def _round(server: Penstock | Relay, sent: Report, heard: int, dropped: int) -> FanRound:
        seconds = max(sent.last_ns - sent.first_ns, 1) / 1e9
        each = 1e6 / max(heard, 1)
        return FanRound(
            heard,
            round(seconds, 4),
            round(heard / seconds, 1),
            server_cpu_us=round(sent.server_cpu_s * each, 4),
            server_rss_mib=round(server.rss_bytes() / MIB, 1),
            frames=sent.count,
            frame_cpu_us=round(sent.server_cpu_s / max(sent.count, 1) * 1e6, 3),
            dropped=dropped,
        )


def rest(server: Penstock | Relay) -> None:
    """Wait until the server has nothing left to do."""
    deadline = time.monotonic() + REST_MAX_S
    before_s = spent_s(server.pid)
    while time.monotonic() < deadline:
        time.sleep(REST_S)
        now_s = spent_s(server.pid)
        if now_s - before_s < REST_S * REST_SHARE:
            return
        before_s = now_s
