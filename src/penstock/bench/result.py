"""What a bench run says: one JSON document of a stable shape, and the same as a table."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from statistics import median

import msgspec

SCHEMA = "penstock.bench/1"
LIBRARIES = ("penstock", "uvloop", "msgspec", "aiohttp", "redis", "hiredis", "pyzmq")
BAR_CELLS = 20


class Round(msgspec.Struct, rename="camel", omit_defaults=True):
    """One measurement."""

    count: int
    seconds: float
    per_second: float
    server_cpu_us: float | None = None
    """CPU of the server per envelope, user and kernel, in microseconds."""
    server_rss_mib: float | None = None
    producer_cpu_us: float | None = None
    consumer_cpu_us: float | None = None
    latency_ms: dict[str, float] | None = None
    late_ms: dict[str, float] | None = None
    """How far an open-loop producer was behind its own schedule."""
    bytes_each: float | None = None
    server_cpu_share: float | None = None
    """Share of one core."""
    frame_cpu_us: float | None = None
    """Where one frame is delivered to many: CPU of the server per frame, and not per delivery."""
    others_per_second: float | None = None
    """The same deliveries without those to the sender itself."""


class Cell(msgspec.Struct, rename="camel", omit_defaults=True):
    """One workload on one server with one client."""

    workload: str
    target: str
    client: str
    batched: str
    """What travelled together, in words."""
    rounds: list[Round]
    accounted: bool = True
    batch: int | None = None
    ratio: float | None = None
    """Our throughput over this peer's, both with the lean client; 0.87 to 1.15 is a tie."""

    def middle(self, pick: Callable[[Round], float | None]) -> float | None:
        values = [value for one in self.rounds if (value := pick(one)) is not None]
        return median(values) if values else None

    def middle_ms(self, name: str) -> float | None:
        return self.middle(lambda one: (one.latency_ms or {}).get(name))


class Outcome(msgspec.Struct, rename="camel"):
    """A whole run."""

    bench: str
    options: dict[str, object]
    schema: str = SCHEMA
    started_at: str = ""
    machine: dict[str, object] = {}
    versions: dict[str, str] = {}
    commands: dict[str, str] = {}
    cells: list[Cell] = []
    notes: list[str] = []
    failures: list[str] = []


def begin(bench: str, options: dict[str, object]) -> Outcome:
    return Outcome(
        bench,
        options,
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        machine=_machine(),
        versions=_versions(),
    )


def _machine() -> dict[str, object]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = [round(value, 2) for value in os.getloadavg()]
    return {
        "cores": cores,
        "kernel": f"{platform.system()} {platform.release()}",
        "cpu": _processor(),
        "loadBefore": load,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(
                (line.partition(":")[2].strip() for line in file if line.startswith("model name")), ""
            )
    except OSError:
        return platform.processor()


def _versions() -> dict[str, str]:
    found = {"python": f"{platform.python_implementation()} {sys.version.split()[0]}"}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def rows(outcome: Outcome) -> list[list[object]]:
    """The table: one row a cell, with a bar for its throughput among those of its kind."""
    best: dict[str, float] = {}
    for cell in outcome.cells:
        best[_kind(cell)] = max(best.get(_kind(cell), 0.0), cell.middle(lambda one: one.per_second) or 0.0)
    table: list[list[object]] = []
    for cell in outcome.cells:
        speed = cell.middle(lambda one: one.per_second)
        top = best[_kind(cell)]
        bar = "█" * round(BAR_CELLS * speed / top) if speed and top else ""
        table.append(
            [
                cell.workload,
                f"{cell.target} ({cell.client})" if cell.client else cell.target,
                f"{speed:,.0f}" if speed else "-",
                bar,
                _number(cell.middle(lambda one: one.server_cpu_us)),
                _number(cell.middle(lambda one: one.producer_cpu_us)),
                _number(cell.middle(lambda one: one.consumer_cpu_us)),
                "/".join(_number(cell.middle_ms(name), 2) for name in ("p50", "p95", "p99", "max"))
                if cell.middle_ms("p50") is not None
                else "-",
                _number(cell.middle(lambda one: one.server_rss_mib), 0),
                _remark(cell),
            ]
        )
    return table


HEADINGS = (
    "workload", "server (client)", "per second", "", "server us", "producer us", "consumer us",
    "p50/p95/p99/max ms", "RSS MiB", "",
)  # fmt: skip


def _kind(cell: Cell) -> str:
    return cell.workload.split(",")[0]


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _remark(cell: Cell) -> str:
    words = []
    if cell.ratio is not None:
        words.append(f"ours is {cell.ratio:.2f}x" + (" (a tie)" if 1 / 1.15 < cell.ratio < 1.15 else ""))
    bytes_each = cell.middle(lambda one: one.bytes_each)
    if bytes_each is not None:
        words.append(f"{bytes_each:,.0f} bytes each")
    share = cell.middle(lambda one: one.server_cpu_share)
    if share is not None:
        words.append(f"{share:.2%} of a core")
    others = cell.middle(lambda one: one.others_per_second)
    if others is not None:
        words.append(f"{others:,.0f} a second without the sender")
    frame_us = cell.middle(lambda one: one.frame_cpu_us)
    if frame_us is not None:
        words.append(f"{frame_us:,.1f} us a frame")
    return ", ".join(words)
