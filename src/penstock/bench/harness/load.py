"""A load process: its job, its report, and the counters that it shares with the others.

`python -m penstock.bench.harness.load ROLE JOB` calls the function that ROLE names with the job, and prints one
`LoadLine` as JSON for each notice and for the report. A role without a dot is a peer's, in `benches/`.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import struct
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

import penstock
from penstock.bench.harness.result import BenchCell, BenchError

BENCHES = Path(penstock.__file__).parents[2] / "benches"
UNKNOWN = -1
PARENT_POLL_S = 0.5
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}


class LoadJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What every load process needs; each family adds its own fields."""

    port: int = 0
    seconds: float = 1.0
    window: int = 8192  # messages in flight at most
    board: str = ""  # the file of the shared counters


class LoadReport(msgspec.Struct, omit_defaults=True):
    """What a load process has done."""

    count: int = 0
    first_ns: int = 0
    last_ns: int = 0
    cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    latencies: dict[str, float] | None = None  # milliseconds by percentile
    late: dict[str, float] | None = None  # how far an open-loop producer was behind its schedule, in milliseconds
    error: str | None = None
    received: int = 0
    missing: int = 0  # frames that were expected here and did not arrive
    echoes: int = 0  # deliveries to the sender itself

    @property
    def seconds(self) -> float:
        return max(self.last_ns - self.first_ns, 1) / 1e9


class LoadLine(msgspec.Struct, omit_defaults=True):
    """One line on a load's stdout."""

    is_ready: bool = False
    note: str | None = None
    cell: BenchCell | None = None
    report: LoadReport | None = None


class Board:
    """Two counters in a mapped file, with one writer each: the consumer's position, and the total once it is known."""

    acked = property(lambda self: self.numbers[0], lambda self, count: self.numbers.__setitem__(0, count))
    total = property(lambda self: self.numbers[1], lambda self, count: self.numbers.__setitem__(1, count))

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            self.numbers = memoryview(mmap.mmap(file.fileno(), 16)).cast("q")

    @staticmethod
    def create(path: Path) -> None:
        path.write_bytes(struct.pack("=qq", 0, UNKNOWN))


def percentiles_ms(values_ns: list[int]) -> dict[str, float]:
    """Nearest-rank percentiles, in milliseconds."""
    ordered = sorted(values_ns)
    found = {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in SHARES.items() if ordered}
    return {name: round(value_ns / 1e6, 3) for name, value_ns in found.items()}


def announce(**fields: Any) -> None:
    """Send a `LoadLine` to the parent; without fields, the message is that the load is ready."""
    os.write(1, msgspec.json.encode(LoadLine(not fields, **fields)) + b"\n")


def import_role(module: str) -> Any:
    """A module with loads: ours, or a peer's in `benches/`; None when this is no checkout."""
    if "." in module:
        return import_module(f"penstock.bench.{module}")
    if not (BENCHES / f"{module}.py").is_file():
        return None
    sys.path.append(str(BENCHES))
    return import_module(module)


def perform(role: str, text: str) -> LoadReport:
    """Call the function of a role with its job."""
    module, _, name = role.partition(":")
    function = getattr(import_role(module), name)
    job = msgspec.json.decode(text, type=get_type_hints(function)["job"])
    before_s = time.process_time()
    report: LoadReport = function(job)
    report.cpu_s = time.process_time() - before_s
    return report


def _follow_parent(parent: int) -> None:
    """End this process when the bench is gone, however that ended."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)


def main(role: str, text: str) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_follow_parent, args=[os.getppid()], daemon=True).start()
    try:
        report = perform(role, text)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not isinstance(error, (OSError, ValueError, BenchError)):
            traceback.print_exc()
        report = LoadReport(error=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    announce(report=report)
    return 0 if report.error is None else 1


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a thread of Spark or of the loop may still be blocked
