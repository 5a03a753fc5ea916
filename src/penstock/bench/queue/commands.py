"""`penstock bench queue` and `penstock bench http`, and the rounds of the queue that other benches use."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from penstock.bench.harness.load import import_role
from penstock.bench.harness.processes import PenstockServer, ProcessGroup, allow_files, to_round
from penstock.bench.harness.result import BenchError, BenchResult, BenchRound, Side
from penstock.bench.queue.loads import QueueJob
from penstock.cli.options import PLAIN, Output, flag

OPEN_RATE = 2_000
WINDOW = 8192
UNBOUNDED = 1 << 40  # a window for envelopes that stay queued
FILL_STREAM = 50_000  # envelopes that fill one stream: below the default limit of its depth
CELLS = "closed,open,memory,idle,core"

Seconds = Annotated[float, Parameter(help="Seconds of load per cell, divided among its rounds.")]
Rounds = Annotated[int, Parameter(help="Rounds per cell; peers alternate, and medians are shown.")]
Durable = Annotated[bool, flag("Sync a journal on disk before confirming; Redis: its log.")]
Size = Annotated[int, Parameter(help="Bytes of an envelope.")]
Kinds = Annotated[str, Parameter(help="Kinds of cells to run, with commas.")]


def queue(
    *,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    batch: Annotated[str, Parameter(help="Envelopes per frame, several with commas.")] = "64,16,1",
    size: Size = 300,
    durable: Durable = False,
    peer: Annotated[bool, Parameter(help="Also measure Redis Streams, if installed.")] = True,
    only: Kinds = CELLS,
    queued: Annotated[int, Parameter(help="Envelopes held for the memory cell.")] = 200_000,
    subscribers: Annotated[int, Parameter(help="Connections of the idle cell.")] = 10_000,
    triggers: Annotated[bool, flag("Instead, measure triggers: none, many, firing.")] = False,
    output: Output = PLAIN,
) -> int:
    """Measure the queue over Control v1: throughput, latency, CPU per envelope, memory, idle cost.

    For example:

      penstock bench queue
      penstock bench queue --only closed --batch 64 --no-peer
      penstock bench queue --triggers --batch 64,1
    """
    result = BenchResult.begin("queue", locals())
    batches, kinds = result.parse_numbers("batch"), result.parse_names("only", "kind", CELLS)
    each_s = seconds / rounds

    def measure_triggers(group: ProcessGroup) -> None:
        sides = [Side(words, group.penstock(config)) for words, config in trigger_configs().items()]
        measured = QueueRounds(group, size)
        for count in batches:
            measure = partial(measured.flow, batch=count, seconds=each_s)
            cells = result.alternate(f"closed loop, {count} a frame", describe(count), sides, rounds, measure)
            for cell in cells:
                cell.workload, cell.target, cell.batch = f"{cell.workload}, {cell.target}", "penstock", count
            for cell in cells[1:]:  # the ratio is to the server without triggers
                cell.ratio = round(cell.speed / cells[0].speed, 3)

    def measure_all(group: ProcessGroup) -> None:
        measured = QueueRounds(group, size)
        sides = _start_sides(group, wants_peer=peer)
        flows = [(count, 0) for count in batches] if "closed" in kinds else []
        for count, rate in flows + ([(1, OPEN_RATE)] if "open" in kinds else []):
            # redis-py sends single envelopes only with a round trip each, which would measure the network.
            chosen = [side for side in sides if side.client == "lean" or count > 1]
            name = f"open loop, {rate:,} a second" if rate else f"closed loop, {count} a frame"
            measure = partial(measured.flow, batch=count, seconds=each_s, rate=rate)
            for cell in result.alternate(name, "", chosen, rounds, measure):
                cell.batch, cell.batched = count, describe(count, cell.target, cell.client, rate)
                if rate or cell.client != "lean":  # another client would give the clients' ratio
                    cell.ratio = None
        if "memory" in kinds:
            held = measured.memory(group.penstock(), queued)
            result.add(f"memory, {held.count:,} envelopes queued", "64 a frame", [held])
        if "idle" in kinds:
            idle = measured.idle(group.penstock(), allow_files(subscribers), seconds)
            if idle.count < subscribers:
                result.notes.append(f"{subscribers} subscribers need more open files than this user may have")
            result.add(f"idle, {idle.count:,} subscribers", "nothing is sent", [idle])
        for count in (64, 1) if "core" in kinds else ():
            job, words = QueueJob(batch=count, seconds=each_s, size=size), f"{count} records a call"
            cycles = group.alone("queue.core_alone:cycle", job, rounds)
            result.add(f"core alone, {words}", words, cycles, client="in process").batch = count

    return ProcessGroup(result, durable=durable).run(measure_triggers if triggers else measure_all, output)


def http(
    *,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    batch: Annotated[str, Parameter(help="Envelopes per request, several with commas.")] = "1,100",
    size: Size = 300,
    durable: Durable = False,
    connections: Annotated[int, Parameter(help="Keep-alive connections.")] = 32,
    queued: Annotated[int, Parameter(help="Envelopes at most in a round without a consumer.")] = 100_000,
    output: Output = PLAIN,
) -> int:
    """Measure POST /v1/enqueue over keep-alive connections, with and without a consumer.

    For example:

      penstock bench http --batch 100 --connections 8 --json
    """
    result = BenchResult.begin("http", locals())
    batches = result.parse_numbers("batch")

    def run(group: ProcessGroup) -> None:
        measured, server = QueueRounds(group, size), group.penstock()
        for held, ending in ((0, "all taken and acked"), (queued, "without a consumer")):
            for count in batches:
                each_s = seconds if held else seconds / rounds
                servers = (group.penstock() if held else server for _ in range(rounds))
                done = [measured.post(one, count, each_s, connections, held) for one in servers]
                words = "one envelope a request" if count == 1 else f"{count} envelopes a request"
                batched = f"{words}, one request in flight per connection" + ("" if held else "; 64 a delivery")
                result.add(f"POST, {words}, {ending}", batched, done).batch = count

    return ProcessGroup(result, durable=durable).run(run, output)


class QueueRounds:
    """Rounds in one process group. Each has a stream of its own and proves that no envelope was lost."""

    def __init__(self, group: ProcessGroup, size: int) -> None:
        self._group, self._size = group, size

    def _job(self, server: PenstockServer, kind: str, seconds: float, batch: int = 1) -> QueueJob:
        board = self._group.board()
        number = board.rpartition("-")[2]
        job = QueueJob(port=server.port, seconds=seconds, board=board, size=self._size, batch=batch, window=WINDOW)
        job.stream, job.tag = f"bench/{kind}-{number}", f"b{number}"
        return job

    def flow(self, side: Side, batch: int, seconds: float, rate: int = 0) -> BenchRound:
        """One producer, one consumer, everything acked: closed loop, or open loop at `rate` a second."""
        job = self._job(side.server, "flow", seconds, batch)
        job.rate = rate
        role = "redis_streams:" if side.target == "redis" else "queue.loads:"
        role += "stock_" if side.client == "redis-py" else ""
        return self._measure(side.server, role + ("pace" if rate else "produce"), job, role + "consume", job)

    def post(self, server: PenstockServer, batch: int, seconds: float, connections: int, held: int = 0) -> BenchRound:
        """HTTP enqueues: a control subscription takes and acks them; or `held` stay, in streams that are bounded."""
        job = self._job(server, "post", seconds, batch)
        job.port, job.connections, job.token = server.http_port, connections, server.token()
        if not held:
            job.window = max(WINDOW, 4 * batch * connections)
            consumer = QueueJob(port=server.port, seconds=seconds, board=job.board, stream=job.stream, batch=64)
            return self._measure(server, "queue.loads:post", job, "queue.loads:consume", consumer)
        job.window, job.count, job.stream_max = UNBOUNDED, held, FILL_STREAM // batch * batch
        report = self._group.measure(server.pid, "queue.loads:post", job)
        server.check_counts(job.stream, report.count, is_held=True)
        return to_round(server.pid, report)

    def _measure(self, server: Any, sender: str, job: QueueJob, receiver: str, receiver_job: QueueJob) -> BenchRound:
        sent, taken = self._group.flow(server.pid, sender, job, receiver, receiver_job)
        if sent.count != taken.count:
            raise BenchError(f"{sent.count} envelopes were sent and {taken.count} were acked")
        server.check_counts(job.stream, sent.count)
        sent.last_ns = taken.last_ns
        return to_round(server.pid, sent, taken)

    def memory(self, server: PenstockServer, count: int) -> BenchRound:
        """Memory of a queued envelope: the server's RSS before and after `count` that stay queued."""
        rss_before, cpu_before = server.rss_bytes(), server.cpu_s()
        seconds, held = 0.0, 0
        while held < count:
            job = self._job(server, "held", 60.0, min(64, count - held))
            job.count, job.window = min(count - held, FILL_STREAM), UNBOUNDED
            report = self._group.load("queue.loads:produce", job).report()
            server.check_counts(job.stream, report.count, is_held=True)
            held += report.count
            seconds += report.seconds
        cpu_s, each = {"server": server.cpu_s() - cpu_before}, round((server.rss_bytes() - rss_before) / held, 1)
        return BenchRound.timed(held, seconds, server.rss_bytes(), cpu_s, bytes_each=each)

    def idle(self, server: PenstockServer, count: int, seconds: float) -> BenchRound:
        """CPU and memory of subscribers that have nothing to do."""
        rss_before = server.rss_bytes()
        job = self._job(server, "idle", seconds)
        job.count = count
        load = self._group.load("queue.loads:hold", job, is_announced=True)
        before_s = server.cpu_s()
        time.sleep(seconds)
        rss, share = server.rss_bytes(), round((server.cpu_s() - before_s) / seconds, 5)
        done = BenchRound.timed(0, seconds, rss, bytes_each=round((rss - rss_before) / max(count, 1), 1))
        done.server_cpu_share, done.count = share, load.report().count
        return done


def _start_sides(group: ProcessGroup, *, wants_peer: bool) -> list[Side]:
    """The servers and their clients, ours first."""
    ours = [Side("penstock", group.penstock())]
    if not wants_peer:
        return ours
    redis = import_role("redis_streams")
    missing = "the client of Redis is in the source repository only" if redis is None else redis.missing()
    if missing is not None:
        group.result.notes.append(f"no peer: {missing}")
        return ours
    theirs = group.start(partial(redis.RedisServer, durable=group.durable), "redis")
    return [*ours, Side("redis", theirs), Side("redis", theirs, "redis-py")]


def describe(batch: int, target: str = "penstock", client: str = "lean", rate: int = 0) -> str:
    """What travels together, in words."""
    if rate:
        return "nothing: one envelope a write; the acks of one read go together"
    if target == "redis":
        sent = f"{batch} XADD a round trip" if client == "redis-py" else "up to 256 XADD a write, pipelined"
        return f"{sent}; XREADGROUP COUNT 256, one XACK for all of them"
    frame = "one envelope a line" if batch == 1 else f"{batch} envelopes a line, both ways"
    return f"{frame}; up to 256 envelopes a write, pipelined; one ack line for all of one read"


def trigger_configs() -> dict[str, dict[str, Any]]:
    """Configs by name: no rules, many that match nothing, some that read each envelope, one that fires."""
    notify = {"action": "notify", "to": "notices", "payload": {"ref": "${env.id}"}}

    def with_rules(*conditions: dict[str, Any], **more: object) -> dict[str, Any]:
        caps = {"perStreamCaps": {"notices": {"maxDepth": 1000, "overflow": "drop-oldest"}}}
        rules = [{"id": f"r{number}", "when": when, "do": [notify], **more} for number, when in enumerate(conditions)]
        return {"streams": caps, "triggers": rules}

    load = {"type": "bench.load"}
    return {
        "no triggers": {"streams": {}},
        "100 of other types": with_rules(*[{"type": f"other.{n}"} for n in range(100)]),
        "100 of other streams": with_rules(*[{"to": f"other/{n}/*"} for n in range(100)]),
        "10 that read each envelope": with_rules(*[{**load, "headers": {"n": n}} for n in range(10)]),
        "1 in its cooldown": with_rules(load, limits={"cooldownMs": 60_000}),
        "1 that fires on each": with_rules(load),
    }
