"""`penstock bench compare`: the server's CPU per message in two versions, in alternating pairs.

The loads of this version drive both servers, so only `penstock up` comes from OLD and NEW.
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
from penstock.bench.harness.result import EXIT_CHECK, BenchError, BenchResult, BenchRound, Side, refuse
from penstock.bench.queue.commands import QueueRounds
from penstock.bench.relay.commands import RelayRounds
from penstock.bench.relay.loads import SIGNERS
from penstock.cli.options import PLAIN, Output
from penstock.cli.output import print_line, print_note, print_table

WORKLOADS = "queue,fanout,relay"
PARTICIPANTS, WINDOW = 10, 4096
RESAMPLES = 10_000
COVERAGE = 0.95
SEED = 1


class Ratio(msgspec.Struct):
    """The median of NEW/OLD over the pairs, and the interval that holds it with 95 % confidence."""

    median: float
    low: float
    high: float


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
    return Ratio(*[round(value, 4) for value in (median(ratios), medians[tail], medians[-1 - tail])])


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

    def print_tables(self) -> None:
        rows = [
            [one.workload, len(one.old_us), ratio.median, f"{ratio.low:.3f} to {ratio.high:.3f}"]
            for one in self.comparisons
            if (ratio := one.ratio) is not None
        ]
        print_table(["workload", "pairs", "median NEW/OLD", "95 % interval"], rows)
        for name in self.worse():
            print_line(f"{name}: the whole interval is above {self.max_ratio}")

    def worse(self) -> list[str]:
        """The workloads whose whole interval is above the limit."""
        return [one.workload for one in self.comparisons if one.ratio and one.ratio.low > self.max_ratio]

    def show(self, output: Output) -> int:
        code = super().show(output)
        return EXIT_CHECK if self.worse() else code


def compare(
    old: Annotated[Path, Parameter(help="The version before: a checkout, an environment or its interpreter.")],
    new: Annotated[Path, Parameter(help="The version after, likewise.")],
    *,
    pairs: Annotated[int, Parameter(help="Pairs of measurements per workload.")] = 11,
    seconds: Annotated[float, Parameter(help="Seconds of load per measurement.")] = 2.0,
    only: Annotated[str, Parameter(help="Workloads to compare, with commas.")] = WORKLOADS,
    max_ratio: Annotated[float, Parameter(help="The ratio that an interval may not exceed wholly.")] = 1.03,
    output: Output = PLAIN,
) -> int:
    """Compare the server's CPU per message in two versions: the median ratio NEW/OLD with a 95 % interval.

    OLD and NEW are measured in alternating pairs. The exit code is 3 when an interval lies wholly above
    `--max-ratio`. For example:

      penstock bench compare ../before .
      penstock bench compare ../before/.venv/bin/python . --only queue --pairs 21 --json
    """
    result = CompareResult.begin("compare", locals())
    workloads = result.parse_names("only", "workload", WORKLOADS)
    versions = {"old": find_version(old), "new": find_version(new)}
    if pairs < 1:
        refuse("a comparison needs at least one pair")
    result.max_ratio = max_ratio

    def run(group: ProcessGroup) -> None:
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

    return ProcessGroup(result).run(run, output)


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
        refuse(f"`{path}` is no version of Penstock", "name a folder with src/penstock or .venv, or an interpreter")
    return ServerVersion(sys.executable, source)


def _measure(group: ProcessGroup, workload: str, version: ServerVersion, seconds: float) -> float:
    """CPU microseconds per message on a fresh server."""
    start = partial(PenstockServer, python=version.python, source=version.source)
    measure: Callable[[Side], BenchRound]
    if workload == "queue":
        measure = partial(QueueRounds(group, 300).flow, batch=64, seconds=seconds)
    elif workload == "fanout":
        start = partial(start, config=space_config(PARTICIPANTS))
        rounds = FanoutRounds(group, 100, WINDOW)
        measure = partial(rounds.flow, count=PARTICIPANTS, seconds=seconds, is_targeted=False)
    else:
        start = partial(start, config={"relay": {"signers": SIGNERS}}, relay="ipc")
        measure = partial(RelayRounds(group, 304, WINDOW).flow, topics=1, seconds=seconds)
    server = group.start(start)
    done = measure(Side("penstock", server))
    server.stop()
    if not done.server_cpu_us:
        raise BenchError(f"{workload}: the server used no measurable CPU; give it more `--seconds`")
    return done.server_cpu_us
