"""The soak: both runs, the figures of each, and the bounds that fail a run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.bench.soak.commands import BOUNDS, judge
from tests.server_process import environment

GOOD = {
    "longestTurnMs": 20.0,
    "serverRssMib": 200.0,
    "relayRssMib": 50.0,
    "lost": 0.0,
    "p99Ms": 9.0,
    "attackersCpuS": 1.0,
}


def test_a_run_within_its_bounds_has_no_failures() -> None:
    assert judge(GOOD, {**GOOD, "p99Ms": 2.0}) == []


@pytest.mark.parametrize("name", [*BOUNDS, "p99Ms"])
def test_each_bound_fails_a_run_alone(name: str) -> None:
    (failure,) = judge({**GOOD, name: 1_000.0}, {**GOOD, "p99Ms": 2.0})
    assert ("p99" if name == "p99Ms" else name) in failure


def test_a_long_turn_fails_a_run_whatever_the_control_run_shows() -> None:
    assert len(judge({**GOOD, "longestTurnMs": 60.0}, {**GOOD, "longestTurnMs": 320.0, "p99Ms": 2.0})) == 1


@pytest.mark.more
def test_a_short_soak_loses_nothing_and_reports_both_runs(tmp_path) -> None:
    """On a busy machine a bound may be exceeded, which is code 3; an envelope may not be lost."""
    words = ["soak", "--seconds", "3", "--rate", "100", "--connections", "20", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "bench", *words],
        capture_output=True,
        text=True,
        env=environment(TMPDIR=str(tmp_path)),
        timeout=180,
        check=False,
    )
    found = json.loads(done.stdout)
    assert done.returncode == (3 if found["failures"] else 0), done.stderr
    assert [cell["workload"] for cell in found["cells"]] == ["attack", "burn"]
    assert all(cell["rounds"][0]["count"] == 300 for cell in found["cells"])
    attacked, control = (json.loads(note.partition(": ")[2]) for note in found["notes"])
    assert attacked.keys() == control.keys() == {*GOOD, "longestTurnCpuMs"}
    assert set(judge(attacked, control)) == set(found["failures"])
    assert list(tmp_path.iterdir()) == []
