"""Where the server's time goes: the queue load against a server under cProfile.

cProfile slows Python code by half or more and C code not at all, so read shares of Python functions beside one another, and take
throughput from a run without it.
"""

from __future__ import annotations

import pstats
from pathlib import Path

from penstock.bench.processes import BenchError, Stage
from penstock.bench.workloads import Workloads
from penstock.cli.output import print_line, print_note, print_table

TOP = 25
WINDOW = 8192
HEADINGS = ("own us each", "with calls", "calls each", "function")


def show(batches: list[int], seconds: float, size: int) -> int:
    """Print the functions with the most time of their own, for each batch size."""
    for batch in batches:
        with Stage() as stage:
            path = stage.folder / "profile"
            server = stage.penstock(path)
            try:
                done = Workloads(stage, size, WINDOW).flow(server, "lean", batch=batch, seconds=seconds)
            except BenchError as error:
                print_note(f"error: {error}")
                return 3
            server.stop()
            rows = hottest(path, done.count)
        print_line(f"closed loop, {batch} a frame: {done.count:,} envelopes under the profiler")
        print_table(HEADINGS, rows)
    return 0


def hottest(path: Path, count: int) -> list[list[object]]:
    """The functions with the most time of their own, their figures divided by `count`."""
    # What pstats holds has no public type: (file, line, name) -> (primitive calls, calls, own, cumulative, callers).
    figures: dict[tuple[str, int, str], tuple[int, int, float, float, object]]
    figures = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    ordered = sorted(figures.items(), key=lambda item: item[1][2], reverse=True)[:TOP]
    return [
        [
            f"{own / count * 1e6:.3f}",
            f"{whole / count * 1e6:.3f}",
            f"{calls / count:.3f}",
            name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}",
        ]
        for (file, line, name), (_, calls, own, whole, _) in ordered
    ]
