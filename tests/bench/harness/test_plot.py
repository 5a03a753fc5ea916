"""Plots: logarithmic axes, a line for each name, and a clear error without matplotlib."""

from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest

from penstock.bench.harness.plot import draw, save_plot
from penstock.cli import main

LINES = {"all": [(100, 1), (1_000, 10), (10_000, 1_000)], "a <table>": [(100, 1), (10_000, 1)]}


def test_points_are_drawn_on_logarithmic_axes_with_a_linear_reference():
    axes = draw("Growth", "rows", "seconds", LINES).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("Growth", "rows", "seconds")
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.lines}
    assert lines == {**LINES, "linear": [(100, 1), (10_000, 100)]}


def test_the_file_is_svg_with_its_text_as_text(tmp_path):
    file = tmp_path / "growth.picture"
    save_plot(file, "Growth", "rows", "seconds", LINES)
    root = ElementTree.parse(file).getroot()
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Growth", "rows", "seconds", "10,000", "all", "a <table>", "linear"} <= words


@pytest.mark.parametrize("words", [["fanout"], ["pipeline"]])
def test_without_matplotlib_a_plot_is_refused_before_the_run(words, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", *words, "--plot", "growth.svg"]) == 1
    shown = capsys.readouterr().err
    assert "needs matplotlib" in shown and "hint: run `pip install 'penstock[bench]'`" in shown
