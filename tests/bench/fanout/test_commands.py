"""The fan-out bench: rejected options, plots, and a machine without Node."""

from __future__ import annotations

import pytest

from penstock.bench.fanout.commands import growth_lines, install_relay
from penstock.bench.harness.result import BenchResult, BenchRound
from penstock.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "targeted,speed"], "there is no kind `speed`"),
        (["--size", "11"], "at least 12 bytes"),
        (["--participants", "1"], "at least 2 participants"),
        (["--only", "table", "--plot", "x.svg"], "a plot shows the growth"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, said, capsys):
    assert main(["bench", "fanout", *words]) == 1
    assert said in capsys.readouterr().err


def test_a_machine_without_node_has_no_peer_and_the_reason_is_noted(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert install_relay() == "not installed: node, npm"
    assert list(tmp_path.iterdir()) == []


def test_the_plot_shows_the_growth_and_no_other_cell():
    result = BenchResult.begin("fanout", {})
    for workload, speed in [
        ("targeted, 1 to 1 of 50", 9.0),
        ("growth, 10 participants, targeted", 200.0),
        ("growth, 1,000 participants, targeted", 20_000.0),
        ("growth, 10 participants, broadcast", 1_000.0),
    ]:
        result.add(workload, "", [BenchRound(1, 1.0, speed)])
    assert growth_lines(result) == {"targeted": [(10, 200), (1_000, 20_000)], "broadcast": [(10, 1_000)]}
