"""Plots of a bench run: lines over two logarithmic axes, drawn by matplotlib from the extra `bench`."""
# size: the only module that needs matplotlib

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.bench.harness.result import refuse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
SIZE_INCHES = (7.2, 4.4)


def require_matplotlib() -> None:
    """Refuse before the measurements, not after them."""
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError:
        refuse("a plot needs matplotlib, which is not installed", "run `pip install 'penstock[bench]'`")


def draw(title: str, x_name: str, y_name: str, lines: Mapping[str, Points]) -> Figure:
    """A figure with one line for each name; a dashed line continues the first one in proportion."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    figure = Figure(SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    for name, points in lines.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
    first = next(iter(lines.values()))
    if len(first) > 1:
        (x_first, y_first), (x_last, _) = first[0], first[-1]
        proportional = [y_first, y_first * x_last / x_first]
        axes.plot([x_first, x_last], proportional, color="0.6", linestyle="--", label="linear")
    axes.set(title=title, xlabel=x_name, ylabel=y_name, xscale="log", yscale="log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.grid(color="0.9")
    axes.legend()
    return figure


def save_plot(file: Path, title: str, x_name: str, y_name: str, lines: Mapping[str, Points]) -> None:
    """Write the figure as SVG with its text as text, whatever the file is called."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(title, x_name, y_name, lines).savefig(file, format="svg")
