"""`penstock bench queue` and `penstock bench http`: which cells are run, in which order, and what is printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.bench import result
from penstock.bench.processes import BenchError, Penstock, Redis, Stage
from penstock.bench.result import Cell, Outcome, Round
from penstock.bench.rulebooks import rulebooks
from penstock.bench.workloads import Workloads, allow_files
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_json, print_line, print_note, print_table

EXIT_CHECK = 3
WINDOW = 8192
OPEN_RATE = 2_000
CELLS = ("closed", "open", "memory", "idle", "core")

Seconds = Annotated[float, Parameter(help="Seconds of load a cell, spread over its rounds.")]
Rounds = Annotated[int, Parameter(help="Rounds a cell; peers take turns, medians are shown.")]
Durable = Annotated[
    bool,
    Parameter(
        negative="",
        show_default=False,
        help="With a journal on disk, synced before confirming; Redis with its log.",
    ),
]
Size = Annotated[int, Parameter(help="Bytes of an envelope.")]


def queue(
    *,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    batch: Annotated[str, Parameter(help="Envelopes a frame, several with commas.")] = "64,16,1",
    size: Size = 300,
    durable: Durable = False,
    peer: Annotated[bool, Parameter(help="Run Redis Streams beside it, where it is installed.")] = True,
    only: Annotated[str, Parameter(help="Kinds of cells to run, with commas.")] = ",".join(CELLS),
    queued: Annotated[int, Parameter(help="Envelopes held for the memory cell.")] = 200_000,
    subscribers: Annotated[int, Parameter(help="Connections of the idle cell.")] = 10_000,
    triggers: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Instead, show what triggers cost: none, many, firing."
        ),
    ] = False,
    profile: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Instead, say where the server's time goes (cProfile)."
        ),
    ] = False,
    output: Output = PLAIN,
) -> int:
    """Measure the queue over Control v1: throughput, latency, CPU an envelope, memory, idle cost.

    For example:

      penstock bench queue
      penstock bench queue --seconds 30 --rounds 5 --json > result.json
      penstock bench queue --only closed --batch 64 --no-peer
      penstock bench queue --triggers --batch 64,1
      penstock bench queue --profile --batch 1
    """
    batches = [int(word) for word in batch.split(",")]
    kinds = only.split(",")
    outcome = result.begin(
        "queue",
        {
            "seconds": seconds,
            "rounds": rounds,
            "batch": batches,
            "size": size,
            "durable": durable,
            "peer": peer,
            "only": kinds,
        },
    )
    if profile:
        from penstock.bench import hotspots

        return hotspots.show(batches, seconds, size)
    if triggers:
        return _finish(
            outcome,
            lambda stage: _triggers(outcome, stage, Workloads(stage, size, WINDOW), batches, rounds, seconds),
            output,
            durable=durable,
        )
    connections = allow_files(subscribers)

    def run(stage: Stage) -> None:
        loads = Workloads(stage, size, WINDOW)
        sides = _sides(stage, outcome, peer)
        each_s = seconds / rounds
        if "closed" in kinds:
            for count in batches:
                _flow(outcome, loads, sides, rounds, each_s, count, 0)
        if "open" in kinds:
            _flow(outcome, loads, sides, rounds, each_s, 1, OPEN_RATE)
        if "memory" in kinds:
            held = loads.memory(stage.penstock(), queued)
            _add(outcome, f"memory, {held.count:,} envelopes queued", "64 a frame", [held])
        if "idle" in kinds:
            idle = loads.idle(stage.penstock(), connections, seconds)
            if idle.count < subscribers:
                outcome.notes.append(f"{subscribers} subscribers need more open files than are allowed here")
            _add(outcome, f"idle, {idle.count:,} subscribers", "nothing is sent", [idle])
        if "core" in kinds:
            for count in (64, 1):
                cycles = [loads.core(count, each_s) for _ in range(rounds)]
                words = f"{count} records a call"
                _add(outcome, f"core alone, {words}", words, cycles, count, "in process")

    return _finish(outcome, run, output, durable=durable)


def http(
    *,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    batch: Annotated[str, Parameter(help="Envelopes a request, several with commas.")] = "1,100",
    size: Size = 300,
    durable: Durable = False,
    connections: Annotated[int, Parameter(help="Keep-alive connections.")] = 32,
    queued: Annotated[int, Parameter(help="Envelopes of a round that nobody takes, at most.")] = 100_000,
    output: Output = PLAIN,
) -> int:
    """Measure POST /v1/enqueue over keep-alive connections: alone, and with a control subscription that takes everything.

    For example:

      penstock bench http
      penstock bench http --batch 100 --connections 8 --json
    """
    batches = [int(word) for word in batch.split(",")]
    options = {
        "seconds": seconds,
        "rounds": rounds,
        "batch": batches,
        "size": size,
        "durable": durable,
        "connections": connections,
    }
    outcome = result.begin("http", {**options})

    def run(stage: Stage) -> None:
        loads = Workloads(stage, size, WINDOW)
        server = stage.penstock()
        outcome.commands["penstock"] = _words(server)
        for count in batches:
            done = [
                loads.posts(server, batch=count, seconds=seconds / rounds, connections=connections)
                for _ in range(rounds)
            ]
            words = "one envelope a request" if count == 1 else f"{count} envelopes a request"
            batched = f"{words}, one request under way a connection"
            _add(outcome, f"POST, {words}, all taken and acked", f"{batched}; 64 a delivery", done, count)
        for count in batches:
            done = [
                loads.fill(
                    stage.penstock(), batch=count, count=queued, seconds=seconds, connections=connections
                )
                for _ in range(rounds)
            ]
            words = "one envelope a request" if count == 1 else f"{count} envelopes a request"
            batched = f"{words}, one request under way a connection"
            _add(outcome, f"POST, {words}, nobody takes", batched, done, count)

    return _finish(outcome, run, output, durable=durable)


def _sides(stage: Stage, outcome: Outcome, peer: bool) -> list[tuple[Penstock | Redis, str]]:
    """The servers and the clients to drive them with, ours first."""
    ours = stage.penstock()
    outcome.commands["penstock"] = _words(ours)
    sides: list[tuple[Penstock | Redis, str]] = [(ours, "lean")]
    missing = Redis.missing() if peer else "not wanted"
    if missing is None:
        theirs = stage.redis()
        outcome.commands["redis"] = _words(theirs)
        sides += [(theirs, "lean"), (theirs, "redis-py")]
    elif peer:
        outcome.notes.append(f"no peer: {missing}")
    return sides


def _words(server: Penstock | Redis) -> str:
    return " ".join(
        repr(word) if word == "" else Path(word).name if "/" in word else word for word in server.command
    )


def _flow(
    outcome: Outcome,
    loads: Workloads,
    sides: list[tuple[Penstock | Redis, str]],
    rounds: int,
    each_s: float,
    batch: int,
    rate: int,
) -> None:
    """One workload on every side, the sides taking turns."""
    # One round trip a send would measure the network's latency, and redis-py has no other way to send singly.
    taking_part = [side for side in sides if side[1] == "lean" or batch > 1]
    done: list[list[Round]] = [[] for _ in taking_part]
    for _ in range(rounds):
        for index, (server, client) in enumerate(taking_part):
            done[index].append(loads.flow(server, client, batch=batch, seconds=each_s, rate=rate))
            if isinstance(server, Redis):
                server.forget()
    name = f"open loop, {rate:,} a second" if rate else f"closed loop, {batch} a frame"
    ours: Cell | None = None
    for (server, client), found in zip(taking_part, done, strict=True):
        target = "redis" if isinstance(server, Redis) else "penstock"
        cell = _add(outcome, name, _batched(target, client, batch, rate), found, batch, client, target)
        if ours is None:
            ours = cell
        elif not rate and client == ours.client:  # with another client the ratio would be the clients'
            speeds = [one.middle(lambda each: each.per_second) or 0.0 for one in (ours, cell)]
            cell.ratio = round(speeds[0] / speeds[1], 3) if speeds[1] else None


def _triggers(
    outcome: Outcome, stage: Stage, loads: Workloads, batches: list[int], rounds: int, seconds: float
) -> None:
    """The same load on servers with different rules, taking turns; ratios are to the server without any."""
    servers = [(words, stage.penstock(config=config)) for words, config in rulebooks()]
    outcome.commands["penstock"] = _words(servers[0][1])
    for batch in batches:
        done: list[list[Round]] = [[] for _ in servers]
        for _ in range(rounds):
            for index, (_, server) in enumerate(servers):
                done[index].append(loads.flow(server, "lean", batch=batch, seconds=seconds / rounds))
        plain: float | None = None
        for (words, _), found in zip(servers, done, strict=True):
            name = f"closed loop, {batch} a frame, {words}"
            cell = _add(outcome, name, _batched("penstock", "lean", batch, 0), found, batch)
            speed = cell.middle(lambda one: one.per_second) or 0.0
            if plain is None:
                plain = speed
            elif plain:
                cell.ratio = round(speed / plain, 3)


def _batched(target: str, client: str, batch: int, rate: int) -> str:
    if rate:
        return "nothing: one envelope a write; acks of what one read brought go together"
    if target == "redis" and client == "redis-py":
        return f"{batch} XADD a round trip; XREADGROUP COUNT 256, one XACK for all of them"
    if target == "redis":
        return "up to 256 XADD a write, pipelined; XREADGROUP COUNT 256, one XACK for all of them"
    frame = "one envelope a line" if batch == 1 else f"{batch} envelopes a line, both ways"
    return f"{frame}; up to 256 envelopes a write, pipelined; one ack line for all of one read"


def _add(
    outcome: Outcome,
    workload: str,
    batched: str,
    rounds: list[Round],
    batch: int | None = None,
    client: str = "lean",
    target: str = "penstock",
) -> Cell:
    cell = Cell(workload, target, client, batched, rounds, batch=batch)
    outcome.cells.append(cell)
    speed = cell.middle(lambda one: one.per_second)
    print_note(f"{workload}: {target} ({client}) {speed:,.0f} a second" if speed else workload)
    return cell


def _finish(outcome: Outcome, run: Callable[[Stage], None], output: Output, *, durable: bool) -> int:
    with Stage(durable=durable) as stage:
        try:
            run(stage)
        except BenchError as error:
            outcome.failures.append(str(error))
    return show(outcome, output)


def show(outcome: Outcome, output: Output) -> int:
    """Print what was found; the exit code says whether everything was accounted for."""
    if output.as_json:
        print_json(outcome)
    else:
        print_table(result.HEADINGS, result.rows(outcome))
        for cell in outcome.cells:
            print_line(f"{cell.workload}, {cell.target} ({cell.client}): {cell.batched}")
        for note in outcome.notes:
            print_line(f"note: {note}")
    for failure in outcome.failures:
        print_note(f"error: {failure}")
    return EXIT_CHECK if outcome.failures else 0
