"""`make test`: the parts of the suite side by side, with the progress of all of them.

    python -m tests.parts

A part is a pytest run of its own, or a command such as the checks of style and types. The longest part starts first and is the least
nice, because the others fill the time that it waits for a JVM. While the parts run, one line says how far each is; at the end each part's
output follows, the failed ones last.

Parts take the processor from one another, and a process that a test waits for may starve. So a few tests that failed run once more, alone.
One that fails again fails the run; one that passes is listed as unsteady, which is a fault of the test or of the code, to be repaired.
"""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pytest

PROGRESS = "PENSTOCK_TEST_PROGRESS"
"""The file where a part says how far it is; another one, with the suffix `.failed`, gets the tests that failed."""
ALONE_MAX = 4
"""Failed tests of all parts that run once more; when there are more, the cause is no starved process."""
SHOWN_EVERY_S = {True: 1.0, False: 20.0}
"""By whether a person watches: a terminal's line is rewritten, a log's is added."""
# Processes that live for seconds gain nothing from the optimising compiler, which would take a core from the others, and little from
# verifying the classes that Spark ships.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


TESTS_FAILED = 1
"""pytest's exit code for a run that ended with failures; the others say that it broke."""


class Part(NamedTuple):
    """A pytest run of these paths, or a command. `nice` lets the longest part have its turn first."""

    name: str
    paths: tuple[str, ...] = ()
    nice: int = 0
    is_rest: bool = False
    command: tuple[str, ...] = ()


PARTS = (
    # In the order in which they use the one pipeline, which then ends. Spark gives a Python worker 10 s to start: others yield to it.
    # The last folders make it as long as the others.
    Part(
        "spark",
        (
            "tests/docs/test_pipeline_documents.py",
            "tests/spark/pipeline/test_process.py",
            "tests/spark/test_notebooks.py",
            "tests/spark",
            "tests/client",
            "tests/cli",
        ),
    ),
    # Of about the same length, so that no core is idle at the end. The browser starts when the checks have ended.
    Part("servers", ("tests/integration", "tests/server/cluster"), 8),
    Part("journal", ("tests/journal", "tests/simulation", "tests/bench", "tests/console"), 10),
    Part("rest", (), 10, is_rest=True),
    Part("checks", (), 10, command=("make", "--no-print-directory", "checks")),
)


def command(part: Part) -> list[str]:
    """The command that a part runs."""
    words = part.command or (sys.executable, "-m", "pytest", "-p", "tests.parts", *arguments(part))
    return ["nice", "-n", str(part.nice), *words]


def arguments(part: Part) -> list[str]:
    """The paths that a part runs, and the paths of other parts inside them that it leaves out."""
    others = [path for other in PARTS if other is not part for path in other.paths]
    if part.is_rest:
        return [f"--ignore={path}" for path in others]
    inside = [path for path in others if any(path.startswith(f"{own}/") for own in part.paths)]
    return [*part.paths, *(f"--ignore={path}" for path in inside)]


class Run:
    """A part that runs."""

    def __init__(self, part: Part, folder: Path) -> None:
        self.part = part
        self.log = folder / f"{part.name}.log"
        self.progress = folder / f"{part.name}.progress"
        self.progress.touch()
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command(part),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment() | {PROGRESS: str(self.progress), "JAVA_TOOL_OPTIONS": QUICK_JAVA},
            )

    def failed(self) -> list[str]:
        """The tests that failed."""
        file = self.progress.with_suffix(".failed")
        return file.read_text().splitlines() if file.exists() else []

    def state(self) -> str:
        """How far it is, in a few words."""
        done, _, rest = self.progress.read_text().partition("/")
        total, _, failed = rest.partition("/")
        words = [self.part.name]
        if not self.part.command:
            words.append(f"{done or 0}/{total or '?'}")
        if failed.strip("0"):
            words.append(f"({failed} failed)")
        if self.process.poll() is not None:
            words.append("FAILED" if self.process.returncode else "done")
        return " ".join(words)


def _environment() -> dict[str, str]:
    """This one, in which Python keeps what it compiles: hundreds of processes load the same code."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def main() -> int:
    """Run every part; 0 when all of them passed."""
    started = time.monotonic()
    watched = sys.stdout.isatty()
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(part, Path(folder)) for part in PARTS]
        try:
            shown = 0.0
            while any(run.process.poll() is None for run in runs):
                if time.monotonic() - shown >= SHOWN_EVERY_S[watched]:
                    shown = time.monotonic()
                    line = f"{shown - started:4.0f} s  " + "   ".join(run.state() for run in runs)
                    print(f"\r\x1b[K{line}" if watched else line, end="" if watched else "\n", flush=True)
                _wait_a_moment(runs)
        finally:
            for run in runs:
                run.process.terminate()
                run.process.wait()
        for run in sorted(runs, key=lambda run: run.process.returncode):
            print(f"\n==> {run.part.name}: {'passed' if run.process.returncode == 0 else 'FAILED'}", flush=True)
            sys.stdout.write(run.log.read_text(errors="replace"))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = used.ru_utime + used.ru_stime
        print(f"\n==> all parts took {time.monotonic() - started:.0f} s, and {cpu_s:.0f} s of CPU", flush=True)
        again = to_repeat([(run.part, run.process.returncode, run.failed()) for run in runs])
        return 0 if again is not None and _pass_alone(again) else 1


def to_repeat(ended: "list[tuple[Part, int, list[str]]]") -> list[str] | None:
    """The failed tests that run once more, none when all passed; None when that cannot turn the outcome."""
    failed: list[str] = []
    for part, code, tests in ended:
        if code and (part.command or code != TESTS_FAILED or not tests):
            return None  # a check, or a run that broke
        failed += tests
    return failed if len(failed) <= ALONE_MAX else None


def _pass_alone(tests: list[str]) -> bool:
    """Run tests once more while nothing else runs, and list those that pass now."""
    if not tests:
        return True
    print(f"\n==> once more, alone: {len(tests)} failed", flush=True)
    broken = [test for test in tests if subprocess.run([sys.executable, "-m", "pytest", test], check=False).returncode]
    for test in tests:
        print(f"==> {'FAILED twice' if test in broken else 'UNSTEADY, passed alone'}: {test}", flush=True)
    return not broken


def _wait_a_moment(runs: list[Run]) -> None:
    running = next((run.process for run in runs if run.process.poll() is None), None)
    if running is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(0.2)


# Below: the plugin that each part's pytest loads, `-p tests.parts`.

_count = {"done": 0, "total": 0, "failed": 0}


def _say() -> None:
    if PROGRESS in os.environ:
        file = Path(os.environ[PROGRESS])
        whole = file.with_suffix(".new")
        whole.write_text("{done}/{total}/{failed}".format_map(_count))
        whole.replace(file)


def _note_failed(nodeid: str) -> None:
    if PROGRESS in os.environ:
        file = Path(os.environ[PROGRESS]).with_suffix(".failed")
        known = file.read_text().splitlines() if file.exists() else []
        if nodeid not in known:
            file.write_text("\n".join([*known, nodeid]) + "\n")


def pytest_collection_modifyitems(config: "pytest.Config", items: "list[pytest.Item]") -> None:
    items.sort(key=lambda item: place(config.args, item.nodeid))


def place(paths: list[str], nodeid: str) -> int:
    """The place of a test in the order of the given paths: pytest itself merges a file into a folder that follows it."""
    return next(
        (number for number, path in enumerate(paths) if nodeid.startswith((f"{path}/", f"{path}::"))), len(paths)
    )


def pytest_collection_finish(session: "pytest.Session") -> None:
    _count["total"] = len(session.items)
    _say()


def pytest_runtest_logreport(report: "pytest.TestReport") -> None:
    if report.failed:
        _count["failed"] += 1
        _note_failed(report.nodeid)
    if report.when == "teardown":
        _count["done"] += 1
        _say()


if __name__ == "__main__":
    sys.exit(main())
