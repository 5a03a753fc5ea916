"""`penstock bench fanout`: frames of streams in a space, to one target and to all; the peer is a Node relay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from penstock.bench.fanout.frames import NUMBER_DIGITS
from penstock.bench.fanout.loads import SPACE, FanoutJob, name, token
from penstock.bench.harness.load import BENCHES
from penstock.bench.harness.processes import ProcessGroup, allow_files, threads_cpu_s, to_round
from penstock.bench.harness.result import BenchResult, BenchRound, Lines, Plot, Side, check_plot, refuse, save_plot
from penstock.bench.queue.commands import Kinds, Rounds, Seconds
from penstock.cli.options import PLAIN, Output

CELLS = "targeted,broadcast,table,growth"
ENTITIES = (6, 15, 50)  # the sizes of the table: what a broadcast costs
BLOCK = 256  # frames of one write
REST_S, REST_SHARE, REST_MAX_S = 0.2, 0.05, 20.0
INSTALL_S = 120.0
SINGLE = "nothing: one frame a write"


def fanout(
    *,
    seconds: Seconds = 10.0,
    rounds: Rounds = 3,
    only: Kinds = CELLS,
    size: Annotated[int, Parameter(help="Bytes of data in a frame.")] = 100,
    participants: Annotated[int, Parameter(help="Participants of `targeted` and `broadcast`.")] = 50,
    window: Annotated[int, Parameter(help="Frames in flight to the slowest reader, at most.")] = 4096,
    rate: Annotated[int, Parameter(help="Frames per second and participant of `table` and `growth`.")] = 10,
    sizes: Annotated[str, Parameter(help="Participants of `growth`, with commas.")] = "10,30,100,300,1000",
    broadcast_max: Annotated[int, Parameter(help="Participants up to which `growth` broadcasts.")] = 300,
    peer: Annotated[bool, Parameter(help="Also measure the Node relay, if Node is installed.")] = True,
    plot: Plot = None,
    output: Output = PLAIN,
) -> int:
    """Measure stream frames in a space: to one target, to all, and the aggregation pattern as it grows.

    A plot needs `pip install 'penstock[bench]'`. For example:

      penstock bench fanout --only targeted,broadcast --seconds 30 --json > result.json
      penstock bench fanout --only growth --sizes 10,100,1000 --plot growth.svg
    """
    result = BenchResult.begin("fanout", locals())
    kinds, counts = result.parse_names("only", "kind", CELLS), result.parse_numbers("sizes")
    if plot is not None and "growth" not in kinds:
        refuse("a plot shows the growth, which `--only` leaves out")
    if size < NUMBER_DIGITS:
        refuse(f"a frame carries its number and so has at least {NUMBER_DIGITS} bytes of data")
    if participants < 2:
        refuse("a publisher needs a reader: at least 2 participants")
    check_plot(plot)
    allowed = allow_files(max([*counts, participants]))
    each_s = seconds / rounds

    def run(group: ProcessGroup) -> None:
        measured = FanoutRounds(group, size, window)
        ways = {"targeted": True, "broadcast": False}
        if {"targeted", "broadcast", "table"} & set(kinds):
            sides = _start_sides(group, max(participants, *ENTITIES), wants_peer=peer)
            for way in [way for way in ways if way in kinds]:
                words = f"{way}, 1 to {1 if ways[way] else participants} of {participants}"
                batched = "256 frames a write, pipelined; per second counts deliveries, the sender's own included"
                measure = partial(measured.flow, count=participants, seconds=each_s, is_targeted=ways[way])
                result.alternate(words, batched, sides, rounds, measure)
            for count, way in [(count, way) for count in ENTITIES for way in ways] if "table" in kinds else ():
                paced = partial(measured.pace, count=count, seconds=each_s, rate=rate, is_targeted=ways[way])
                words = f"table, {count} entities at {rate} Hz, {way}"
                for cell in result.alternate(words, SINGLE, sides[:2], rounds, paced):
                    cell.ratio = None  # both send by the clock
            for side in sides:
                side.server.stop()
        for way in ways if "growth" in kinds else ():
            most = allowed if ways[way] else min(allowed, broadcast_max)
            for count in [count for count in counts if count <= most]:
                server = group.penstock(space_config(count))
                side = Side("penstock", server)
                found = measured.pace(side, count, seconds, rate, is_targeted=ways[way], is_aggregated=True)
                server.stop()
                words = f"growth, {count:,} participants, {way}"
                result.add(words, f"{SINGLE}; all at {rate} Hz, one sends sums to all", [found])

    code = ProcessGroup(result, durable=True).run(run, output)
    if plot is not None and not result.failures:
        title = f"Aggregation: all at {rate} Hz to one, which sends its sums to all"
        save_plot(plot, title, "participants", {"deliveries a second": growth_lines(result)})
    return code


def growth_lines(result: BenchResult) -> Lines:
    """Deliveries a second by the number of participants, targeted and broadcast."""
    lines: Lines = {}
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

    def flow(self, side: Side, count: int, seconds: float, *, is_targeted: bool) -> BenchRound:
        """One publisher, as fast as the slowest reader."""
        server, board, window = side.server, self._group.board(), self._window
        job = FanoutJob(port=server.http_port, seconds=seconds, board=board, size=self._size, count=count)
        job.block, job.window, job.is_targeted = min(BLOCK, window), window, is_targeted
        sent, read = self._group.flow(server.pid, "fanout.loads:publish", job, "fanout.loads:receive")
        done = to_round(server.pid, sent, read, read.count + sent.received)
        done.frames, done.dropped = sent.count, sent.count * (1 if is_targeted else count) - done.count
        done.frame_cpu_us = round(sent.server_cpu_s / max(sent.count, 1) * 1e6, 3)
        _wait_idle(server.pid)
        return done

    def pace(
        self, side: Side, count: int, seconds: float, rate: int, *, is_targeted: bool, is_aggregated: bool = False
    ) -> BenchRound:
        """Every participant publishes by the clock."""
        server = side.server
        job = FanoutJob(port=server.http_port, seconds=seconds, size=self._size, count=count, rate=rate)
        job.is_targeted, job.is_aggregated = is_targeted, is_aggregated
        sent = self._group.measure(server.pid, "fanout.loads:pace", job, threads_cpu_s)
        done = to_round(server.pid, sent, None, sent.received)
        done.frames, done.dropped = sent.count, sent.missing
        # At this rate the server mostly wakes up; its share of a core says more than the CPU of a frame.
        done.producer_cpu_us = None
        done.server_cpu_share = round(sent.server_cpu_s / done.seconds, 5)
        done.others_per_second = round((sent.received - sent.echoes) / done.seconds, 1)
        _wait_idle(server.pid)
        return done


def _wait_idle(pid: int) -> None:
    """Wait until the server has handled the leaving of the last round, but not for ever."""
    deadline = time.monotonic() + REST_MAX_S
    share = 1.0
    while share > REST_SHARE and time.monotonic() < deadline:
        before_s = threads_cpu_s(pid)
        time.sleep(REST_S)
        share = (threads_cpu_s(pid) - before_s) / REST_S


def _start_sides(group: ProcessGroup, participants: int, *, wants_peer: bool) -> list[Side]:
    """The servers, ours first."""
    sides = [Side("penstock", group.penstock(space_config(participants)))]
    home = install_relay() if wants_peer else None
    if isinstance(home, str):
        group.result.notes.append(f"no peer: {home}")
    elif home is not None:
        for words, options in (("node ws", ()), ("node ws, corked", ("--cork",))):
            sides.append(group.peer(words, "node", str(home / "relay.js"), *options))
    return sides


def install_relay() -> Path | str:
    """The folder with the relay and its library, installed on first use; or why there is none."""
    script = BENCHES / "ws_relay" / "install.sh"
    if not script.is_file():
        return "the Node relay is in the source repository only"
    cache = Path.home() / "Library/Caches" if sys.platform == "darwin" else Path.home() / ".cache"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or cache) / "penstock"
    command = ["/bin/sh", str(script), str(cache)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        return f"`npm ci` took longer than {INSTALL_S:.0f} s"
    return done.stderr.strip()[-200:] if done.returncode else Path(done.stdout.strip())
