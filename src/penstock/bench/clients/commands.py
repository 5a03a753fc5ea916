"""`penstock bench clients`: the SDK in the ways that users write it, next to redis-py and nats-py."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from cyclopts import Parameter

from penstock.bench.clients.loads import STYLES, ClientJob
from penstock.bench.harness.load import import_role
from penstock.bench.harness.processes import ProcessGroup, to_round
from penstock.bench.harness.result import BenchCell, BenchError, BenchResult, BenchRound, Side, find_versions
from penstock.bench.queue.commands import Size
from penstock.cli.options import PLAIN, Output

WINDOW = 20_000
SINGLE = "single sends"
GOALS = {"plain loop": 1.5, "work_batch": 2.0, SINGLE: 2.0}
"""How many times the fastest peer's throughput each way should reach."""
WAYS = ",".join([*STYLES, SINGLE]).replace(" ", "-")
PEERS = "redis,nats,nats-always"
SATURATED = 0.75  # share of a core at which a process is the bottleneck: on few cores none gets all of one
SLOWEST = 500  # envelopes a second below which a load counts as stuck


def clients(
    *,
    count: Annotated[int, Parameter(help="Envelopes of a round.")] = 200_000,
    rounds: Annotated[int, Parameter(help="Rounds; all clients alternate, and medians are shown.")] = 5,
    size: Size = 300,
    durable: Annotated[bool, Parameter(help="Sync a journal on disk before confirming; the peers too.")] = True,
    only: Annotated[str, Parameter(help="Ways to use the SDK, with commas.")] = WAYS,
    peers: Annotated[str, Parameter(help="Peers to measure if they are installed, with commas, or `none`.")] = PEERS,
    batch: Annotated[int, Parameter(help="Envelopes of one call, except for single sends.")] = 64,
    tasks: Annotated[int, Parameter(help="Tasks that send single envelopes.")] = 256,
    output: Output = PLAIN,
) -> int:
    """Measure stock Python clients, from the first send to the last confirmed settle.

    A producer process and a consumer process; every envelope is read and acked. The peers are redis-py on Redis
    Streams and nats-py on JetStream, with its default sync and with `sync_interval: always`.

    For example:

      penstock bench clients
      penstock bench clients --count 20000 --rounds 1 --peers none --only plain-loop,work
    """
    result = BenchResult.begin("clients", locals())
    result.versions |= find_versions("nats-py")
    ways = [way.replace("-", " ") for way in result.parse_names("only", "way", WAYS)]
    wanted = [] if peers == "none" else result.parse_names("peers", "peer", PEERS)

    def run(group: ProcessGroup) -> None:
        ours = group.penstock()
        theirs = start_peers(group, wanted)
        for workload, chosen, job in (
            (f"{batch} a call", [way for way in ways if way != SINGLE], ClientJob(batch=batch)),
            (f"{SINGLE}, {tasks} tasks", [way for way in ways if way == SINGLE], ClientJob(batch=1, tasks=tasks)),
        ):
            if not chosen:
                continue
            job.count, job.size, job.window, job.seconds = count, size, WINDOW, count / SLOWEST
            sides = [*[Side("penstock", ours, way) for way in chosen], *theirs]
            measure = partial(measure_round, group, job)
            compare(result, result.alternate(workload, describe(job), sides, rounds, measure), len(chosen))

    return ProcessGroup(result, durable=durable).run(run, output)


def start_peers(group: ProcessGroup, wanted: list[str]) -> list[Side]:
    """The peers that this machine has; a note says why one is missing."""
    module = import_role("stock_clients")
    sides = []
    for name in wanted:
        missing = "its client is in the source repository only" if module is None else module.missing(name)
        if missing is not None:
            group.result.notes.append(f"no {name}: {missing}")
            continue
        server = group.start(partial(module.start, name, durable=group.durable), name)
        group.result.versions[name.partition("-")[0] + "-server"] = module.version(name)
        sides.append(Side(name, server, "redis-py" if name == "redis" else "nats-py"))
    return sides


def measure_round(group: ProcessGroup, job: ClientJob, side: Side) -> BenchRound:
    """One round of one client on a stream of its own; every envelope must arrive and be acked."""
    job.port, job.board = side.server.port, group.board()
    job.stream = f"bench-{job.board.rpartition('-')[2]}"
    job.style = side.client if side.client in STYLES else "work_batch"
    role = "clients.loads:" if side.target == "penstock" else f"stock_clients:{side.client[:5].strip('-')}_"
    sent, taken = group.flow(side.server.pid, f"{role}produce", job, f"{role}consume")
    if sent.count != taken.count:
        raise BenchError(f"{sent.count} envelopes were sent and {taken.count} were acked")
    side.server.check_counts(job.stream, sent.count)
    sent.last_ns = taken.last_ns
    return to_round(side.server.pid, sent, taken)


def compare(result: BenchResult, cells: list[BenchCell], count: int) -> None:
    """Give each of our cells its ratio to the fastest peer, and say what holds back one that misses its goal."""
    for cell in cells:
        cell.ratio = None
    theirs = max((cell.speed for cell in cells[count:]), default=0.0)
    for cell in cells[:count]:
        goal = GOALS.get(cell.client)
        if not theirs:
            continue
        cell.ratio = round(cell.speed / theirs, 3)
        if goal is not None and cell.ratio < goal:
            missed = f"{cell.client} is {cell.ratio:.2f}x the fastest peer, and the goal is {goal:g}x"
            result.notes.append(f"{missed}: {bottleneck(cell)}")


def bottleneck(cell: BenchCell) -> str:
    """The process that is saturated, by its share of a core."""
    shares = {
        who: (cell.middle(f"{who}_cpu_us") or 0.0) * cell.speed / 1e6 for who in ("server", "producer", "consumer")
    }
    busiest = max(shares, key=lambda who: shares[who])
    listed = ", ".join(f"{who} {share:.0%}" for who, share in shares.items())
    if shares[busiest] < SATURATED:
        return f"no process is saturated ({listed} of a core), so the disk or the number of cores is the limit"
    return f"the {busiest} is saturated ({listed} of a core)"


def describe(job: ClientJob) -> str:
    """What travels together, in words."""
    if job.batch == 1:
        return f"{job.tasks} tasks that each wait for one envelope; the consumer takes what has arrived"
    return f"{job.tasks} tasks that each wait for a call with {job.batch} envelopes"
