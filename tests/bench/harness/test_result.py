"""The result of a run: medians, ratios, notes, the table and the plots."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree

import pytest

from penstock.bench.harness.result import (
    BenchCell,
    BenchResult,
    BenchRound,
    Side,
    draw,
    find_versions,
    save_plot,
)
from penstock.cli import main
from penstock.cli.options import PLAIN, Output
from penstock.core.errors import PenstockError


def cell(*speeds, **fields):
    return BenchCell("closed loop", "penstock", "lean", "", [BenchRound(1, 1.0, speed, **fields) for speed in speeds])


def test_a_round_divides_cpu_by_its_messages():
    done = BenchRound.timed(200, 4.0, 3 * 1024 * 1024, {"server": 0.001, "producer": 0.002}, frames=7)
    assert (done.per_second, done.server_cpu_us, done.producer_cpu_us, done.server_rss_mib) == (50, 5, 10, 3)
    assert done.consumer_cpu_us is None and done.frames == 7


def test_medians_leave_out_rounds_without_the_figure():
    found = cell(10.0, 30.0, 20.0)
    found.rounds[0].bytes_each = 7.0
    assert found.speed == 20.0 and found.middle("bytes_each") == 7.0 and found.middle("wall_s") is None


def test_a_ratio_is_ours_over_the_peers():
    peer = cell(80.0)
    peer.compare(cell(100.0))
    assert peer.ratio == 1.25
    idle = cell(0.0)
    idle.compare(cell(100.0))
    assert idle.ratio is None


def test_dropped_deliveries_are_noted():
    result = BenchResult.begin("fanout", {})
    result.add("broadcast", "", [BenchRound(90, 1.0, 90.0, dropped=10)])
    assert result.notes == ["broadcast, penstock: 10 of 100 deliveries were dropped for slow readers"]


@pytest.mark.parametrize(("failures", "code"), [([], 0), (["one was lost"], 3)])
def test_a_failure_is_exit_code_3_and_in_the_json(failures, code, capsys):
    result = BenchResult.begin("queue", {"seconds": 1})
    result.failures += failures
    assert result.show(Output(as_json=True)) == code
    found = json.loads(capsys.readouterr().out)
    assert found["failures"] == failures and found["options"] == {"seconds": 1}


def test_the_table_has_figures_and_remarks(capsys):
    times = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0}
    ours, theirs = cell(100.0, server_cpu_us=5.0, latency_ms=times), cell(50.0, bytes_each=1_000.0)
    theirs.compare(ours)
    assert ours.to_row()[2:4] == ["100", "5.0"] and ours.to_row()[6] == "1.00/2.00/3.00/4.00"
    assert theirs.to_row()[6] == "-" and theirs.to_row()[-1] == "ours is 2.00x, 1,000 bytes each"
    result = BenchResult.begin("queue", {})
    result.cells += [ours, theirs]
    result.notes.append("no peer: it is not installed")
    assert result.show(PLAIN) == 0
    shown = capsys.readouterr().out
    assert "note: no peer: it is not installed" in shown and "ours is 2.00x" in shown


def test_sides_alternate_and_a_peer_has_the_ratio():
    order = []

    def measure(side):
        order.append(side.target)
        return BenchRound(len(order), 1.0, side.server)

    cells = BenchResult.begin("queue", {}).alternate("w", "", [Side("a", 6.0), Side("b", 3.0, "stock")], 2, measure)
    assert order == ["a", "b", "a", "b"] and [one.count for one in cells[1].rounds] == [2, 4]
    assert [(one.target, one.client, one.ratio) for one in cells] == [
        ("a", "lean", None),
        ("b", "stock", 2.0),
    ]


def test_options_are_named_as_in_json_and_lists_are_parsed(tmp_path):
    given = {
        "broadcast_max": 3,
        "old": tmp_path,
        "output": PLAIN,
        "plot": None,
        "sizes": "1,20",
        "only": "a,b",
    }
    result = BenchResult.begin("fanout", given)
    assert result.parse_numbers("sizes") == [1, 20] and result.parse_names("only", "kind", "b,a") == [
        "a",
        "b",
    ]
    assert result.options == {"broadcastMax": 3, "old": str(tmp_path), "sizes": [1, 20], "only": ["a", "b"]}


def test_names_must_be_known():
    with pytest.raises(PenstockError, match="there is no kind `c`"):
        BenchResult.begin("fanout", {"only": "a,c"}).parse_names("only", "kind", "a,b")


def test_only_installed_libraries_have_versions():
    assert list(find_versions("msgspec", "no-such-library")) == ["msgspec"]


LINES = {"all": [(100, 1), (1_000, 10), (10_000, 1_000)], "a <table>": [(100, 1), (10_000, 1)]}


def test_points_are_drawn_on_logarithmic_axes_with_a_linear_reference():
    figure = draw("Growth", "rows", {"seconds": LINES})
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (figure.get_suptitle(), axes.get_xlabel(), axes.get_ylabel()) == ("Growth", "rows", "seconds")
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.lines}
    assert lines == {**LINES, "linear": [(100, 1), (10_000, 100)]}


def test_each_vertical_axis_has_a_panel():
    panels = draw("Growth", "rows", {"seconds": LINES, "files": {"all": [(100, 3)]}}).axes
    assert [(axes.get_ylabel(), len(axes.lines)) for axes in panels] == [("seconds", 2), ("files", 1)]


def test_the_file_is_svg_with_its_text_as_text(tmp_path):
    file = tmp_path / "growth.picture"
    save_plot(file, "Growth", "rows", {"seconds": LINES})
    root = ElementTree.parse(file).getroot()
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Growth", "rows", "seconds", "10,000", "all", "a <table>", "linear"} <= words


@pytest.mark.parametrize("words", [["fanout"], ["pipeline"], ["growth"]])
def test_without_matplotlib_a_plot_is_refused_before_the_run(words, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", *words, "--plot", "growth.svg"]) == 1
    shown = capsys.readouterr().err
    assert "needs matplotlib" in shown and "hint: run `pip install 'penstock[bench]'`" in shown
