"""`penstock bench queue` and `penstock bench http`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from penstock.bench.harness.processes import ProcessGroup, allow_files
from penstock.bench.harness.result import BenchCell, BenchResult, BenchRound, parse_names, take_turns
from penstock.bench.queue.redis import RedisServer
from penstock.bench.queue.rounds import QueueRounds, Server
from penstock.cli.options import PLAIN, Output

OPEN_RATE = 2_000
CELLS = ("closed", "open", "memory", "idle", "core")
ALL_CELLS = ",".join(CELLS)

Seconds = Annotated[float, Parameter(help="Seconds of load per cell, divided among its rounds.")]
Rounds = Annotated[int, Parameter(help="Rounds per cell; peers alternate, and medians are shown.")]
Durable = Annotated[
    bool,
    Parameter(negative="", show_default=False, help="Sync a journal on disk before confirming; Redis: its log."),
]
Size = Annotated[int, Parameter(help="Bytes of an envelope.")]
Kinds = Annotated[str, Parameter(help="Kinds of cells to run, with commas.")]
Side = tuple[Server, str]


def queue(
    *,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    batch: Annotated[str, Parameter(help="Envelopes per frame, several with commas.")] = "64,16,1",
    size: Size = 300,
    durable: Durable = False,
    peer: Annotated[bool, Parameter(help="Also measure Redis Streams, if installed.")] = True,
    only: Kinds = ALL_CELLS,
    queued: Annotated[int, Parameter(help="Envelopes held for the memory cell.")] = 200_000,
    subscribers: Annotated[int, Parameter(help="Connections of the idle cell.")] = 10_000,
    triggers: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Instead, measure triggers: none, many, firing."),
    ] = False,
    output: Output = PLAIN,
) -> int:
    """Measure the queue over Control v1: throughput, latency, CPU per envelope, memory, idle cost.

    For example:

      penstock bench queue
      penstock bench queue --seconds 30 --rounds 5 --json > result.json
      penstock bench queue --only closed --batch 64 --no-peer
      penstock bench queue --triggers --batch 64,1
    """
    batches, kinds = [int(word) for word in batch.split(",")], parse_names("kind", only, CELLS)
    options = {"seconds": seconds, "rounds": rounds, "batch": batches, "size": size, "durable": durable}
    result = BenchResult.begin("queue", **options, peer=peer, only=kinds)
    each_s = seconds / rounds

    def measure_triggers(group: ProcessGroup) -> None:
        measured = QueueRounds(group, size)
        servers = {words: group.penstock(config) for words, config in trigger_configs().items()}
        for count in batches:
            measure = partial(measured.flow, batch=count, seconds=each_s)
            found = take_turns(list(servers.values()), rounds, measure)
            cells = [
                result.add(f"closed loop, {count} a frame, {words}", _batched(count), done, batch=count)
                for words, done in zip(servers, found, strict=True)
            ]
            for cell in cells[1:]:  # the ratio is to the server without triggers
                cell.ratio = round(cell.speed / cells[0].speed, 3)

    def measure_all(group: ProcessGroup) -> None:
        measured = QueueRounds(group, size)
        sides = _start_sides(group, wants_peer=peer)
        flows = [(count, 0) for count in batches] if "closed" in kinds else []
        for count, rate in flows + ([(1, OPEN_RATE)] if "open" in kinds else []):
            # redis-py sends single envelopes only with a round trip each, which would measure the network.
            chosen = [side for side in sides if side[1] == "lean" or count > 1]
            measure = partial(_flow, measured, count, each_s, rate)
            _add_flow(result, chosen, take_turns(chosen, rounds, measure), count, rate)
        if "memory" in kinds:
            held = measured.memory(group.penstock(), queued)
            result.add(f"memory, {held.count:,} envelopes queued", "64 a frame", [held])
        if "idle" in kinds:
            idle = measured.idle(group.penstock(), allow_files(subscribers), seconds)
            if idle.count < subscribers:
                result.notes.append(f"{subscribers} subscribers need more open files than this user may have")
            result.add(f"idle, {idle.count:,} subscribers", "nothing is sent", [idle])
        for count in (64, 1) if "core" in kinds else ():
            cycles = [measured.core(count, each_s) for _ in range(rounds)]
            words = f"{count} records a call"
            result.add(f"core alone, {words}", words, cycles, client="in process", batch=count)

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

      penstock bench http
      penstock bench http --batch 100 --connections 8 --json
    """
    batches = [int(word) for word in batch.split(",")]
    options = {"seconds": seconds, "rounds": rounds, "batch": batches, "size": size, "durable": durable}
    result = BenchResult.begin("http", **options, connections=connections)

    def run(group: ProcessGroup) -> None:
        measured = QueueRounds(group, size)
        server = group.penstock()
        result.commands["penstock"] = server.words
        for is_taken in (True, False):
            for count in batches:
                done = [
                    measured.posts(server, count, seconds / rounds, connections)
                    if is_taken
                    else measured.fill(group.penstock(), count, queued, seconds, connections)
                    for _ in range(rounds)
                ]
                words = "one envelope a request" if count == 1 else f"{count} envelopes a request"
                batched = f"{words}, one request in flight per connection"
                batched += "; 64 a delivery" if is_taken else ""
                name = f"POST, {words}, {'all taken and acked' if is_taken else 'without a consumer'}"
                result.add(name, batched, done, batch=count)

    return ProcessGroup(result, durable=durable).run(run, output)


def _start_sides(group: ProcessGroup, *, wants_peer: bool) -> list[Side]:
    """The servers and their clients, ours first."""
    result, ours = group.result, group.penstock()
    result.commands["penstock"] = ours.words
    missing = RedisServer.missing() if wants_peer else "not wanted"
    if missing is not None:
        result.notes += [f"no peer: {missing}"] if wants_peer else []
        return [(ours, "lean")]
    theirs = group.start(partial(RedisServer, durable=group.durable))
    result.commands["redis"] = theirs.words
    return [(ours, "lean"), (theirs, "lean"), (theirs, "redis-py")]


def _flow(measured: QueueRounds, batch: int, each_s: float, rate: int, side: Side) -> BenchRound:
    return measured.flow(side[0], batch, each_s, rate, side[1])


def _add_flow(result: BenchResult, sides: list[Side], found: list[list[BenchRound]], batch: int, rate: int) -> None:
    name = f"open loop, {rate:,} a second" if rate else f"closed loop, {batch} a frame"
    cells: list[BenchCell] = []
    for (server, client), done in zip(sides, found, strict=True):
        target = "redis" if isinstance(server, RedisServer) else "penstock"
        cells.append(result.add(name, _batched(batch, target, client, rate), done, target, client, batch))
        if len(cells) > 1 and not rate and client == "lean":  # another client would give the clients' ratio
            cells[-1].compare(cells[0])


def _batched(batch: int, target: str = "penstock", client: str = "lean", rate: int = 0) -> str:
    if rate:
        return "nothing: one envelope a write; the acks of one read go together"
    if target == "redis":
        sent = f"{batch} XADD a round trip" if client == "redis-py" else "up to 256 XADD a write, pipelined"
        return f"{sent}; XREADGROUP COUNT 256, one XACK for all of them"
    frame = "one envelope a line" if batch == 1 else f"{batch} envelopes a line, both ways"
    return f"{frame}; up to 256 envelopes a write, pipelined; one ack line for all of one read"


def trigger_configs() -> dict[str, dict[str, Any]]:
    """Configs of `--triggers` by name: no rules, many that match nothing, some that read each envelope, one that fires."""
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
