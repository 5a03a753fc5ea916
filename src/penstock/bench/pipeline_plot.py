"""A plot as SVG, drawn by hand: lines over two logarithmic axes, named where they end. No library, and no colour but the lines'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 40, 56
COLOURS = ("#1f5fa8", "#b3541e", "#2e7d4f", "#7a4ca0", "#a03050", "#5f6b7a", "#8a7a1e")
LABEL_STEP = 16
"""Pixels between two names at least."""

Points = Sequence[tuple[float, float]]


def plot(title: str, x_name: str, y_name: str, lines: Mapping[str, Points], reference: str = "linear") -> str:
    """An SVG document. Points are above zero; a dashed line shows how the first line would go on in proportion."""
    every = [point for points in lines.values() for point in points]
    x_axis = _Axis([x for x, _ in every], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([y for _, y in every], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for value in x_axis.decades():
        at = x_axis.place(value)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#e2e2e2"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_short(value)}</text>'
        )
    for value in y_axis.decades():
        at = y_axis.place(value)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#e2e2e2"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(
        f'<text transform="translate(18 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_name)}</text>'
    )
    drawn = dict(lines)
    first = next(iter(lines.values()))
    if reference and len(first) > 1:
        (x_first, y_first), x_last = first[0], first[-1][0]
        drawn[reference] = [(x_first, y_first), (x_last, y_first * x_last / x_first)]
    ends = _spread([y_axis.place(points[-1][1]) for points in drawn.values()])
    for number, ((name, points), label_y) in enumerate(zip(drawn.items(), ends, strict=True)):
        is_reference = number >= len(lines)
        colour = "#999999" if is_reference else COLOURS[number % len(COLOURS)]
        placed = [(x_axis.place(x), y_axis.place(y)) for x, y in points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
        dash = ' stroke-dasharray="5 4"' if is_reference else ""
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if not is_reference:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in placed]
        parts.append(
            f'<text x="{placed[-1][0] + 10:.1f}" y="{label_y + 4:.1f}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """A logarithmic axis between two pixels, over whole decades."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        self._low = math.floor(math.log10(min(values)))
        self._high = max(math.ceil(math.log10(max(values))), self._low + 1)
        self._start, self._stop = start, stop

    def place(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._stop - self._start)

    def decades(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]


def _spread(places: Sequence[float]) -> list[float]:
    """The same heights, moved apart where names would lie on one another."""
    found = list(places)
    last = -math.inf
    for index in sorted(range(len(places)), key=places.__getitem__):
        last = found[index] = max(places[index], last + LABEL_STEP)
    return found


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
