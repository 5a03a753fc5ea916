"""`penstock bench relay`: token streams through the relay, and through libzmq's own proxy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from penstock.bench.harness import processes
from penstock.bench.harness.load import BENCHES, LoadReport
from penstock.bench.harness.result import BenchError, BenchResult, BenchRound, Side, refuse
from penstock.bench.queue.commands import OPEN_RATE, Kinds, QueueRounds, Rounds, Seconds
from penstock.bench.relay.loads import BLOCK_TOKENS, SIGNERS, SIZE_MIN, RelayJob
from penstock.cli.options import PLAIN, Output

CELLS = "one,many,register,memory,verify,beside"
TRANSPORTS = "ipc,tcp"
HELD_EACH = 10  # messages of a topic in the memory cell
SPEED = 200_000  # half the relay's speed when it was not measured
SINGLE = "nothing: one chunk a message"
TOGETHER_S = 120.0  # how long the relay may work while the queue is measured; it ends with the queue's load
REGISTERED, REFUSED = "penstock_relay_registered_total", "penstock_relay_refused_total"


def relay(
    *,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    only: Kinds = CELLS,
    transports: Annotated[str, Parameter(help="Transports, with commas.")] = TRANSPORTS,
    size: Annotated[int, Parameter(help="Bytes of a chunk.")] = 304,
    topics: Annotated[int, Parameter(help="Topics of `many`.")] = 1_000,
    registrations: Annotated[int, Parameter(help="Registrations per round.")] = 2_000,
    held: Annotated[int, Parameter(help="Open topics of the memory cell.")] = 10_000,
    window: Annotated[int, Parameter(help="Messages in flight, at most.")] = 16_384,
    peer: Annotated[bool, Parameter(help="Also measure libzmq's proxy.")] = True,
    output: Output = PLAIN,
) -> int:
    """Measure the relay of token streams: throughput, registrations, memory, and its effect on the queue.

    For example:

      penstock bench relay --only one,many --transports ipc --seconds 30 --json > result.json
    """
    result = BenchResult.begin("relay", locals())
    kinds, ways = result.parse_names("only", "kind", CELLS), result.parse_names("transports", "transport", TRANSPORTS)
    if size < SIZE_MIN:
        refuse(f"a chunk has at least {SIZE_MIN} bytes")
    each_s = seconds / rounds

    def run(group: processes.ProcessGroup) -> None:
        measured = RelayRounds(group, size, window)
        flows = [count for kind, count in (("one", 1), ("many", topics)) if kind in kinds]
        for way in ways if flows else []:
            sides = [Side("penstock", measured.start(way)), *_start_peer(group, way, wanted=peer)]
            for count in flows:
                words = f"one topic, {way}" if count == 1 else f"{count:,} topics, {way}"
                result.alternate(words, SINGLE, sides, rounds, partial(measured.flow, topics=count, seconds=each_s))
            for side in sides:
                side.server.stop()
        if "register" in kinds:
            done = measured.register(registrations, rounds)
            result.add(f"registrations, {registrations:,} in a row", "each signed, one a message", done)
        if "memory" in kinds:
            batched = f"each with a subscriber and {HELD_EACH} messages that are kept"
            result.add(f"{held:,} open topics", batched, [measured.memory(held)])
        if "verify" in kinds:
            done = group.alone("relay.loads:verify", RelayJob(seconds=each_s), rounds)
            result.add("tokens verified", f"{BLOCK_TOKENS} tokens a block", done)
        if "beside" in kinds:
            _beside(group, measured, rounds, each_s)

    return processes.ProcessGroup(result).run(run, output)


def _start_peer(group: processes.ProcessGroup, transport: str, *, wanted: bool) -> list[Side]:
    program = BENCHES / "zmq_proxy.py"
    if wanted and not program.is_file():
        group.result.notes.append("no peer: the proxy is in the source repository only")
    elif wanted:
        return [group.peer("zmq.proxy", sys.executable, str(program), transport)]
    return []


def _beside(group: processes.ProcessGroup, measured: RelayRounds, rounds: int, each_s: float) -> None:
    """The queue's latencies at a steady rate: alone, and while the relay works at half its speed."""
    result, queue = group.result, QueueRounds(group, 300)
    server = measured.start("ipc")
    side = Side("penstock", server)
    relayed = next((cell.speed for cell in result.cells if cell.workload == "one topic, ipc"), 0.0)
    speed = int(relayed / 2) or SPEED
    alone, beside, relays = [], [], []
    for _ in range(rounds):
        alone.append(queue.flow(side, 1, each_s, OPEN_RATE))
        finish = measured.keep_busy(server, speed)
        beside.append(queue.flow(side, 1, each_s, OPEN_RATE))
        relays.append(finish())
    server.stop()
    batched = "nothing: one envelope a write"
    result.add(f"queue alone, {OPEN_RATE:,} a second", batched, alone)
    result.add(f"queue beside the relay, {OPEN_RATE:,} a second", batched, beside)
    result.add(f"relay beside the queue, {speed:,} a second wanted", SINGLE, relays)


class RelayRounds:
    """Rounds in one process group. Each has topics of its own and proves that every message arrived."""

    def __init__(self, group: processes.ProcessGroup, size: int, window: int) -> None:
        self._group, self._size, self._window = group, size, window

    def start(self, transport: str = "ipc") -> processes.PenstockServer:
        return self._group.penstock({"relay": {"signers": SIGNERS}}, transport)

    def _job(self, server: processes.ServerProcess, count: int = 1, seconds: float = 60.0) -> RelayJob:
        board = self._group.board()
        job = RelayJob(pub=server.pub, pull=server.pull, board=board, count=count, seconds=seconds)
        job.size, job.window, job.tag = self._size, self._window, f"r{board.rpartition('-')[2]}"
        return job

    def flow(self, side: Side, topics: int, seconds: float) -> BenchRound:
        """One publisher and one subscriber of so many topics, as fast as it goes."""
        server, job = side.server, self._job(side.server, topics, seconds)
        job.is_plain = side.target != "penstock"
        return _check(server, *self._group.flow(server.relay_pid, "relay.loads:publish", job, "relay.loads:receive"))

    def register(self, count: int, rounds: int) -> list[BenchRound]:
        """So many registrations in a row, on one server."""
        server, done = self.start(), []
        for number in range(rounds):
            job = self._job(server, count)
            sent = self._group.measure(server.relay_pid, "relay.loads:register", job)
            done.append(processes.to_round(server.relay_pid, sent))
            done[-1].producer_cpu_us = None  # most of it is signatures
            _check_registered(server, (number + 1) * count)
        server.stop()
        return done

    def memory(self, count: int) -> BenchRound:
        """Memory of open topics, each with a subscriber and a few messages that are kept."""
        server = self.start()
        before, job = processes.rss_bytes(server.relay_pid), self._job(server, count)
        job.each = HELD_EACH
        load = self._group.load("relay.loads:hold", job, is_announced=True)
        rss = processes.rss_bytes(server.relay_pid)
        _check_registered(server, count)
        report = load.report()
        server.stop()
        # Without CPU: most of it is signatures.
        return BenchRound.timed(report.count, report.seconds, rss, bytes_each=round((rss - before) / count, 1))

    def keep_busy(self, server: processes.PenstockServer, speed: int) -> Callable[[], BenchRound]:
        """Let the server's relay work at `speed`; the call of the result ends that and gives what it reached."""
        job = self._job(server, 1, TOGETHER_S)
        job.rate = speed
        taking = self._group.load("relay.loads:receive", job, is_announced=True)
        publishing = self._group.load("relay.loads:publish", job, is_announced=True)
        before_s = processes.cpu_s(server.relay_pid) or 0.0

        def finish() -> BenchRound:
            sent = publishing.report()
            sent.server_cpu_s = (processes.cpu_s(server.relay_pid) or 0.0) - before_s
            return _check(server, sent, taking.report())

        return finish


def _check(server: processes.ServerProcess, sent: LoadReport, taken: LoadReport) -> BenchRound:
    if taken.count != sent.count:
        raise BenchError(f"{sent.count} messages were sent and {taken.count} arrived")
    return processes.to_round(server.relay_pid, sent, taken)


def _check_registered(server: processes.PenstockServer, count: int) -> None:
    """So many topics were registered since the start, and none was refused."""
    processes.wait_until(
        lambda: server.metric(REGISTERED) == count and not server.metric(REFUSED),
        processes.STOP_S,
        lambda: f"{server.metric(REGISTERED):.0f} of {count} registered, {server.metric(REFUSED):.0f} refused",
    )
