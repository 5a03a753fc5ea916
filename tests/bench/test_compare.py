"""`penstock bench compare`: what names a version, and a short comparison of this version with itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.bench.compare import CompareResult, Comparison, ServerVersion, find_version, show
from penstock.bench.harness.ratios import Ratio
from penstock.cli import main
from penstock.cli.options import PLAIN
from tests.server_process import environment

ROOT = Path(__file__).parents[2]


def make_interpreter(folder):
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("")
    return folder / "bin" / "python"


def test_a_checkout_runs_with_its_own_interpreter_or_with_ours(tmp_path):
    (tmp_path / "src" / "penstock").mkdir(parents=True)
    assert find_version(tmp_path) == ServerVersion(sys.executable, tmp_path / "src")
    python = make_interpreter(tmp_path / ".venv")
    assert find_version(tmp_path) == ServerVersion(str(python), tmp_path / "src")


def test_an_environment_and_an_interpreter_run_what_they_have_installed(tmp_path):
    python = make_interpreter(tmp_path)
    assert find_version(tmp_path) == find_version(python) == ServerVersion(str(python), None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", str(ROOT)], "is no version of Penstock"),
        ([str(ROOT), str(ROOT), "--only", "speed"], "there is no workload `speed`"),
        ([str(ROOT), str(ROOT), "--pairs", "0"], "at least one pair"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, said, capsys):
    assert main(["bench", "compare", *words]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("low", "code"), [(1.04, 3), (1.02, 0)])
def test_the_exit_code_says_whether_a_whole_interval_is_above_the_limit(low, code, capsys):
    found = [Comparison("queue", [10.0], [10.6], Ratio(1.06, low, 1.09))]
    result = CompareResult("compare", {}, max_ratio=1.03, comparisons=found)
    assert show(result, PLAIN) == code
    shown = capsys.readouterr().out
    assert "1.06" in shown and f"{low:.3f} to 1.090" in shown and ("above 1.03" in shown) == (code == 3)


def run_compare(folder, *words):
    command = [
        sys.executable,
        "-m",
        "penstock",
        "bench",
        "compare",
        str(ROOT / "src" / ".."),
        str(ROOT),
        *words,
    ]
    variables = environment(TMPDIR=str(folder))
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60, check=False)


@pytest.mark.promise(
    "Surface and speed", "`penstock bench compare` measures two versions in alternating pairs"
)
def test_a_version_compared_with_itself(tmp_path):
    words = ["--only", "queue", "--pairs", "1", "--seconds", "0.3", "--max-ratio", "100", "--json"]
    done = run_compare(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "queue, pair 1 of 1" in done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "penstock.bench/1" and found["bench"] == "compare" and found["maxRatio"] == 100
    [one] = found["comparisons"]
    assert one["workload"] == "queue" and one["oldUs"][0] > 0 and one["newUs"][0] > 0
    assert one["ratio"]["low"] <= one["ratio"]["median"] <= one["ratio"]["high"]
    assert list(tmp_path.iterdir()) == []
