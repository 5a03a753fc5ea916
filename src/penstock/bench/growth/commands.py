"""`penstock bench growth`: what a message costs and how long the loop is held up, as a server holds more and more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Annotated, Any

from cyclopts import Parameter

from penstock.bench.fanout.commands import FanoutRounds, space_config
from penstock.bench.fanout.loads import FanoutJob
from penstock.bench.harness.load import LoadReport
from penstock.bench.harness.processes import SPARE_FILES, PenstockServer, ProcessGroup, allow_files, to_round
from penstock.bench.harness.result import (
    BenchError,
    BenchResult,
    BenchRound,
    Lines,
    Plot,
    Side,
    check_plot,
    refuse,
    save_plot,
)
from penstock.bench.queue.commands import UNBOUNDED, WINDOW, Durable, Kinds, Size
from penstock.bench.queue.loads import QueueJob
from penstock.cli.options import PLAIN, Output, flag
from penstock.cli.output import print_note

SIZES = {
    "streams": (1, 1_000, 10_000, 100_000),
    "queued": (1, 1_000, 100_000, 1_000_000),
    "connections": (1, 100, 1_000, 10_000),
    "triggers": (1, 10, 100, 1_000),
    "participants": (2, 10, 100, 1_000),
}
AXES = ",".join(SIZES)
PAUSE_MAX_MS = 20.0  # CPU of one turn
SUBSCRIPTIONS = 1_000  # of one connection, below the server's limit
PACE_RATE = 500
FILL_S = 120.0
FRAME_BYTES, FRAME_WINDOW = 100, 4096
MINUTE_S, AFTER_MINUTE_S = 60.0, 5.0  # how long after the full minute its gauges may be written
SURVEYS = ("/metrics", "/v1/metrics", "/v1/envelopes/none")  # the last searches all streams for an id
REST_S = 0.2  # between two surveys


def growth(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of each load: closed, paced, and paced during surveys.")] = 4.0,
    only: Kinds = AXES,
    largest: Annotated[int, Parameter(name="--max", help="Leave out sizes above this.")] = 1_000_000,
    size: Size = 300,
    durable: Durable = False,
    minute: Annotated[bool, flag("At the largest size, also wait for a full minute, when gauges are written.")] = False,
    plot: Plot = None,
    output: Output = PLAIN,
) -> int:
    """Measure CPU per message, latency and the longest turn of the loop with more and more of everything.

    Each size has a fresh server. A closed loop gives the CPU per message, a paced client the latency, and the server's own metric
    the longest turn since its start, in wall time and in CPU time. Then the paced client runs again while metrics and
    ids are requested, which visits every stream. A plot needs `pip install 'penstock[bench]'`. For example:

      penstock bench growth --only streams --max 10000
      penstock bench growth --durable --minute --plot growth.svg
    """
    result = BenchResult.begin("growth", locals())
    axes = result.parse_names("only", "axis", AXES)
    sizes = {axis: [count for count in SIZES[axis] if count <= largest] for axis in axes}
    if not all(sizes.values()):
        refuse(f"`--max {largest}` leaves nothing to measure", "the smallest space has 2 participants")
    check_plot(plot)
    files = allow_files(max(largest_files(sizes), 1))

    def run(group: ProcessGroup) -> None:
        for axis, counts in sizes.items():
            for count in counts:
                if largest_files({axis: [count]}) > files:
                    result.notes.append(explain_files(axis, count, files))
                    continue
                print_note(f"{axis}, {count:,}: starting a server")
                wait_s = MINUTE_S if minute and count == counts[-1] else 0.0
                _measure(group, axis, count, seconds, size, wait_s)

    code = ProcessGroup(result, durable=durable).run(run, output)
    if plot is not None and not result.failures:
        save_plot(plot, "A message, as the server holds more", "number", growth_panels(result))
    return code


def largest_files(sizes: dict[str, list[int]]) -> int:
    """The most connections of a server, which the process of its clients has too."""
    return max([max(counts) for axis, counts in sizes.items() if axis in ("connections", "participants")], default=0)


def explain_files(axis: str, count: int, files: int) -> str:
    need, have = count + SPARE_FILES, files + SPARE_FILES
    words = f"the server and its clients need {need:,} open files each, and this user may have {have:,}"
    return f"{axis}, {count:,} is left out: {words}; raise the hard limit of `ulimit -n`"


def growth_panels(result: BenchResult) -> dict[str, Lines]:
    """CPU and p99 by size, a line for each axis, without the cells of surveys."""
    panels: dict[str, Lines] = {"server CPU per message, us": {}, "p99 of a paced client, ms": {}}
    for cell in result.cells:
        axis, count, *more = cell.workload.replace(",", "").split()
        for lines, field in zip(panels.values(), ("server_cpu_us", "p99"), strict=True):
            if not more:
                lines.setdefault(axis, []).append((float(count), cell.middle(field) or 0.0))
    return panels


def growth_config(axis: str, count: int) -> dict[str, Any]:
    """The config of a server that is to hold so many."""
    if axis == "participants":
        return space_config(count)
    if axis == "triggers":
        notify = {"action": "notify", "to": "notices", "payload": {"ref": "${env.id}"}}
        others = [{"type": f"other.{number}"} if number % 2 else {"to": f"other/{number}/*"} for number in range(count)]
        return {"triggers": [{"id": f"r{number}", "when": when, "do": [notify]} for number, when in enumerate(others)]}
    caps = {"bench/held": {"maxDepth": 2_000_000, "maxBytes": 1 << 30}}
    return {"streams": {"perStreamCaps": caps}, "limits": {"streams_max": 200_000}}


class GrownQueue:
    """A server with streams, envelopes, connections or triggers, and the traffic of its queues."""

    message = "one envelope a line; up to 256 lines a write; one ack line for all of one read"

    def __init__(self, group: ProcessGroup, axis: str, count: int, size: int) -> None:
        self._group = group
        self.server = server = group.penstock(growth_config(axis, count))
        self._inboxes = count if axis in ("streams", "connections") else 1
        self._connections = count if axis == "connections" else -(-self._inboxes // SUBSCRIPTIONS)
        self._size, self._sent = size, 0
        self.bytes_each: float | None = None
        if axis == "queued":
            before, board = server.rss_bytes(), group.board()
            job = QueueJob(port=server.port, seconds=FILL_S, board=board, size=size, stream="bench/held", count=count)
            job.batch, job.window = min(64, count), UNBOUNDED
            held = group.load("queue.loads:produce", job).report().count
            server.check_counts("bench/held", held, is_held=True)
            self.bytes_each = round((server.rss_bytes() - before) / held, 1)

    def closed(self, seconds: float) -> BenchRound:
        return self._flow(seconds, 0)

    def paced(self, seconds: float) -> BenchRound:
        return self._flow(seconds, PACE_RATE)

    def _flow(self, seconds: float, rate: int) -> BenchRound:
        board = self._group.board()
        job = QueueJob(port=self.server.port, seconds=seconds, board=board, size=self._size, window=WINDOW, rate=rate)
        job.inboxes, job.connections = self._inboxes, self._connections
        job.tag = f"b{board.rpartition('-')[2]}"
        role = "queue.loads:pace" if rate else "queue.loads:produce"
        sent, taken = self._group.flow(self.server.pid, role, job, "growth.loads:consume")
        if sent.count != taken.count:
            raise BenchError(f"{sent.count} envelopes were sent and {taken.count} were acked")
        self._sent += sent.count
        self.server.check_counts("agents/bench-", self._sent)
        sent.last_ns = taken.last_ns
        return to_round(self.server.pid, sent, taken)


class GrownSpace:
    """A server with a space, and frames from one participant to another."""

    message = "256 frames a write to one target"
    bytes_each = None

    def __init__(self, group: ProcessGroup, axis: str, count: int, size: int) -> None:
        self._group, self._count = group, count
        self.server = group.penstock(growth_config(axis, count))
        self._rounds = FanoutRounds(group, FRAME_BYTES, FRAME_WINDOW)

    def closed(self, seconds: float) -> BenchRound:
        return self._rounds.flow(Side("penstock", self.server), self._count, seconds, is_targeted=True)

    def paced(self, seconds: float) -> BenchRound:
        job = FanoutJob(port=self.server.http_port, seconds=seconds, size=FRAME_BYTES, count=self._count)
        job.rate = PACE_RATE
        report: LoadReport = self._group.measure(self.server.pid, "growth.loads:pace_frames", job)
        return to_round(self.server.pid, report)


def _measure(group: ProcessGroup, axis: str, count: int, seconds: float, size: int, minute_s: float) -> None:
    """The two cells of one size: its load, and the paced client during surveys."""
    grown = (GrownSpace if axis == "participants" else GrownQueue)(group, axis, count, size)
    server, result, words = grown.server, group.result, f"{axis}, {count:,}"
    print_note(f"{words}: closed loop")
    done = grown.closed(seconds)
    print_note(f"{words}: paced client")
    paced = grown.paced(seconds)
    done.latency_ms, done.late_ms, done.bytes_each = paced.latency_ms, paced.late_ms, grown.bytes_each
    _read_turns(server, done)
    result.add(words, f"{grown.message}; p50 to max are of a client at {PACE_RATE} a second", [done])
    wait_s = minute_s and MINUTE_S - time.time() % MINUTE_S + AFTER_MINUTE_S
    print_note(f"{words}: paced client during surveys" + (f", {wait_s:.0f} s" if minute_s else ""))
    with _surveyed(server) as failures:
        surveyed = grown.paced(max(seconds, wait_s))
    result.failures += failures
    _read_turns(server, surveyed)
    result.add(f"{words}, surveyed", f"the same client while {', '.join(SURVEYS)} are read", [surveyed])
    if (surveyed.longest_turn_cpu_ms or 0.0) > PAUSE_MAX_MS:
        over = f"{surveyed.longest_turn_cpu_ms:.1f} ms of CPU, more than {PAUSE_MAX_MS:.0f}"
        result.notes.append(f"{words}: the longest turn took {over}")
    server.stop()


def _read_turns(server: PenstockServer, done: BenchRound) -> None:
    """The longest turn since the start, by the server's own metrics."""
    done.longest_turn_ms = round(server.metric("penstock_loop_turn_longest_seconds") * 1e3, 1)
    done.longest_turn_cpu_ms = round(server.metric("penstock_loop_turn_longest_cpu_seconds") * 1e3, 1)


@contextmanager
def _surveyed(server: PenstockServer) -> Iterator[list[str]]:
    """Request everything that visits all streams, again and again; yields what failed."""
    ended, failures = Event(), list[str]()

    def ask() -> None:
        while not ended.wait(REST_S):
            for path in SURVEYS:
                try:
                    server.get(path, may_miss=True)
                except (BenchError, OSError) as error:
                    failures.append(str(error))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(ask)
        try:
            yield failures
        finally:
            ended.set()
