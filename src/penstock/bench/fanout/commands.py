"""`penstock bench fanout`: frames of streams in a space, to one target and to all."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from penstock.bench.fanout.frames import NUMBER_DIGITS
from penstock.bench.fanout.loads import SPACE, FanoutJob, name, token
from penstock.bench.fanout.node_relay import NodeRelay, install_relay
from penstock.bench.harness.load import LoadReport
from penstock.bench.harness.plot import require_matplotlib, save_plot
from penstock.bench.harness.processes import (
    PenstockServer,
    ProcessGroup,
    ServerProcess,
    allow_files,
    threads_cpu_s,
)
from penstock.bench.harness.result import BenchResult, BenchRound, parse_names, refuse, take_turns
from penstock.bench.queue.commands import Kinds, Rounds, Seconds
from penstock.cli.options import PLAIN, Output

CELLS = ("targeted", "broadcast", "table", "growth")
ALL_CELLS = ",".join(CELLS)
ENTITIES = (6, 15, 50)  # the sizes of the table: what a broadcast costs
TARGETED_GOAL, BROADCAST_GOAL, RATIO_GOAL = 300_000, 1_500_000, 2.0
PLAIN_RELAY = "node ws"
BLOCK = 256  # frames of one write
REST_S, REST_SHARE, REST_MAX_S = 0.2, 0.05, 20.0

Side = tuple[str, PenstockServer | NodeRelay]


def fanout(
    *,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    only: Kinds = ALL_CELLS,
    size: Annotated[int, Parameter(help="Bytes of data in a frame.")] = 100,
    participants: Annotated[int, Parameter(help="Participants of `targeted` and `broadcast`.")] = 50,
    window: Annotated[int, Parameter(help="Frames in flight to the slowest reader, at most.")] = 4096,
    rate: Annotated[int, Parameter(help="Frames per second and participant of `table` and `growth`.")] = 10,
    sizes: Annotated[str, Parameter(help="Participants of `growth`, with commas.")] = "10,30,100,300,1000",
    broadcast_max: Annotated[int, Parameter(help="Participants up to which `growth` broadcasts.")] = 300,
    peer: Annotated[bool, Parameter(help="Also measure the Node relay, if Node is installed.")] = True,
    plot: Annotated[Path | None, Parameter(help="Draw the growth into this SVG file.")] = None,
    output: Output = PLAIN,
) -> int:
    """Measure stream frames in a space: to one target, to all, and the aggregation pattern as it grows.

    A plot needs `pip install 'penstock[bench]'`. For example:

      penstock bench fanout
      penstock bench fanout --only targeted,broadcast --seconds 30 --json > result.json
      penstock bench fanout --only growth --sizes 10,100,1000 --plot growth.svg
    """
    kinds = parse_names("kind", only, CELLS)
    if plot is not None and "growth" not in kinds:
        refuse("a plot shows the growth, which `--only` leaves out")
    if size < NUMBER_DIGITS:
        refuse(f"a frame carries its number and so has at least {NUMBER_DIGITS} bytes of data")
    if participants < 2:
        refuse("a publisher needs a reader: at least 2 participants")
    if plot is not None:
        require_matplotlib()
    counts = [int(word) for word in sizes.split(",")]
    options = {
        "seconds": seconds,
        "rounds": rounds,
        "only": kinds,
        "size": size,
        "participants": participants,
    }
    options |= {"window": window, "rate": rate, "sizes": counts, "broadcastMax": broadcast_max, "peer": peer}
    result = BenchResult.begin("fanout", **options)
    allowed = allow_files(max([*counts, participants]))
    each_s = seconds / rounds

    def run(group: ProcessGroup) -> None:
        measured = FanoutRounds(group, size, window)
        if {"targeted", "broadcast", "table"} & set(kinds):
            sides = _start_sides(group, max(participants, *ENTITIES), wants_peer=peer)
            for kind in [kind for kind in ("targeted", "broadcast") if kind in kinds]:
                flow = partial(measured.flow, count=participants, seconds=each_s)
                _closed(result, sides, rounds, kind, participants, partial(flow, is_targeted=kind == "targeted"))
            if "table" in kinds:
                _table(result, measured, sides, rounds, each_s, rate)
            for _, server in sides:
                server.stop()
        for is_targeted in (True, False) if "growth" in kinds else ():
            most = allowed if is_targeted else min(allowed, broadcast_max)
            for count in [count for count in counts if count <= most]:
                server = group.penstock(space_config(count))
                result.commands["penstock"] = server.words
                found = measured.paced(server, count, seconds, rate, is_targeted=is_targeted, is_aggregated=True)
                server.stop()
                words = f"growth, {count:,} participants, {'targeted' if is_targeted else 'broadcast'}"
                result.add(words, f"nothing: one frame a write; all at {rate} Hz, one sends sums to all", [found])

    code = ProcessGroup(result, durable=True).run(run, output)
    if plot is not None and not result.failures:
        title = f"Aggregation: all at {rate} Hz to one, which sends its sums to all"
        save_plot(plot, title, "participants", "deliveries a second", growth_lines(result))
    return code


def growth_lines(result: BenchResult) -> dict[str, list[tuple[float, float]]]:
    """Deliveries a second by the number of participants, targeted and broadcast."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for cell in result.cells:
        kind, count, *_, way = cell.workload.replace(",", "").split()
        if kind == "growth":
            lines.setdefault(way, []).append((float(count), cell.speed))
    return lines


def space_config(participants: int) -> dict[str, Any]:
    """A config with one space and so many participants, each with every capability."""
    members = {
        name(number): {"tokens": [token(number)], "capabilities": [{"kind": "*"}]} for number in range(participants)
    }
    return {"spaces": [{"space": {"id": SPACE, "name": SPACE}, "participants": members}]}


class FanoutRounds:
    """Rounds of frames in one process group."""

    def __init__(self, group: ProcessGroup, size: int, window: int) -> None:
        self._group, self._size, self._window = group, size, window

    def flow(self, server: ServerProcess, count: int, seconds: float, *, is_targeted: bool) -> BenchRound:
        """One publisher, as fast as the slowest reader."""
        job = FanoutJob(port=server.http_port, seconds=seconds, board=self._group.board(), size=self._size, count=count)
        job.block, job.window, job.is_targeted = min(BLOCK, self._window), self._window, is_targeted
        sent, read = self._group.flow(server.cpu_s, "fanout.loads:publish", job, "fanout.loads:receive")
        expected = sent.count * (1 if is_targeted else count)
        done = _to_round(server, sent, read.count + sent.received, expected, read.cpu_s)
        _wait_idle(server)
        return done

    def paced(
        self,
        server: ServerProcess,
        count: int,
        seconds: float,
        rate: int,
        *,
        is_targeted: bool,
        is_aggregated: bool,
    ) -> BenchRound:
        """Every participant publishes by the clock."""
        job = FanoutJob(port=server.http_port, seconds=seconds, size=self._size, count=count, rate=rate)
        job.is_targeted, job.is_aggregated = is_targeted, is_aggregated
        sent = self._group.measure(partial(threads_cpu_s, server.pid), "fanout.loads:pace", job)
        done = _to_round(server, sent, sent.received, sent.received + sent.missing)
        # At this rate the server mostly wakes up; its share of a core says more than the CPU of a frame.
        done.frame_cpu_us = done.producer_cpu_us = None
        done.server_cpu_share = round(sent.server_cpu_s / done.seconds, 5)
        done.others_per_second = round((sent.received - sent.echoes) / done.seconds, 1)
        _wait_idle(server)
        return done


def _to_round(
    server: ServerProcess, sent: LoadReport, received: int, expected: int, reader_s: float = 0.0
) -> BenchRound:
    cpu_s = {"server": sent.server_cpu_s, "producer": sent.cpu_s} | ({"consumer": reader_s} if reader_s else {})
    done = BenchRound.timed(received, sent.seconds, server.rss_bytes(), **cpu_s)
    done.frames, done.dropped = sent.count, expected - received
    done.frame_cpu_us = round(sent.server_cpu_s / max(sent.count, 1) * 1e6, 3)
    return done


def _wait_idle(server: ServerProcess) -> None:
    """Wait until the server has handled the leaving of the last round, but not for ever."""
    deadline = time.monotonic() + REST_MAX_S
    share = 1.0
    while share > REST_SHARE and time.monotonic() < deadline:
        before_s = threads_cpu_s(server.pid)
        time.sleep(REST_S)
        share = (threads_cpu_s(server.pid) - before_s) / REST_S


def _start_sides(group: ProcessGroup, participants: int, *, wants_peer: bool) -> list[Side]:
    """The servers, ours first."""
    sides: list[Side] = [("penstock", group.penstock(space_config(participants)))]
    home = install_relay() if wants_peer else None
    if isinstance(home, str):
        group.result.notes.append(f"no peer: {home}")
    elif home is not None:
        for words, is_corked in ((PLAIN_RELAY, False), ("node ws, corked", True)):
            sides.append((words, group.start(partial(NodeRelay, home=home, is_corked=is_corked))))
    group.result.commands |= {words: server.words for words, server in sides}
    return sides


def _closed(
    result: BenchResult,
    sides: list[Side],
    rounds: int,
    kind: str,
    participants: int,
    measure: Callable[[ServerProcess], BenchRound],
) -> None:
    """As fast as it goes: one publisher to one of the others, or to all and itself."""
    is_targeted = kind == "targeted"
    found = take_turns(sides, rounds, lambda side: measure(side[1]))
    words = f"{kind}, 1 to {1 if is_targeted else participants} of {participants}"
    batched = "256 frames a write, pipelined; per second counts deliveries, the sender's own included"
    cells = [result.add(words, batched, done, side[0]) for side, done in zip(sides, found, strict=True)]
    goal = TARGETED_GOAL if is_targeted else BROADCAST_GOAL
    result.judge(f"{kind}: {cells[0].speed:,.0f} a second; the goal of {goal:,}", cells[0].speed > goal)
    for cell in cells[1:]:
        ratio = cell.compare(cells[0]) or 0.0
        if cell.target == PLAIN_RELAY:
            goal_words = f"{kind}: {ratio:.2f} times the plain relay; the goal of {RATIO_GOAL:.0f} times"
            result.judge(goal_words, ratio >= RATIO_GOAL)


def _table(
    result: BenchResult, measured: FanoutRounds, sides: list[Side], rounds: int, each_s: float, rate: int
) -> None:
    """Every participant publishes by the clock, to one of them or to all."""
    for count in ENTITIES:
        for is_targeted in (True, False):
            measure = partial(measured.paced, count=count, seconds=each_s, rate=rate, is_aggregated=False)
            words = f"table, {count} entities at {rate} Hz, {'targeted' if is_targeted else 'broadcast'}"
            found = take_turns(sides[:2], rounds, lambda side: measure(side[1], is_targeted=is_targeted))  # noqa: B023 - called at once
            for side, done in zip(sides, found, strict=False):
                result.add(words, "nothing: one frame a write", done, side[0])
