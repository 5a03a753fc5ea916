"""`penstock bench fanout`: frames of streams in a space, to one target and to everybody, beside a small Node relay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from penstock.bench import result
from penstock.bench.commands import show
from penstock.bench.fanout_frames import NUMBER_DIGITS
from penstock.bench.fanout_rounds import FanRound, Fans, rest
from penstock.bench.fanout_servers import FanStage, Relay, config, install_relay
from penstock.bench.pipeline_plot import plot as draw
from penstock.bench.processes import BenchError, Penstock
from penstock.bench.result import Cell, Outcome
from penstock.bench.workloads import allow_files
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_note

CELLS = ("targeted", "broadcast", "table", "growth")
ENTITIES = (6, 15, 50)
"""The proposal's table of what a broadcast costs."""
TARGETED_GOAL, BROADCAST_GOAL, RATIO_GOAL = 300_000, 1_500_000, 2.0
PLAIN_RELAY = "node ws"

Side = tuple[str, Penstock | Relay]


def fanout(
    *,
    seconds: Annotated[float, Parameter(help="Seconds of load a cell, spread over its rounds.")] = 10.0,
    rounds: Annotated[int, Parameter(help="Rounds a cell; peers take turns, medians are shown.")] = 3,
    only: Annotated[str, Parameter(help="Kinds of cells to run, with commas.")] = ",".join(CELLS),
    size: Annotated[int, Parameter(help="Bytes of data in a frame.")] = 100,
    participants: Annotated[int, Parameter(help="Participants of the first two kinds of cells.")] = 50,
    window: Annotated[int, Parameter(help="Frames that the slowest reader has not had yet, at most.")] = 4096,
    rate: Annotated[int, Parameter(help="Frames a second and participant, of the last two kinds.")] = 10,
    sizes: Annotated[str, Parameter(help="Participants of the growth, with commas.")] = "10,30,100,300,1000",
    broadcast_max: Annotated[int, Parameter(help="Participants up to which the growth broadcasts.")] = 300,
    peer: Annotated[bool, Parameter(help="Run the Node relay beside it, where Node is installed.")] = True,
    plot: Annotated[Path | None, Parameter(help="Draw the growth into this SVG file.")] = None,
    profile: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Instead, say where the server's time goes (cProfile)."
        ),
    ] = False,
    output: Output = PLAIN,
) -> int:
    """Measure stream frames in a space: to one target, to everybody, and the aggregation pattern as it grows.

    For example:

      penstock bench fanout
      penstock bench fanout --only targeted,broadcast --seconds 30 --json > result.json
      penstock bench fanout --only growth --sizes 10,100,1000 --plot growth.svg
      penstock bench fanout --profile --only broadcast
    """
    kinds = only.split(",")
    counts = [int(word) for word in sizes.split(",")]
    options = {
        "seconds": seconds,
        "rounds": rounds,
        "only": kinds,
        "size": size,
        "participants": participants,
        "window": window,
        "rate": rate,
        "sizes": counts,
    }
    outcome = result.begin("fanout", {**options, "broadcastMax": broadcast_max, "peer": peer})
    wrong = _wrong(kinds, size, participants, wants_plot=plot is not None)
    if wrong is not None:
        print_note(f"error: {wrong}")
        return 1
    if profile:
        from penstock.bench import fanout_hotspots

        return fanout_hotspots.show(kinds, seconds, size, participants, window)
    allowed = allow_files(max([*counts, participants]))
    with FanStage() as stage:
        fans = Fans(stage, size, window)
        try:
            if {"targeted", "broadcast", "table"} & set(kinds):
                sides = _sides(stage, outcome, max(participants, *ENTITIES), wants_peer=peer)
                _closed(outcome, fans, sides, kinds, rounds, seconds / rounds, participants)
                if "table" in kinds:
                    _table(outcome, fans, sides, rounds, seconds / rounds, rate)
                for _, server in sides:
                    server.stop()
            if "growth" in kinds:
                _growth(
                    outcome, fans, stage, [n for n in counts if n <= allowed], broadcast_max, seconds, rate
                )
        except BenchError as error:
            outcome.failures.append(str(error))
    if plot is not None and not outcome.failures:
        plot.write_text(picture(outcome, rate))
    return show(outcome, output)


def _wrong(kinds: list[str], size: int, participants: int, *, wants_plot: bool) -> str | None:
    """What is wrong with the options, if anything is."""
    unknown = [kind for kind in kinds if kind not in CELLS]
    if unknown:
        return f"there is no kind `{unknown[0]}`\nhint: there are {', '.join(CELLS)}"
    if wants_plot and "growth" not in kinds:
        return "a plot shows the growth, which is not among the kinds to run"
    if size < NUMBER_DIGITS:
        return f"a frame carries its number and so has at least {NUMBER_DIGITS} bytes of data"
    return None if participants > 1 else "a publisher needs somebody beside it: at least 2 participants"


def _sides(stage: FanStage, outcome: Outcome, participants: int, *, wants_peer: bool) -> list[Side]:
    """The servers, ours first."""
    ours = stage.penstock(config=config(participants))
    outcome.commands["penstock"] = _words(ours)
    sides: list[Side] = [("penstock", ours)]
    if not wants_peer:
        return sides
    home = install_relay()
    if isinstance(home, str):
        outcome.notes.append(f"no peer: {home}")
        return sides
    for words, is_corked in ((PLAIN_RELAY, False), ("node ws, corked", True)):
        relay = stage.relay(home, is_corked=is_corked)
        outcome.commands[words] = _words(relay)
        sides.append((words, relay))
    return sides


def _words(server: Penstock | Relay) -> str:
    return " ".join(Path(word).name if "/" in word else word for word in server.command)


def _closed(
    outcome: Outcome,
    fans: Fans,
    sides: list[Side],
    kinds: list[str],
    rounds: int,
    each_s: float,
    participants: int,
) -> None:
    """As fast as it goes: one publisher to one of the others, then to all of them and itself."""
    for kind, is_targeted in (("targeted", True), ("broadcast", False)):
        if kind not in kinds:
            continue
        measure = partial(fans.flow, participants=participants, seconds=each_s, is_targeted=is_targeted)
        done = _turns(sides, rounds, measure)
        words = f"{kind}, 1 to {1 if is_targeted else participants} of {participants}"
        batched = "256 frames a write, pipelined; per second counts deliveries, the sender's own among them"
        cells = [_add(outcome, words, side, batched, found) for side, found in zip(sides, done, strict=True)]
        speeds = [cell.middle(lambda one: one.per_second) or 0.0 for cell in cells]
        for cell, speed in zip(cells[1:], speeds[1:], strict=True):
            cell.ratio = round(speeds[0] / speed, 3) if speed else None
        _judge(outcome, kind, cells, TARGETED_GOAL if is_targeted else BROADCAST_GOAL)


def _judge(outcome: Outcome, kind: str, cells: list[Cell], goal: int) -> None:
    """Say whether the goals were met."""
    speed = cells[0].middle(lambda one: one.per_second) or 0.0
    notes = [f"{kind}: {speed:,.0f} a second; the goal of {goal:,} is {'met' if speed > goal else 'missed'}"]
    ratio = next((cell.ratio for cell in cells if cell.target == PLAIN_RELAY), None)
    if ratio is not None:
        word = "met" if ratio >= RATIO_GOAL else "missed"
        notes.append(
            f"{kind}: {ratio:.2f} times the plain relay; the goal of {RATIO_GOAL:.0f} times is {word}"
        )
    outcome.notes += notes


def _table(outcome: Outcome, fans: Fans, sides: list[Side], rounds: int, each_s: float, rate: int) -> None:
    """Everybody publishes by the clock: to one of them, or to all."""
    for count in ENTITIES:
        for is_targeted in (True, False):
            measure = partial(
                fans.paced,
                count=count,
                seconds=each_s,
                rate=rate,
                is_targeted=is_targeted,
                is_aggregated=False,
            )
            done = _turns(sides[:2], rounds, measure)
            words = f"table, {count} entities at {rate} Hz, {'targeted' if is_targeted else 'broadcast'}"
            for side, found in zip(sides, done, strict=False):
                _add(outcome, words, side, "nothing: one frame a write", found)


def _growth(
    outcome: Outcome,
    fans: Fans,
    stage: FanStage,
    counts: list[int],
    broadcast_max: int,
    seconds: float,
    rate: int,
) -> None:
    """The aggregation pattern with more and more participants, each time on a fresh server."""
    for is_targeted in (True, False):
        for count in counts if is_targeted else [n for n in counts if n <= broadcast_max]:
            server = stage.penstock(config=config(count))
            outcome.commands["penstock"] = _words(server)
            found = fans.paced(server, count, seconds, rate, is_targeted=is_targeted, is_aggregated=True)
            server.stop()
            words = f"growth, {count:,} participants, {'targeted' if is_targeted else 'broadcast'}"
            batched = f"nothing: one frame a write; all at {rate} Hz, one of them sends its sums to everybody"
            _add(outcome, words, ("penstock", server), batched, [found])


def _turns(
    sides: list[Side], rounds: int, measure: Callable[[Penstock | Relay], FanRound]
) -> list[list[FanRound]]:
    """Every side once a round, after the one before it has come to rest."""
    done: list[list[FanRound]] = [[] for _ in sides]
    for _ in range(rounds):
        for found, (_, server) in zip(done, sides, strict=True):
            found.append(measure(server))
            rest(server)
    return done


def _add(outcome: Outcome, workload: str, side: Side, batched: str, rounds: list[FanRound]) -> Cell:
    cell = Cell(workload, side[0], "lean", batched, list(rounds))
    outcome.cells.append(cell)
    dropped = sum(one.dropped for one in rounds)
    if dropped:
        asked = dropped + sum(one.count for one in rounds)
        outcome.notes.append(
            f"{workload}, {side[0]}: {dropped:,} of {asked:,} deliveries were dropped for slow readers"
        )
    speed = cell.middle(lambda one: one.per_second) or 0.0
    print_note(f"{workload}: {side[0]} {speed:,.0f} a second")
    return cell


def picture(outcome: Outcome, rate: int) -> str:
    """Deliveries a second over the number of participants, by the way they go."""
    lines: dict[str, list[tuple[float, float]]] = {"targeted": [], "broadcast": []}
    for cell in outcome.cells:
        kind, count, *_, way = cell.workload.replace(",", "").split()
        if kind == "growth":
            lines[way].append((float(count), cell.middle(lambda one: one.per_second) or 0.0))
    title = f"Aggregation: everybody at {rate} Hz to one, and its sums to everybody"
    drawn = {way: points for way, points in lines.items() if points}
    return draw(title, "participants", "deliveries a second", drawn)
