"""`penstock bench relay`: token streams through the relay, beside libzmq's own proxy in C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.bench import result
from penstock.bench.commands import OPEN_RATE, WINDOW, show
from penstock.bench.processes import BenchError
from penstock.bench.relay_loads import least_size
from penstock.bench.relay_messages import BLOCK_TOKENS, SIGNERS
from penstock.bench.relay_rounds import Relays
from penstock.bench.relay_servers import Proxy, RelayServer, RelayStage
from penstock.bench.result import Cell, Outcome, Round
from penstock.bench.workloads import Workloads
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_note

CELLS = ("one", "many", "register", "memory", "verify", "beside")
TRANSPORTS = ("ipc", "tcp")
ONE_GOAL, RATIO_GOAL = 400_000, 0.45
REGISTER_GOAL, VERIFY_GOAL, MEMORY_GOAL_MIB = 2_000, 100_000, 200
P99_SLACK = 1.15
"""A p99 within this of the other is the same one."""
HELD_EACH = 10
"""Messages of a topic in the memory cell."""
SPEED = 200_000
"""Half speed where none was measured."""


def relay(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of load a cell, spread over its rounds.")] = 10.0,
    rounds: Annotated[int, Parameter(help="Rounds a cell; peers take turns, medians are shown.")] = 3,
    only: Annotated[str, Parameter(help="Kinds of cells to run, with commas.")] = ",".join(CELLS),
    transports: Annotated[str, Parameter(help="Transports, with commas.")] = ",".join(TRANSPORTS),
    size: Annotated[int, Parameter(help="Bytes of a chunk.")] = 304,
    topics: Annotated[int, Parameter(help="Topics of the kind `many`.")] = 1_000,
    registrations: Annotated[int, Parameter(help="Registrations a round.")] = 2_000,
    held: Annotated[int, Parameter(help="Open topics of the memory cell.")] = 10_000,
    window: Annotated[int, Parameter(help="Messages that have not arrived yet, at most.")] = 16_384,
    peer: Annotated[bool, Parameter(help="Run libzmq's proxy beside it.")] = True,
    profile: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Instead, say where the relay's time goes (cProfile)."
        ),
    ] = False,
    output: Output = PLAIN,
) -> int:
    """Measure the relay of token streams: throughput, registrations, memory, and what it costs its neighbours.

    For example:

      penstock bench relay
      penstock bench relay --only one,many --transports ipc --seconds 30 --json > result.json
      penstock bench relay --profile --only many
    """
    kinds, ways = only.split(","), transports.split(",")
    options = {"seconds": seconds, "rounds": rounds, "only": kinds, "transports": ways, "size": size}
    outcome = result.begin("relay", {**options, "topics": topics, "window": window, "peer": peer})
    wrong = _wrong(kinds, ways, size)
    if wrong is not None:
        print_note(f"error: {wrong}")
        return 1
    if profile:
        from penstock.bench import relay_hotspots

        return relay_hotspots.show(kinds, ways, seconds, size, topics, window)
    each_s = seconds / rounds
    with RelayStage() as stage:
        relays = Relays(stage, size, window)
        try:
            flows: list[tuple[str, int]] = [
                (kind, 1 if kind == "one" else topics) for kind in ("one", "many") if kind in kinds
            ]
            for way in ways if flows else []:
                _flows(outcome, stage, relays, way, flows, rounds, each_s, wants_peer=peer)
            if "register" in kinds:
                server = stage.relay("ipc")
                done = [relays.register(server, registrations, n * registrations) for n in range(rounds)]
                words = f"registrations, {registrations:,} in a row"
                _goal(
                    outcome,
                    _add(outcome, words, "penstock", "each signed, one a message", done),
                    REGISTER_GOAL,
                )
                server.stop()
            if "memory" in kinds:
                _memory(outcome, stage, relays, held)
            if "verify" in kinds:
                done = [relays.verify(each_s) for _ in range(rounds)]
                cell = _add(outcome, "tokens verified", "penstock", f"{BLOCK_TOKENS} tokens a block", done)
                _goal(outcome, cell, VERIFY_GOAL)
            if "beside" in kinds:
                _beside(outcome, stage, relays, rounds, each_s)
        except BenchError as error:
            outcome.failures.append(str(error))
    return show(outcome, output)


def _wrong(kinds: list[str], ways: list[str], size: int) -> str | None:
    """What is wrong with the options, if anything is."""
    for word, known in [(kind, CELLS) for kind in kinds] + [(way, TRANSPORTS) for way in ways]:
        if word not in known:
            return f"there is no `{word}`\nhint: there are {', '.join(known)}"
    return None if size >= least_size() else f"a chunk has at least {least_size()} bytes"


def _flows(
    outcome: Outcome,
    stage: RelayStage,
    relays: Relays,
    way: str,
    flows: list[tuple[str, int]],
    rounds: int,
    each_s: float,
    *,
    wants_peer: bool,
) -> None:
    """As fast as it goes: the relay, then the proxy, in turns."""
    sides: list[tuple[str, RelayServer | Proxy]] = [("penstock", stage.relay(way))]
    if wants_peer:
        sides.append(("zmq.proxy", stage.proxy(way)))
    for name, server in sides:
        outcome.commands[name] = " ".join(Path(word).name if "/" in word else word for word in server.command)
    for kind, topics in flows:
        done: list[list[Round]] = [[] for _ in sides]
        for _ in range(rounds):
            for found, (_, server) in zip(done, sides, strict=True):
                found.append(relays.flow(server, topics, each_s))
        words = f"{kind} topic, {way}" if topics == 1 else f"{topics:,} topics, {way}"
        cells = [
            _add(outcome, words, name, "nothing: one chunk a message", found)
            for (name, _), found in zip(sides, done, strict=True)
        ]
        speeds = [_speed(cell) for cell in cells]
        if len(cells) > 1 and speeds[1]:
            cells[1].ratio = round(speeds[0] / speeds[1], 3)
            word = "met" if cells[1].ratio >= RATIO_GOAL else "missed"
            outcome.notes.append(
                f"{words}: {cells[1].ratio:.2f} of libzmq's proxy; the goal of {RATIO_GOAL} is {word}"
            )
        if topics == 1:
            _goal(outcome, cells[0], ONE_GOAL)
    for _, server in sides:
        server.stop()


def _memory(outcome: Outcome, stage: RelayStage, relays: Relays, held: int) -> None:
    server = stage.relay("ipc")
    done = relays.memory(server, held, HELD_EACH)
    batched = f"each with a subscriber and {HELD_EACH} messages that are kept"
    _add(outcome, f"{held:,} open topics", "penstock", batched, [done])
    rss = done.server_rss_mib or 0.0
    word = "met" if rss < MEMORY_GOAL_MIB else "missed"
    outcome.notes.append(f"{held:,} open topics: {rss:.0f} MiB; the goal of {MEMORY_GOAL_MIB} MB is {word}")
    server.stop()


def _beside(outcome: Outcome, stage: RelayStage, relays: Relays, rounds: int, each_s: float) -> None:
    """The queue's latencies at a steady rate: alone, and while the relay works at half its speed."""
    ends = f"ipc://{stage.folder / 'pub'}", f"ipc://{stage.folder / 'pull'}"
    config = {"relay": {"enabled": True, "pub": ends[0], "pull": ends[1], "signers": SIGNERS}}
    server = stage.penstock(config=json.dumps(config), has_relay=True)
    loads = Workloads(stage, 300, WINDOW)
    measured = next((_speed(cell) for cell in outcome.cells if cell.workload == "one topic, ipc"), 0.0)
    speed = int(measured / 2) or SPEED
    alone: list[Round] = []
    both: list[tuple[Round, Round]] = []
    for _ in range(rounds):
        alone.append(loads.flow(server, "lean", batch=1, seconds=each_s, rate=OPEN_RATE))
        both.append(relays.beside(server, ends, loads, each_s, OPEN_RATE, speed))
    batched = "nothing: one envelope a write"
    one = _add(outcome, f"queue alone, {OPEN_RATE:,} a second", "penstock", batched, alone)
    words = f"queue beside the relay, {OPEN_RATE:,} a second"
    other = _add(outcome, words, "penstock", batched, [queued for queued, _ in both])
    words = f"relay beside the queue, {speed:,} a second wanted"
    relayed = [found for _, found in both]
    pace = _speed(_add(outcome, words, "penstock", "nothing: one chunk a message", relayed))
    first, second = one.middle_ms("p99") or 0.0, other.middle_ms("p99") or 0.0
    word = "met" if second <= first * P99_SLACK else "missed"
    outcome.notes.append(
        f"p99 of the queue: {first:.2f} ms alone, {second:.2f} ms beside the relay at {pace:,.0f} a second; "
        f"the goal of no change is {word}"
    )
    server.stop()


def _speed(cell: Cell) -> float:
    return cell.middle(lambda one: one.per_second) or 0.0


def _goal(outcome: Outcome, cell: Cell, goal: int) -> None:
    speed = _speed(cell)
    word = "met" if speed > goal else "missed"
    outcome.notes.append(f"{cell.workload}: {speed:,.0f} a second; the goal of {goal:,} is {word}")


def _add(outcome: Outcome, workload: str, target: str, batched: str, rounds: list[Round]) -> Cell:
    cell = Cell(workload, target, "lean", batched, rounds)
    outcome.cells.append(cell)
    print_note(f"{workload}: {target} {_speed(cell):,.0f} a second")
    return cell
