"""Growth: every axis, its sizes, the cells of each, and a machine that allows too few open files."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from penstock.bench.growth.commands import SIZES, explain_files, growth_config, growth_panels, largest_files
from penstock.bench.harness.result import BenchResult, BenchRound
from penstock.cli import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "streams,speed"], "there is no axis `speed`"),
        (["--max", "1"], "`--max 1` leaves nothing to measure"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, said, capsys):
    assert main(["bench", "growth", *words]) == 1
    assert said in capsys.readouterr().err


def test_only_connections_and_participants_need_open_files():
    assert largest_files({"streams": [100_000], "queued": [1_000_000]}) == 0
    assert largest_files({"connections": [1, 10_000], "participants": [2]}) == 10_000


def test_a_size_without_enough_open_files_says_what_it_needs():
    said = explain_files("connections", 10_000, 4_000)
    assert said.startswith("connections, 10,000 is left out") and "10,200 open files each" in said and "4,200" in said


def test_the_plot_has_a_line_for_each_axis_and_none_for_surveys():
    result = BenchResult.begin("growth", {})
    for workload, cpu_us, p99 in [
        ("streams, 1", 8.0, 0.3),
        ("streams, 1, surveyed", 200.0, 9.0),
        ("streams, 1,000", 9.0, 0.4),
        ("triggers, 1", 7.0, 0.2),
    ]:
        result.add(workload, "", [BenchRound(1, 1.0, 1.0, server_cpu_us=cpu_us, latency_ms={"p99": p99})])
    cost, p99 = growth_panels(result).values()
    assert cost == {"streams": [(1, 8.0), (1_000, 9.0)], "triggers": [(1, 7.0)]}
    assert p99 == {"streams": [(1, 0.3), (1_000, 0.4)], "triggers": [(1, 0.2)]}


@pytest.mark.parametrize("axis", SIZES)
def test_a_config_holds_what_the_axis_counts(axis):
    config = growth_config(axis, 10)
    assert len(config.get("triggers", [])) == (10 if axis == "triggers" else 0)
    members = [len(space["participants"]) for space in config.get("spaces", [])]
    assert members == ([10] if axis == "participants" else [])


def measured(found, *axes):
    """The cells of a run, two for each axis, which each prove a paced client and a reading of the loop."""
    cells = {cell["workload"]: cell["rounds"][0] for cell in found["cells"]}
    assert list(cells) == [workload for axis in axes for workload in (axis, f"{axis}, surveyed")]
    for done in cells.values():
        assert done["count"] > 0 and set(done["latencyMs"]) == {"p50", "p95", "p99", "max"}
        assert 0 <= done["longestTurnCpuMs"] <= done["longestTurnMs"]
    return cells


def test_a_short_run_measures_connections_and_a_space(bench):
    found = bench("growth", "--only", "connections,participants", "--max", "2", "--seconds", "0.1")
    measured(found, "connections, 1", "participants, 2")


@pytest.mark.more
def test_every_axis_is_measured_and_plotted(bench, tmp_path):
    plot_file = tmp_path / "growth.svg"
    found = bench("growth", "--max", "2", "--seconds", "0.3", "--durable", "--plot", str(plot_file))
    smallest = [f"{axis}, {sizes[0]}" for axis, sizes in SIZES.items()]
    cells = measured(found, *smallest)
    assert cells["queued, 1"]["bytesEach"] > 0
    assert ElementTree.parse(plot_file).getroot().tag.endswith("svg")


@pytest.mark.more
def test_many_streams_share_connections(bench):
    found = bench("growth", "--only", "streams,connections", "--max", "1000", "--seconds", "0.3")
    measured(found, "streams, 1", "streams, 1,000", "connections, 1", "connections, 100", "connections, 1,000")
