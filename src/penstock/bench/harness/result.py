"""The result of a bench run: one JSON document of a stable shape, the same as a table, and plots of it."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import msgspec
from cyclopts import Parameter

from penstock.cli.options import Output
from penstock.cli.output import print_json, print_line, print_note, print_table
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "penstock.bench/1"
LIBRARIES = ("penstock", "uvloop", "msgspec", "aiohttp", "redis", "hiredis", "pyzmq")
EXIT_CHECK = 3
HEADINGS = (
    "workload", "server (client)", "per second", "server us", "producer us", "consumer us", "p50/p95/p99/max ms",
    "RSS MiB", "",
)  # fmt: skip
REMARKS = {
    "ratio": "ours is {:.2f}x", "bytes_each": "{:,.0f} bytes each", "server_cpu_share": "{:.2%} of a core",
    "others_per_second": "{:,.0f} a second without the sender", "frame_cpu_us": "{:,.1f} us a frame",
    "million_s": "{:,.1f} s a million rows", "files": "{:,.0f} files",
    "longest_turn_ms": "longest turn {:,.1f} ms", "longest_turn_cpu_ms": "{:,.1f} ms of CPU",
}  # fmt: skip
MIB = 1024 * 1024
CpuSeconds = Mapping[str, float]
NO_CPU: CpuSeconds = MappingProxyType({})
Plot = Annotated[Path | None, Parameter(help="Draw the growth into this SVG file.")]
Lines = dict[str, list[tuple[float, float]]]
"""The points of a plot by the name of their line."""


class BenchError(Exception):
    """A run that proves nothing: a message was lost, refused or never arrived."""


class BenchRound(msgspec.Struct, rename="camel", omit_defaults=True):
    """One measurement. `count` and `per_second` are deliveries where a frame has several receivers."""

    count: int
    seconds: float
    per_second: float
    server_cpu_us: float | None = None  # CPU of the server per message, user and kernel, in microseconds
    server_rss_mib: float | None = None
    producer_cpu_us: float | None = None
    consumer_cpu_us: float | None = None
    latency_ms: dict[str, float] | None = None
    late_ms: dict[str, float] | None = None  # how far an open-loop producer was behind its schedule
    bytes_each: float | None = None
    server_cpu_share: float | None = None  # share of one core
    frame_cpu_us: float | None = None  # CPU of the server per frame, not per delivery
    others_per_second: float | None = None  # deliveries without those to the sender itself
    frames: int = 0
    dropped: int = 0  # deliveries that the server dropped for slow readers
    wall_s: float | None = None  # inside Spark: with the start of the query, which `seconds` leaves out
    pss_mib: float | None = None  # memory with shared pages divided among the processes; RSS counts them for each
    by_program: dict[str, str] | None = None
    million_s: float | None = None  # seconds for a million rows
    files: int | None = None  # live files of all tables
    longest_turn_ms: float | None = None  # the longest turn of the server's loop since its start, by its own metric
    longest_turn_cpu_ms: float | None = None  # the same by CPU time of the loop's thread

    @classmethod
    def timed(cls, count: int, seconds: float, rss: int | None = None, cpu_s: CpuSeconds = NO_CPU, **more: Any) -> Self:
        """A round with its rate; `cpu_s` are CPU seconds of `server`, `producer` and `consumer`, `more` other fields."""
        more |= {f"{name}_cpu_us": round(used_s / max(count, 1) * 1e6, 4) for name, used_s in cpu_s.items()}
        rss_mib = None if rss is None else round(rss / MIB, 1)
        return cls(count, round(seconds, 4), round(count / seconds, 1), server_rss_mib=rss_mib, **more)


class BenchCell(msgspec.Struct, rename="camel", omit_defaults=True):
    """One workload on one server with one client."""

    workload: str
    target: str
    client: str
    batched: str  # what travels together, in words
    rounds: list[BenchRound]
    accounted: bool = True
    batch: int | None = None
    ratio: float | None = None  # our throughput over this peer's, both with the lean client; 0.87 to 1.15 is a tie

    def middle(self, field: str) -> float | None:
        """The median of a field over the rounds that have it; `p50` to `max` are latencies."""
        found = [(one.latency_ms or {}).get(field, getattr(one, field, None)) for one in self.rounds]
        values = [value for value in found if value is not None]
        return median(values) if values else None

    @property
    def speed(self) -> float:
        return self.middle("per_second") or 0.0

    def compare(self, ours: BenchCell) -> None:
        """Set the ratio of our cell to this one."""
        self.ratio = round(ours.speed / self.speed, 3) if self.speed else None

    def to_row(self) -> list[object]:
        """The cells of the table, under `HEADINGS`."""
        times = [_format(self.middle(name), 2) for name in ("p50", "p95", "p99", "max")]
        figures = {field: self.ratio if field == "ratio" else self.middle(field) for field in REMARKS}
        remarks = [text.format(figures[field]) for field, text in REMARKS.items() if figures[field] is not None]
        return [
            self.workload,
            f"{self.target} ({self.client})",
            _format(self.speed or None, 0),
            *[_format(self.middle(f"{who}_cpu_us")) for who in ("server", "producer", "consumer")],
            "/".join(times) if times[0] != "-" else "-",
            _format(self.middle("server_rss_mib"), 0),
            ", ".join(remarks),
        ]


def _format(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


class Side(NamedTuple):
    """One of the servers that a workload compares; ours is the first."""

    target: str
    server: Any
    client: str = "lean"


class BenchResult(msgspec.Struct, rename="camel"):
    """A whole run."""

    bench: str
    options: dict[str, Any]
    schema: str = SCHEMA
    started_at: str = ""
    machine: dict[str, object] = {}
    versions: dict[str, str] = {}
    commands: dict[str, str] = {}
    cells: list[BenchCell] = []
    notes: list[str] = []
    failures: list[str] = []

    @classmethod
    def begin(cls, bench: str, given: Mapping[str, Any]) -> Self:
        """A result with the machine, the versions, and the options of the command as they were given."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        options = {
            "".join([first, *map(str.capitalize, more)]): str(value) if isinstance(value, Path) else value
            for name, value in given.items()
            if name not in ("output", "plot")
            for first, *more in [name.split("_")]
        }
        versions = {"python": f"{platform.python_implementation()} {sys.version.split()[0]}"}
        return cls(bench, options, SCHEMA, now, _machine(), versions | find_versions(*LIBRARIES))

    def parse_numbers(self, option: str) -> list[int]:
        """The numbers of an option, which has commas between them."""
        self.options[option] = [int(word) for word in self.options[option].split(",")]
        return list(self.options[option])

    def parse_names(self, option: str, what: str, known: str) -> list[str]:
        """The names of an option, each of which must be among those that are known; both have commas."""
        names: list[str] = self.options[option].split(",")
        for name in names:
            if name not in known.split(","):
                refuse(f"there is no {what} `{name}`", f"use one or more of {known.replace(',', ', ')}, with commas")
        self.options[option] = names
        return names

    def add(
        self, workload: str, batched: str, rounds: list[BenchRound], target: str = "penstock", client: str = "lean"
    ) -> BenchCell:
        """Append a cell and print its throughput as progress."""
        cell = BenchCell(workload, target, client, batched, rounds)
        self.cells.append(cell)
        if dropped := sum(one.dropped for one in rounds):
            note = f"{dropped:,} of {dropped + sum(one.count for one in rounds):,} deliveries were dropped for slow readers"
            self.notes.append(f"{workload}, {target}: {note}")
        print_note(f"{workload}: {target} ({client}) {cell.speed:,.0f} a second" if cell.speed else workload)
        return cell

    def alternate(
        self, workload: str, batched: str, sides: Sequence[Side], rounds: int, measure: Callable[[Side], BenchRound]
    ) -> list[BenchCell]:
        """A cell for each side. The sides alternate, so that a slow minute affects all of them."""
        turns = [[measure(side) for side in sides] for _ in range(rounds)]
        cells = [
            self.add(workload, batched, list(found), side.target, side.client)
            for side, found in zip(sides, zip(*turns, strict=True), strict=True)
        ]
        for cell in cells[1:]:
            cell.compare(cells[0])
        return cells

    def show(self, output: Output) -> int:
        """Print the result; the exit code says whether every message is accounted for."""
        if output.as_json:
            print_json(self)
        else:
            self.print_tables()
            for note in self.notes:
                print_line(f"note: {note}")
        for failure in self.failures:
            print_note(f"error: {failure}")
        return EXIT_CHECK if self.failures else 0

    def print_tables(self) -> None:
        print_table(HEADINGS, [cell.to_row() for cell in self.cells])
        for cell in self.cells:
            print_line(f"{cell.workload}, {cell.target} ({cell.client}): {cell.batched}")


def refuse(message: str, hint: str | None = None) -> None:
    raise PenstockError(Refusal("InvalidRequest", message, hint=hint))


def find_versions(*libraries: str) -> dict[str, str]:
    """The installed ones with their versions."""
    found = {}
    for name in libraries:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _machine() -> dict[str, object]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = [round(value, 2) for value in os.getloadavg()]
    kernel = f"{platform.system()} {platform.release()}"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = [platform.processor()]
    return {"cores": cores, "kernel": kernel, "cpu": next(iter(names), ""), "loadBefore": load}


def check_plot(plot: Path | None) -> None:
    """Refuse before the measurements, not after them."""
    if plot is not None and find_spec("matplotlib") is None:
        refuse("a plot needs matplotlib, which is not installed", "run `pip install 'penstock[bench]'`")


def draw(title: str, x_name: str, panels: Mapping[str, Lines]) -> Figure:
    """A figure over logarithmic axes, with a panel for each name of the vertical one.

    In a figure of one panel, a dashed line continues the first line in proportion.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure((7.2, 0.6 + 3.8 * len(panels)), layout="constrained")
    figure.suptitle(title)
    for number, (y_name, lines) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(len(panels), 1, number)
        for name, points in lines.items():
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
        first = next(iter(lines.values()))
        if len(first) > 1 and len(panels) == 1:
            (x_first, y_first), (x_last, _) = first[0], first[-1]
            proportional = [y_first, y_first * x_last / x_first]
            axes.plot([x_first, x_last], proportional, color="0.6", linestyle="--", label="linear")
        axes.set(xlabel=x_name, ylabel=y_name, xscale="log", yscale="log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.grid(color="0.9")
        axes.legend()
    return figure


def save_plot(file: Path, title: str, x_name: str, panels: Mapping[str, Lines]) -> None:
    """Write the figure as SVG with its text as text, whatever the file is called."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(title, x_name, panels).savefig(file, format="svg")
