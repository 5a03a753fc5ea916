"""Rounds of a relay on one stage: what was sent, that all of it arrived, and what the relay spent on it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec

from penstock.bench.board import Board
from penstock.bench.jobs import Job, Report
from penstock.bench.processes import BenchError, Load, Penstock, rss_bytes
from penstock.bench.relay_servers import Proxy, RelayServer, RelayStage
from penstock.bench.result import Round
from penstock.bench.workloads import Workloads

MIB = 1024 * 1024
BESIDE_S = 120.0
"""How long a load beside another one may last; it ends with the other."""


class Relays:
    """Measures rounds."""

    def __init__(self, stage: RelayStage, size: int, window: int) -> None:
        self._stage = stage
        self._size = size
        self._window = window
        self._rounds = 0

    def _job(self, role: str, server: Side | None, **more: object) -> Job:
        fields: dict[str, object] = {"size": self._size, "window": self._window, "tag": f"r{self._rounds}"}
        if server is not None:
            fields |= {"pub": server.pub, "pull": server.pull, "server_pid": server.pid}
        return Job(role, **{**fields, **more})  # type: ignore[arg-type]

    def flow(self, server: Side, topics: int, seconds: float) -> Round:
        """One publisher and one subscriber of so many topics, as fast as it goes."""
        taking, job = self._subscribed(server, topics, seconds)
        return self._round(server, self._stage.load(job).report(), taking)

    def _subscribed(self, server: Side, topics: int, seconds: float, rate: int = 0) -> tuple[Load, Job]:
        """A subscriber at work, and its publisher's job."""
        self._rounds += 1
        board = self._stage.folder / f"relay-board-{self._rounds}"
        Board.create(board)
        job = self._job(
            "relay-publish",
            server,
            count=topics,
            seconds=seconds,
            board=str(board),
            rate=rate,
            is_plain=isinstance(server, Proxy),
        )
        return self._stage.load(msgspec.structs.replace(job, role="relay-receive"), is_announced=True), job

    def _round(self, server: Side, sent: Report, taking: Load) -> Round:
        taken = taking.report()
        if taken.count != sent.count:
            raise BenchError(f"{sent.count} messages were sent and {taken.count} arrived")
        done = self._plain(server, sent)
        done.producer_cpu_us = round(sent.cpu_s / max(sent.count, 1) * 1e6, 3)
        done.consumer_cpu_us = round(taken.cpu_s / max(sent.count, 1) * 1e6, 3)
        return done

    @staticmethod
    def _plain(server: Side | None, sent: Report) -> Round:
        seconds = max(sent.last_ns - sent.first_ns, 1) / 1e9
        done = Round(sent.count, round(seconds, 4), round(sent.count / seconds, 1))
        if server is not None:
            done.server_cpu_us = round(sent.server_cpu_s / max(sent.count, 1) * 1e6, 3)
            done.server_rss_mib = round(server.rss_bytes() / MIB, 1)
        return done

    def register(self, server: RelayServer, count: int, before: int) -> Round:
        """So many registrations, one after the other, beyond those of earlier rounds."""
        self._rounds += 1
        sent = self._stage.load(self._job("relay-register", server, count=count, seconds=60.0)).report()
        server.check_registered(before + count)
        return self._plain(server, sent)

    def memory(self, server: RelayServer, count: int, each: int) -> Round:
        """What open topics weigh, each with a subscriber and a few messages that are kept."""
        self._rounds += 1
        rss_before = server.rss_bytes()
        load = self._stage.load(
            self._job("relay-hold", server, count=count, batch=each, seconds=60.0), is_announced=True
        )
        rss = server.rss_bytes()
        server.check_registered(count)
        done = self._plain(server, load.report())
        done.server_cpu_us = None  # the load spends most of its time on signatures
        done.server_rss_mib = round(rss / MIB, 1)
        done.bytes_each = round((rss - rss_before) / count, 1)
        return done

    def verify(self, seconds: float) -> Round:
        """A client's reader alone, in a process of its own."""
        self._rounds += 1
        return self._plain(None, self._stage.load(self._job("relay-verify", None, seconds=seconds)).report())

    def beside(
        self, server: Penstock, ends: tuple[str, str], loads: Workloads, seconds: float, rate: int, speed: int
    ) -> tuple[Round, Round]:
        """The queue's latencies while the server's own relay works at a speed, and what the relay came to."""
        self._rounds += 1
        relay = Neighbour(*ends, server)
        taking, job = self._subscribed(relay, 1, BESIDE_S, speed)
        publishing = self._stage.load(job)
        queued = loads.flow(server, "lean", batch=1, seconds=seconds, rate=rate)
        return queued, self._round(relay, publishing.report(), taking)


class Neighbour:
    """The relay of a server: a process that the server started."""

    def __init__(self, pub: str, pull: str, server: Penstock) -> None:
        self.pub, self.pull = pub, pull
        self.pid = _child_of(server.pid)

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid) or 0


def _child_of(pid: int) -> int:
    """The one process that another has started; 0 where the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    except (OSError, IndexError):
        return 0


Side: TypeAlias = RelayServer | Proxy | Neighbour
"""What stands between publisher and subscriber."""
