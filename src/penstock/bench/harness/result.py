"""The result of a bench run: one JSON document of a stable shape, and the same as a table."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from statistics import median
from typing import Self, TypeVar

import msgspec

from penstock.cli.options import Output
from penstock.cli.output import print_json, print_line, print_note, print_table
from penstock.core.errors import PenstockError, Refusal

SCHEMA = "penstock.bench/1"
LIBRARIES = ("penstock", "uvloop", "msgspec", "aiohttp", "redis", "hiredis", "pyzmq")
BAR_CELLS = 20
EXIT_CHECK = 3
HEADINGS = (
    "workload", "server (client)", "per second", "", "server us", "producer us", "consumer us",
    "p50/p95/p99/max ms", "RSS MiB", "",
)  # fmt: skip
MIB = 1024 * 1024
S = TypeVar("S")


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

    @classmethod
    def timed(cls, count: int, seconds: float, rss_bytes: int | None = None, **cpu_s: float) -> BenchRound:
        """A round with its rate; `cpu_s` are CPU seconds of `server`, `producer` and `consumer`."""
        made = cls(count, round(seconds, 4), round(count / seconds, 1))
        made.server_rss_mib = None if rss_bytes is None else round(rss_bytes / MIB, 1)
        for name, used_s in cpu_s.items():
            setattr(made, f"{name}_cpu_us", round(used_s / max(count, 1) * 1e6, 4))
        return made


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
        """The median of a field over the rounds that have it."""
        values = [value for one in self.rounds if (value := getattr(one, field)) is not None]
        return median(values) if values else None

    def middle_ms(self, name: str) -> float | None:
        values = [one.latency_ms[name] for one in self.rounds if one.latency_ms]
        return median(values) if values else None

    @property
    def speed(self) -> float:
        return self.middle("per_second") or 0.0

    def compare(self, ours: BenchCell) -> float | None:
        """Set the ratio of our cell to this one."""
        self.ratio = round(ours.speed / self.speed, 3) if self.speed else None
        return self.ratio


class BenchResult(msgspec.Struct, rename="camel"):
    """A whole run."""

    bench: str
    options: dict[str, object]
    schema: str = SCHEMA
    started_at: str = ""
    machine: dict[str, object] = {}
    versions: dict[str, str] = {}
    commands: dict[str, str] = {}
    cells: list[BenchCell] = []
    notes: list[str] = []
    failures: list[str] = []

    @classmethod
    def begin(cls, bench: str, **options: object) -> Self:
        """A result with the machine and the versions; an option is named as in JSON."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        versions = {"python": f"{platform.python_implementation()} {sys.version.split()[0]}"}
        return cls(bench, options, SCHEMA, now, _machine(), versions | find_versions(*LIBRARIES))

    def add(
        self,
        workload: str,
        batched: str,
        rounds: list[BenchRound],
        target: str = "penstock",
        client: str = "lean",
        batch: int | None = None,
    ) -> BenchCell:
        """Append a cell and print its throughput as progress."""
        cell = BenchCell(workload, target, client, batched, rounds, batch=batch)
        self.cells.append(cell)
        dropped = sum(one.dropped for one in rounds)
        if dropped:
            expected = dropped + sum(one.count for one in rounds)
            note = f"{dropped:,} of {expected:,} deliveries were dropped for slow readers"
            self.notes.append(f"{workload}, {target}: {note}")
        print_note(f"{workload}: {target} ({client}) {cell.speed:,.0f} a second" if cell.speed else workload)
        return cell

    def judge(self, words: str, is_met: bool) -> None:
        """Note whether a goal is met."""
        self.notes.append(f"{words} is {'met' if is_met else 'missed'}")

    def show(self, output: Output) -> int:
        """Print the result; the exit code says whether every message is accounted for."""
        if output.as_json:
            print_json(self)
        else:
            print_table(HEADINGS, to_rows(self.cells))
            for cell in self.cells:
                print_line(f"{cell.workload}, {cell.target} ({cell.client}): {cell.batched}")
            for note in self.notes:
                print_line(f"note: {note}")
        for failure in self.failures:
            print_note(f"error: {failure}")
        return EXIT_CHECK if self.failures else 0


def take_turns(sides: Sequence[S], rounds: int, measure: Callable[[S], BenchRound]) -> list[list[BenchRound]]:
    """The rounds of each side; the sides alternate, so that a slow minute hits all of them."""
    found: list[list[BenchRound]] = [[] for _ in sides]
    for _ in range(rounds):
        for done, side in zip(found, sides, strict=True):
            done.append(measure(side))
    return found


def parse_names(what: str, text: str, known: Sequence[str]) -> list[str]:
    """Names with commas between them, each of which must be known."""
    names = text.split(",")
    for name in names:
        if name not in known:
            refuse(f"there is no {what} `{name}`", f"use one or more of {', '.join(known)}, with commas")
    return names


def refuse(message: str, hint: str | None = None) -> None:
    raise PenstockError(Refusal("InvalidRequest", message, hint=hint))


def find_versions(*libraries: str) -> dict[str, str]:
    """The installed ones with their versions."""
    found = {}
    for name in libraries:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
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


def to_rows(cells: list[BenchCell]) -> list[list[object]]:
    """One row a cell, with a bar for its throughput among those of its kind."""
    best: dict[str, float] = {}
    for cell in cells:
        kind = cell.workload.split(",")[0]
        best[kind] = max(best.get(kind, 0.0), cell.speed)
    rows: list[list[object]] = []
    for cell in cells:
        top = best[cell.workload.split(",")[0]]
        times = [_number(cell.middle_ms(name), 2) for name in ("p50", "p95", "p99", "max")]
        cpu = [_number(cell.middle(f"{who}_cpu_us")) for who in ("server", "producer", "consumer")]
        rows.append(
            [
                cell.workload,
                f"{cell.target} ({cell.client})",
                f"{cell.speed:,.0f}" if cell.speed else "-",
                "█" * round(BAR_CELLS * cell.speed / top) if top else "",
                *cpu,
                "/".join(times) if times[0] != "-" else "-",
                _number(cell.middle("server_rss_mib"), 0),
                _remarks(cell),
            ]
        )
    return rows


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _remarks(cell: BenchCell) -> str:
    words = []
    if cell.ratio is not None:
        words.append(f"ours is {cell.ratio:.2f}x" + (" (a tie)" if 1 / 1.15 < cell.ratio < 1.15 else ""))
    for field, text in (
        ("bytes_each", "{:,.0f} bytes each"),
        ("server_cpu_share", "{:.2%} of a core"),
        ("others_per_second", "{:,.0f} a second without the sender"),
        ("frame_cpu_us", "{:,.1f} us a frame"),
    ):
        if (value := cell.middle(field)) is not None:
            words.append(text.format(value))
    return ", ".join(words)
