"""`penstock bench compare`: how versions are named, and a short comparison of this version with itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.compare import (
    CompareResult,
    Comparison,
    Ratio,
    ServerVersion,
    compute_ratio,
    find_version,
    order_of,
)
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


@pytest.mark.parametrize(("low", "code"), [(1.04, 3), (1.031, 3), (1.03, 0), (1.02, 0)])
def test_the_exit_code_says_whether_a_whole_interval_is_above_the_limit(low, code, capsys):
    found = [Comparison("queue", [10.0], [10.6], Ratio(1.06, low, 1.09))]
    result = CompareResult("compare", {}, max_ratio=1.03, comparisons=found)
    assert result.show(PLAIN) == code
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


@pytest.mark.more
@pytest.mark.promise("Benchmarks and robustness", "`penstock bench compare` measures two versions in alternating pairs")
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


TIMES = st.floats(1.0, 100.0)


def test_the_sides_alternate_so_that_drift_cancels():
    flat = [side for pair in range(4) for side in order_of(pair)]
    assert flat == ["old", "new", "new", "old", "old", "new", "new", "old"]
    places = {side: [place for place, one in enumerate(flat) if one == side] for side in ("old", "new")}
    assert sum(places["old"]) == sum(places["new"])


def test_equal_samples_have_a_ratio_of_one_without_width():
    assert compute_ratio([5.0, 7.0, 6.0], [5.0, 7.0, 6.0]) == Ratio(1.0, 1.0, 1.0)


def test_a_constant_factor_is_found_whatever_the_pairs_share():
    old = [5.0, 9.0, 4.0, 7.0]
    assert compute_ratio(old, [1.25 * value for value in old]) == Ratio(1.25, 1.25, 1.25)


@settings(max_examples=30)
@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=15))
def test_the_interval_holds_the_median_and_is_the_same_each_time(samples):
    old, new = [before for before, _ in samples], [after for _, after in samples]
    found = compute_ratio(old, new)
    ratios = [after / before for before, after in samples]
    assert min(ratios) - 1e-4 <= found.low <= found.median <= found.high <= max(ratios) + 1e-4
    assert compute_ratio(old, new) == found


def test_an_outlier_widens_the_interval_and_leaves_the_median():
    found = compute_ratio([10.0] * 11, [10.0] * 8 + [30.0] * 3)
    assert found.median == found.low == 1.0 and found.high == 3.0


@pytest.mark.parametrize(("old", "new"), [([], []), ([1.0], [1.0, 2.0])])
def test_samples_that_are_no_pairs_are_refused(old, new):
    with pytest.raises(ValueError, match="no pairs"):
        compute_ratio(old, new)
