"""Every test file belongs to exactly one part of `make test`."""

import os
import subprocess
import sys

from tests import parts
from tests.paths import ROOT


def runs(part: parts.Part, path: str) -> bool:
    if part.command:
        return False
    words = parts.arguments(part)
    left_out = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    wanted = [word for word in words if not word.startswith("--")] or ["tests"]
    return within(path, wanted) and not within(path, left_out)


def within(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def test_every_test_file_is_in_one_part() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 200
    found = {path: [part.name for part in parts.PARTS if runs(part, path)] for path in files}
    assert {path: names for path, names in found.items() if len(names) != 1} == {}


def test_the_paths_of_the_parts_exist() -> None:
    assert [path for part in parts.PARTS for path in part.paths if not (ROOT / path).exists()] == []


def test_the_commands_of_the_parts_are_targets_of_the_makefile() -> None:
    targets = [line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines()]
    assert [part.name for part in parts.PARTS if part.command and part.command[-1] not in targets] == []


def test_a_file_that_is_named_before_its_folder_runs_first() -> None:
    paths = list(parts.PARTS[0].paths)
    first, second, _, folder, *_ = paths
    assert second.startswith(f"{folder}/")
    tests = [f"{folder}/lake/test_table.py::test_a", f"{second}::test_b[1]", f"{first}::test_c", f"{second}::test_a"]
    ordered = sorted(tests, key=lambda test: parts.place(paths, test))
    assert ordered == [tests[2], tests[1], tests[3], tests[0]]


FAST, CHECKS = parts.Part("fast", ("tests/core",)), parts.Part("checks", command=("make", "checks"))


def test_a_few_failed_tests_run_once_more_alone() -> None:
    assert parts.to_repeat([(FAST, 0, []), (CHECKS, 0, [])]) == []
    assert parts.to_repeat([(FAST, 1, ["tests/a.py::test_a"]), (CHECKS, 0, [])]) == ["tests/a.py::test_a"]


def test_a_failed_check_a_broken_run_and_many_failures_fail_at_once() -> None:
    assert parts.to_repeat([(FAST, 0, []), (CHECKS, 1, [])]) is None
    assert parts.to_repeat([(FAST, 2, ["tests/a.py::test_a"]), (CHECKS, 0, [])]) is None
    assert parts.to_repeat([(FAST, 1, []), (CHECKS, 0, [])]) is None
    many = [f"tests/a.py::test_{number}" for number in range(parts.ALONE_MAX + 1)]
    assert parts.to_repeat([(FAST, 1, many), (CHECKS, 0, [])]) is None
    assert parts.to_repeat([(FAST, 1, many[1:]), (CHECKS, 0, [])]) == many[1:]


def test_a_part_notes_which_tests_failed(tmp_path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text("def test_a(): assert False\ndef test_b(): assert True\n")
    progress = tmp_path / "some.progress"
    words = [sys.executable, "-m", "pytest", "-p", "tests.parts", "-c", str(ROOT / "pyproject.toml"), str(file)]
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | {parts.PROGRESS: str(progress)}, capture_output=True, check=False
    )
    assert done.returncode == parts.TESTS_FAILED
    noted = progress.with_suffix(".failed").read_text().splitlines()
    assert [test.rpartition("::")[2] for test in noted] == ["test_a"]
    assert progress.read_text() == "2/2/1"
