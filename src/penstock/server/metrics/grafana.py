"""A dashboard for Grafana and alert rules for Prometheus, printed from `templates/` and the names of the metrics.

A plot shows the rate of a counter or the value of a gauge, with one line for each set of labels. A rule names a metric as `@name`, which
becomes the name of its samples. A name that the server does not export cannot be printed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from penstock.server.metrics.metric_names import BY_NAME, MetricName

WIDTH, HEIGHT, COLUMNS = 8, 8, 3
_TEMPLATES = Path(__file__).parent / "templates"


class Plot(msgspec.Struct, frozen=True):
    """A panel: its title, its unit in Grafana and its metrics without their prefix."""

    title: str
    unit: str
    metrics: tuple[str, ...]


def board() -> dict[str, list[Plot]]:
    """The rows of the dashboard, each with its plots."""
    return msgspec.yaml.decode((_TEMPLATES / "plots.yaml").read_text("utf-8"), type=dict[str, list[Plot]])


def alert_rules() -> str:
    """The alert rules as a file that Prometheus loads."""
    return with_samples((_TEMPLATES / "alert_rules.yaml").read_text("utf-8"))


def with_samples(text: str) -> str:
    """A text with the names of the samples in place of `@name`."""
    return re.sub(r"@(\w+)", lambda match: BY_NAME[f"penstock_{match[1]}"].sample, text)


_HERE = '{instance=~"$instance"}'


def expression(metric: MetricName) -> str:
    """The Prometheus expression of a metric."""
    if metric.kind == "counter":
        return f"rate({metric.sample}{_HERE}[$__rate_interval])"
    return f"{metric.sample}{_HERE}"


def _target(number: int, name: str) -> dict[str, Any]:
    metric = BY_NAME[f"penstock_{name}"]
    legend = " ".join([name, *(f"{{{{{label}}}}}" for label in metric.labels)])
    return {"refId": chr(ord("A") + number), "expr": expression(metric), "legendFormat": legend}


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, plots in board().items():
        place = {"h": 1, "w": WIDTH * COLUMNS, "x": 0, "y": top}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "collapsed": False})
        top += 1
        for number, plot in enumerate(plots):
            row, column = divmod(number, COLUMNS)
            texts = [BY_NAME[f"penstock_{name}"].text for name in plot.metrics]
            panels.append(
                {
                    "id": len(panels) + 1,
                    "type": "timeseries",
                    "title": plot.title,
                    "description": "; ".join(texts),
                    "gridPos": {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": top + row * HEIGHT},
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "fieldConfig": {"defaults": {"unit": plot.unit, "min": 0}, "overrides": []},
                    "targets": [_target(index, name) for index, name in enumerate(plot.metrics)],
                }
            )
        top += -(-len(plots) // COLUMNS) * HEIGHT
    return panels


def dashboard() -> str:
    """The dashboard as JSON that Grafana imports."""
    tree = msgspec.json.decode((_TEMPLATES / "dashboard.json").read_bytes()) | {"panels": _panels()}
    return msgspec.json.format(msgspec.json.encode(tree), indent=2).decode() + "\n"
