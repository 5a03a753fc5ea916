"""The tree keeps the project's rules, and every checker catches a planted mistake."""

import subprocess
from collections.abc import Callable, Iterable
from functools import cache, partial

import pytest

from tests.paths import ROOT
from tests.tidy import checks, promises
from tests.tidy.checks import Problem

COVERAGE = "docs/reference/coverage.md"
PROMISES_MIN = 450
"""Fewer means that markers were lost, not that less is promised."""
DOCUMENT = "docs/reference/document.md"
TRANSPORT = "src/penstock/transports/transport.py"
CLIENT_TRANSPORT = "src/penstock/client/control/transport.py"

Checker = Callable[[str], list[Problem]]


@cache
def repository() -> tuple[str, ...]:
    """Every file that is tracked or would be, as paths from the root."""
    # A checkout may belong to another user than the one who runs the tests; listing it is harmless.
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.fail(f"the tidy test needs a git checkout: {listing.stderr.strip()}")
    return tuple(sorted(path for path in set(listing.stdout.split("\0")) if path and (ROOT / path).is_file()))


def python_files(*folders: str) -> list[str]:
    found = [path for path in repository() if path.endswith(".py") and path.startswith(folders)]
    assert found, f"no Python files under {', '.join(folders)}: the check would pass by checking nothing"
    return found


def pure_files() -> list[str]:
    return python_files("src/penstock/core/", "src/penstock/dialects/")


def read(path: str) -> str | None:
    """The text of a file, or nothing where it is missing or not text."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        return None


def assert_clean(paths: Iterable[str], check: Checker) -> None:
    report = [f"{path}:{problem.line}: {problem.message}" for path in paths for problem in check(read(path) or "")]
    assert not report, "\n" + "\n".join(report)


@pytest.mark.promise("Foundations", "core and dialects are pure: no I/O, clock or randomness")
def test_pure_code_has_no_clock_dice_or_input_output() -> None:
    assert_clean(pure_files(), checks.impure_code)


def test_pure_code_does_not_iterate_over_sets() -> None:
    assert_clean(pure_files(), checks.set_iteration)


def test_pure_modules_start_with_a_docstring() -> None:
    assert_clean(pure_files(), checks.missing_docstring)


def test_modules_are_named_by_nouns() -> None:
    report = [f"{path}: {problem.message}" for path in python_files("src/") for problem in checks.vague_name(path)]
    assert not report, "\n" + "\n".join(report)


def test_files_name_no_machine_registry_or_index() -> None:
    assert_clean(repository(), checks.machine_traces)


def test_source_holds_no_unfinished_work() -> None:
    assert_clean([path for path in repository() if path.startswith("src/")], checks.unfinished_work)


def test_tests_do_not_sleep_for_a_fixed_time() -> None:
    assert_clean(python_files("tests/"), checks.fixed_sleeps)


def test_every_requirement_names_tests_that_exist() -> None:
    assert_clean([DOCUMENT], partial(checks.coverage_gaps, read=read))


def test_the_page_of_promises_is_fresh() -> None:
    page = promises.gather(promises.sources())
    empty = [section for section, rows in page.items() if not rows]
    assert not empty, f"no test keeps a promise of: {', '.join(empty)}"
    assert sum(map(len, page.values())) >= PROMISES_MIN
    assert (ROOT / COVERAGE).read_text() == promises.render(page), (
        f"{COVERAGE} is stale: run `python -m tests.tidy.promises > {COVERAGE}`"
    )


def test_a_marker_is_a_row_wherever_it_stands() -> None:
    source = (
        "@pytest.mark.promise('Foundations', 'a')\ndef test_a(): ...\n"
        "class TestB:\n    @pytest.mark.promise('Foundations', 'a')\n    def test_c(self): ...\n"
        "TestD = M.TestCase\nTestD.pytestmark = [pytest.mark.promise('Views', 'x | y')]\n"
    )
    page = promises.gather([("tests/test_x.py", source)])
    assert page["Foundations"] == {"a": ["tests/test_x.py::test_a", "tests/test_x.py::TestB::test_c"]}
    assert "| x \\| y | `tests/test_x.py::TestD` |" in promises.render(page)


@pytest.mark.parametrize("mark", ["'Foundation', 'a'", "'Foundations', TEXT", "'Foundations'"])
def test_a_marker_that_no_page_can_show_is_an_error(mark: str) -> None:
    with pytest.raises(ValueError):
        promises.gather([("tests/test_x.py", f"@pytest.mark.promise({mark})\ndef test_a(): ...\n")])


def test_readme_is_short() -> None:
    assert (ROOT / "README.md").is_file(), "README.md is missing"
    assert_clean(["README.md"], checks.long_readme)


def test_root_folder_is_not_crowded() -> None:
    problems = checks.crowded_root(repository())
    assert not problems, problems[0].message


@pytest.mark.promise("Foundations", "a connection is written to once a turn, in one file")
def test_two_files_write_to_a_transport() -> None:
    writers = (TRANSPORT, CLIENT_TRANSPORT)  # one at each end of the wire
    assert_clean([path for path in python_files("src/") if path not in writers], checks.raw_transport_writes)


COVERED = (
    "def test_a(): ...\nasync def test_b(): ...\nclass TestC:\n    def test_d(self): ...\nTestE = Machine.TestCase\n"
)


def coverage_gaps(cells: str) -> list[Problem]:
    """Run the coverage check on a table that is long enough, with one more row."""
    row = "| always | `tests/test_x.py::test_a` |\n"
    table = "| requirement | tests |\n| --- | :-: |\n" + row * checks.COVERAGE_ROWS_MIN + cells
    return checks.coverage_gaps(table, {"tests/test_x.py": COVERED}.get)


PLANTED: list[tuple[Callable[[str], list[Problem]], str]] = [
    *(
        (checks.impure_code, f"import {name}")
        for name in (
            "asyncio",
            "logging",
            "os.path",
            "random",
            "secrets",
            "socket",
            "threading",
            "time as clock",
        )
    ),
    (checks.impure_code, "from os import path"),
    (checks.impure_code, "def f():\n    from time import monotonic"),
    (checks.impure_code, "import datetime\ndatetime.datetime.now()"),
    (checks.impure_code, "from datetime import datetime as dt\ndt.utcnow()"),
    (checks.impure_code, "from uuid import uuid4"),
    (checks.impure_code, "import uuid\nuuid.uuid4()"),
    (checks.set_iteration, "for x in {1, 2}: pass"),
    (checks.set_iteration, "for x in set(items): pass"),
    (checks.set_iteration, "for i, x in enumerate(frozenset(items)): pass"),
    (checks.set_iteration, "[x for x in {y for y in items}]"),
    (checks.vague_name, "src/penstock/core/utils.py"),
    (checks.vague_name, "src/penstock/common/queue.py"),
    (checks.missing_docstring, "import msgspec\n'''too late'''"),
    (checks.machine_traces, "see /" + "work/notes.md"),
    (checks.machine_traces, "path = '/" + "farm/data'"),
    (checks.machine_traces, "https://files.python" + "hosted.org/x.whl"),
    (checks.machine_traces, "https://pypi" + ".org/simple"),
    (checks.machine_traces, "https://registry.npmjs" + ".org/x.tgz"),
    (checks.machine_traces, "deb http://deb.debian" + ".org/debian stable main"),
    (checks.machine_traces, "--extra-index" + "-url file:///simple"),
    (checks.machine_traces, "index" + "-url = https://example.com/simple"),
    (checks.unfinished_work, "x = 1  # TODO later"),
    (checks.unfinished_work, "# FIXME"),
    (checks.unfinished_work, "# XXX"),
    (checks.unfinished_work, "raise NotImplementedError"),
    (checks.fixed_sleeps, "import time\ntime.sleep(0.1)"),
    (checks.fixed_sleeps, "import asyncio as aio\nasync def f(): await aio.sleep(1)"),
    (checks.fixed_sleeps, "from asyncio import sleep as nap\nasync def f(): await nap(delay=1 / 10)"),
    (coverage_gaps, "| no test | |"),
    (coverage_gaps, "| no such file | `tests/test_y.py::test_a` |"),
    (coverage_gaps, "| no such test | `tests/test_x.py::test_a`, `tests/test_x.py::test_z` |"),
    (coverage_gaps, "| no such method | `tests/test_x.py::TestC::test_a` |"),
    (
        lambda text: checks.coverage_gaps(text, {"t.py": COVERED}.get),
        "| a | b |\n|---|---|\n| x | `t.py::test_a` |",
    ),
    (checks.long_readme, "a line\n" * checks.README_LINES_MAX),
    (lambda text: checks.crowded_root(text.split()), " ".join(f"file{n}" for n in range(21))),
    (checks.raw_transport_writes, "self._transport.write(b'')"),
    (checks.raw_transport_writes, "transport.writelines([b''])"),
]

HARMLESS: list[tuple[Callable[[str], list[Problem]], str]] = [
    (checks.impure_code, "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)\nself.now()"),
    (checks.impure_code, "from .time import Deadline\nimport hmac"),
    (checks.set_iteration, "for x in sorted({1, 2}): pass\nfor x in items: pass\nif x in {1}: pass"),
    (checks.vague_name, "src/penstock/core/leases.py"),
    (checks.missing_docstring, '"""Leases."""'),
    (checks.machine_traces, "see docs/work/plan.md and https://example.com"),
    (checks.unfinished_work, "todos = []"),
    (checks.fixed_sleeps, "import asyncio\nasync def f(): await asyncio.sleep(0)\nclock.sleep(5)"),
    (coverage_gaps, "| all | `tests/test_x.py::test_b[case 1]` `tests/test_x.py::TestC::test_d` |"),
    (coverage_gaps, "| stateful | `tests/test_x.py::TestE::runTest` `tests/test_x.py::TestE` |"),
    (checks.long_readme, "a line\n" * (checks.README_LINES_MAX - 1)),
    (lambda text: checks.crowded_root(text.split()), ".hidden " + " ".join(f"d/file{n}" for n in range(30))),
    (checks.raw_transport_writes, "self.outbox.write(b'')\ntransport.close()"),
]


@pytest.mark.parametrize(("check", "planted"), PLANTED)
def test_checker_catches_a_planted_mistake(check: Checker, planted: str) -> None:
    assert check(planted), f"nothing was reported for:\n{planted}"


@pytest.mark.parametrize(("check", "harmless"), HARMLESS)
def test_checker_passes_harmless_text(check: Checker, harmless: str) -> None:
    assert check(harmless) == []
