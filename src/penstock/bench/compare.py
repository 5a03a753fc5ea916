"""`penstock bench compare`: the server's CPU per message in two versions, in alternating pairs.

The loads of this version drive both servers, so only `penstock up` comes from OLD and NEW. Each measurement has a fresh
server. The statistics are deterministic for the same samples.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from penstock.bench.fanout.commands import FanoutRounds, space_config
from penstock.bench.harness.processes import PenstockServer, ProcessGroup
from penstock.bench.harness.result import EXIT_CHECK, BenchError, BenchResult, BenchRound, parse_names, refuse
from penstock.bench.queue.rounds import QueueRounds
from penstock.bench.relay.loads import SIGNERS
from penstock.bench.relay.rounds import RelayRounds
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_json, print_line, print_note, print_table

RESAMPLES = 10_000
COVERAGE = 0.95
SEED = 1


class Ratio(msgspec.Struct, rename="camel"):
    """The median of NEW/OLD over the pairs, and the interval that holds it with 95 % confidence."""

    median: float
    low: float
    high: float

    def is_above(self, limit: float) -> bool:
        """Whether the whole interval lies above the limit."""
        return self.low > limit


def order_of(pair: int) -> tuple[Literal["old", "new"], Literal["old", "new"]]:
    """OLD first in even pairs, NEW first in odd ones, so that a steady drift of the machine cancels."""
    return ("old", "new") if pair % 2 == 0 else ("new", "old")


def compute_ratio(old: Sequence[float], new: Sequence[float]) -> Ratio:
    """The ratio of paired samples. The pairs are resampled, not the sides, because a pair shares its moment."""
    if len(old) != len(new) or not old:
        raise ValueError(f"{len(old)} samples of OLD and {len(new)} of NEW are no pairs")
    ratios = [after / before for before, after in zip(old, new, strict=True)]
    dice = random.Random(SEED)
    medians = sorted(median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1 - COVERAGE) / 2)
    low, high = medians[tail], medians[-1 - tail]
    return Ratio(round(median(ratios), 4), round(low, 4), round(high, 4))


WORKLOADS = ("queue", "fanout", "relay")
ALL_WORKLOADS = ",".join(WORKLOADS)
PARTICIPANTS, WINDOW = 10, 4096


class ServerVersion(msgspec.Struct):
    """How to start the server of a version."""

    python: str
    source: Path | None  # a checkout's `src`; None when the interpreter has Penstock installed


class Comparison(msgspec.Struct, rename="camel"):
    """CPU microseconds per message of both versions, in the order of the pairs."""

    workload: str
    old_us: list[float]
    new_us: list[float]
    ratio: Ratio | None = None


class CompareResult(BenchResult, rename="camel"):
    max_ratio: float = 0.0
    comparisons: list[Comparison] = msgspec.field(default_factory=list)


def compare(
    old: Annotated[Path, Parameter(help="The version before: a checkout, an environment or its interpreter.")],
    new: Annotated[Path, Parameter(help="The version after, likewise.")],
    *,
    pairs: Annotated[int, Parameter(help="Pairs of measurements per workload.")] = 11,
    seconds: Annotated[float, Parameter(help="Seconds of load per measurement.")] = 2.0,
    only: Annotated[str, Parameter(help="Workloads to compare, with commas.")] = ALL_WORKLOADS,
    max_ratio: Annotated[float, Parameter(help="The ratio that an interval may not exceed wholly.")] = 1.03,
    output: Output = PLAIN,
) -> int:
    """Compare the server's CPU per message in two versions: the median ratio NEW/OLD with a 95 % interval.

    OLD and NEW are measured in alternating pairs. The exit code is 3 when an interval lies wholly above
    `--max-ratio`. For example:

      penstock bench compare ../before .
      penstock bench compare ../before/.venv/bin/python . --only queue --pairs 21 --json
    """
    workloads = parse_names("workload", only, WORKLOADS)
    versions = {"old": find_version(old), "new": find_version(new)}
    if pairs < 1:
        refuse("a comparison needs at least one pair")
    options = {"old": str(old), "new": str(new), "pairs": pairs, "seconds": seconds, "only": workloads}
    result = CompareResult.begin("compare", **options)
    result.max_ratio = max_ratio
    with ProcessGroup(result) as group:
        try:
            for workload in workloads:
                found = Comparison(workload, [], [])
                result.comparisons.append(found)
                for pair in range(pairs):
                    for side in order_of(pair):
                        measured_us = _measure(group, workload, versions[side], seconds)
                        (found.old_us if side == "old" else found.new_us).append(measured_us)
                    us = f"{found.old_us[-1]:.3f} us before, {found.new_us[-1]:.3f} us after"
                    print_note(f"{workload}, pair {pair + 1} of {pairs}: {us}")
                found.ratio = compute_ratio(found.old_us, found.new_us)
        except BenchError as error:
            result.failures.append(str(error))
    return show(result, output)


def find_version(path: Path) -> ServerVersion:
    """An interpreter; or a folder with `src`, which its own interpreter runs if there is one; or an environment."""
    path = path.absolute()  # not resolved: the interpreter of an environment is a link
    if path.is_file():
        return ServerVersion(str(path), None)
    source = path / "src" if (path / "src" / "penstock").is_dir() else None
    for python in (path / ".venv" / "bin" / "python", path / "bin" / "python"):
        if python.is_file():
            return ServerVersion(str(python), source)
    if source is None:
        refuse(
            f"`{path}` is no version of Penstock",
            "name a folder with src/penstock or .venv, or an interpreter",
        )
    return ServerVersion(sys.executable, source)


def _measure(group: ProcessGroup, workload: str, version: ServerVersion, seconds: float) -> float:
    """CPU microseconds per message on a fresh server."""
    make = partial(PenstockServer, python=version.python, source=version.source)
    measure: Callable[[PenstockServer], BenchRound]
    if workload == "queue":
        measure = partial(QueueRounds(group, 300).flow, batch=64, seconds=seconds)
    elif workload == "fanout":
        make = partial(make, config=space_config(PARTICIPANTS))
        rounds = FanoutRounds(group, 100, WINDOW)
        measure = partial(rounds.flow, count=PARTICIPANTS, seconds=seconds, is_targeted=False)
    else:
        make = partial(make, config={"relay": {"signers": SIGNERS}}, relay="ipc")
        measure = partial(RelayRounds(group, 304, WINDOW).flow, topics=1, seconds=seconds)
    server = group.start(make)
    done = measure(server)
    server.stop()
    if not done.server_cpu_us:
        raise BenchError(f"{workload}: the server used no measurable CPU; give it more `--seconds`")
    return done.server_cpu_us


def show(result: CompareResult, output: Output) -> int:
    worse = [one.workload for one in result.comparisons if one.ratio and one.ratio.is_above(result.max_ratio)]
    if output.as_json:
        print_json(result)
    else:
        rows = [
            [one.workload, len(one.old_us), ratio.median, f"{ratio.low:.3f} to {ratio.high:.3f}"]
            for one in result.comparisons
            if (ratio := one.ratio) is not None
        ]
        print_table(["workload", "pairs", "median NEW/OLD", "95 % interval"], rows)
        for name in worse:
            print_line(f"{name}: the whole interval is above {result.max_ratio}")
    for failure in result.failures:
        print_note(f"error: {failure}")
    return EXIT_CHECK if worse or result.failures else 0
