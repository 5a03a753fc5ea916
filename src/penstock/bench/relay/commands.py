"""`penstock bench relay`: token streams through the relay, and through libzmq's own proxy."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from cyclopts import Parameter

from penstock.bench.harness.processes import ProcessGroup
from penstock.bench.harness.result import BenchCell, BenchResult, BenchRound, parse_names, refuse, take_turns
from penstock.bench.queue.commands import OPEN_RATE, Kinds, Rounds, Seconds
from penstock.bench.queue.rounds import QueueRounds
from penstock.bench.relay.loads import BLOCK_TOKENS, SIZE_MIN
from penstock.bench.relay.rounds import Relay, RelayRounds, ZmqProxy, start_relay
from penstock.cli.options import PLAIN, Output

CELLS = ("one", "many", "register", "memory", "verify", "beside")
ALL_CELLS = ",".join(CELLS)
TRANSPORTS = ("ipc", "tcp")
ONE_GOAL, RATIO_GOAL = 400_000, 0.45
REGISTER_GOAL, VERIFY_GOAL, MEMORY_GOAL_MIB = 2_000, 100_000, 200
P99_SLACK = 1.15  # a p99 within this factor counts as equal
HELD_EACH = 10  # messages of a topic in the memory cell
SPEED = 200_000  # half the relay's speed when it was not measured
SINGLE = "nothing: one chunk a message"


def relay(
    *,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    only: Kinds = ALL_CELLS,
    transports: Annotated[str, Parameter(help="Transports, with commas.")] = "ipc,tcp",
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

      penstock bench relay
      penstock bench relay --only one,many --transports ipc --seconds 30 --json > result.json
    """
    kinds, ways = parse_names("kind", only, CELLS), parse_names("transport", transports, TRANSPORTS)
    if size < SIZE_MIN:
        refuse(f"a chunk has at least {SIZE_MIN} bytes")
    options = {"seconds": seconds, "rounds": rounds, "only": kinds, "transports": ways, "size": size}
    result = BenchResult.begin("relay", **options, topics=topics, window=window, peer=peer)
    each_s = seconds / rounds

    def run(group: ProcessGroup) -> None:
        measured = RelayRounds(group, size, window)
        flows = {kind: 1 if kind == "one" else topics for kind in ("one", "many") if kind in kinds}
        for way in ways if flows else []:
            sides: dict[str, Relay] = {"penstock": start_relay(group, way)}
            if peer:
                sides["zmq.proxy"] = group.start(partial(ZmqProxy, transport=way))
            result.commands |= {name: server.words for name, server in sides.items()}
            for count in flows.values():
                measure = partial(measured.flow, topics=count, seconds=each_s)
                words = f"one topic, {way}" if count == 1 else f"{count:,} topics, {way}"
                _add_flow(result, words, list(sides), take_turns(list(sides.values()), rounds, measure))
            for server in sides.values():
                server.stop()
        if "register" in kinds:
            ours = start_relay(group, "ipc")
            done = [measured.register(ours, registrations, n * registrations) for n in range(rounds)]
            words = f"registrations, {registrations:,} in a row"
            _judge(result, result.add(words, "each signed, one a message", done), REGISTER_GOAL)
            ours.stop()
        if "memory" in kinds:
            ours = start_relay(group, "ipc")
            found = measured.memory(ours, held, HELD_EACH)
            words = f"{held:,} open topics"
            result.add(words, f"each with a subscriber and {HELD_EACH} messages that are kept", [found])
            rss = found.server_rss_mib or 0.0
            goal = f"{words}: {rss:.0f} MiB; the goal of {MEMORY_GOAL_MIB} MB"
            result.judge(goal, rss < MEMORY_GOAL_MIB)
            ours.stop()
        if "verify" in kinds:
            done = [measured.verify(each_s) for _ in range(rounds)]
            _judge(result, result.add("tokens verified", f"{BLOCK_TOKENS} tokens a block", done), VERIFY_GOAL)
        if "beside" in kinds:
            _beside(group, measured, rounds, each_s)

    return ProcessGroup(result).run(run, output)


def _add_flow(result: BenchResult, words: str, names: list[str], found: list[list[BenchRound]]) -> None:
    cells = [result.add(words, SINGLE, done, name) for name, done in zip(names, found, strict=True)]
    for cell in cells[1:]:
        ratio = cell.compare(cells[0]) or 0.0
        result.judge(f"{words}: {ratio:.2f} of libzmq's proxy; the goal of {RATIO_GOAL}", ratio >= RATIO_GOAL)
    if words.startswith("one "):
        _judge(result, cells[0], ONE_GOAL)


def _beside(group: ProcessGroup, measured: RelayRounds, rounds: int, each_s: float) -> None:
    """The queue's latencies at a steady rate: alone, and while the relay works at half its speed."""
    result = group.result
    server = start_relay(group, "ipc")
    queue = QueueRounds(group, 300)
    relayed = next((cell.speed for cell in result.cells if cell.workload == "one topic, ipc"), 0.0)
    speed = int(relayed / 2) or SPEED
    alone, both = [], []
    for _ in range(rounds):
        alone.append(queue.flow(server, 1, each_s, OPEN_RATE))
        both.append(measured.together(server, queue, each_s, OPEN_RATE, speed))
    batched = "nothing: one envelope a write"
    one = result.add(f"queue alone, {OPEN_RATE:,} a second", batched, alone)
    words = f"queue beside the relay, {OPEN_RATE:,} a second"
    other = result.add(words, batched, [queued for queued, _ in both])
    words = f"relay beside the queue, {speed:,} a second wanted"
    pace = result.add(words, SINGLE, [found for _, found in both]).speed
    first, second = one.middle_ms("p99") or 0.0, other.middle_ms("p99") or 0.0
    times = f"p99 of the queue: {first:.2f} ms alone, {second:.2f} ms beside the relay at {pace:,.0f} a second"
    result.judge(f"{times}; the goal of no change", second <= first * P99_SLACK)
    server.stop()


def _judge(result: BenchResult, cell: BenchCell, goal: int) -> None:
    result.judge(f"{cell.workload}: {cell.speed:,.0f} a second; the goal of {goal:,}", cell.speed > goal)
