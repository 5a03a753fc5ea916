"""The fan-out bench: what it refuses, draws and does without a peer."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from penstock.bench import result
from penstock.bench.fanout import picture
from penstock.bench.fanout_rounds import FanRound
from penstock.bench.fanout_servers import install_relay
from penstock.bench.result import Cell
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


def test_without_node_there_is_no_relay_and_a_word_why(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert install_relay() == "not installed: node, npm"
    assert list(tmp_path.iterdir()) == []


def test_the_growth_is_drawn_by_way_and_the_rest_is_not():
    outcome = result.begin("fanout", {})
    for workload, speed in [
        ("targeted, 1 to 1 of 50", 9.0),
        ("growth, 10 participants, targeted", 200.0),
        ("growth, 1,000 participants, targeted", 20_000.0),
        ("growth, 10 participants, broadcast", 1_000.0),
    ]:
        outcome.cells.append(Cell(workload, "penstock", "lean", "", [FanRound(1, 1.0, speed)]))
    root = ElementTree.fromstring(picture(outcome, 10))
    space = "{http://www.w3.org/2000/svg}"
    dots = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter(f"{space}circle")]
    assert len(dots) == 3
    assert dots[0][0] == dots[2][0] < dots[1][0] and dots[1][1] < dots[2][1] < dots[0][1]
    assert {"targeted", "broadcast", "participants"} <= {text.text for text in root.iter(f"{space}text")}
