"""Every metric of `GET /metrics`, once: its name, kind, meaning and labels, a line each in `templates/metrics.jsonl`.

The exporters, the reference, the alert rules and the dashboard all use these entries, so none of them can name a metric that does not
exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Group = Literal["queue", "server", "journal", "views", "triggers", "spaces", "relay", "topics", "pipeline", "cluster"]


class MetricName(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    group: Group = "server"

    @property
    def key(self) -> str:
        """Its name without the prefix that all share."""
        return self.name.removeprefix("penstock_")

    @property
    def sample(self) -> str:
        """The name of its samples, for use in expressions."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def family(
        self, value: float | None = None, *, labels: tuple[str, ...] | None = None
    ) -> CounterMetricFamily | GaugeMetricFamily:
        """A family to export, with one value or with labels to be added."""
        of = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        return of(self.name, self.text, value, labels=None if value is not None else labels or self.labels)


_TABLE = Path(__file__).parent / "templates" / "metrics.jsonl"

METRICS = tuple(msgspec.json.Decoder(MetricName).decode_lines(_TABLE.read_bytes()))
"""All of them, in the order of the reference."""
BY_NAME = {metric.name: metric for metric in METRICS}
QUEUE_KEYS = tuple(
    metric.key.replace("_", ".", 1)
    for metric in METRICS
    if metric.key.startswith("q_") and metric.labels == ("stream",)
)
"""The figures of a stream by their names in Courier, such as `q.in`."""
WAIT = "penstock_q_lat_ms"
DEAD = "penstock_dead_letters"


def queue_name(key: str) -> str:
    """The metric of a figure of Courier."""
    return "penstock_" + key.replace(".", "_")


def family(name: str, value: float | None = None) -> CounterMetricFamily | GaugeMetricFamily:
    """The family of a metric by its name: with its one value, or with its labels and values to come."""
    return BY_NAME[name].family(value)


def readers(label: str) -> dict[str, Callable[[Any], float]]:
    """The metrics with this label, and how each reads its row: by the last part of its name."""
    names = [metric.key for metric in METRICS if metric.labels == (label,)]
    return {name: attrgetter(name.partition("_")[2]) for name in names}


def families(values: dict[str, float]) -> list[Metric]:
    """Families with one value each."""
    return [family(name, value) for name, value in values.items()]


def labelled(
    rows: Iterable[tuple[str | tuple[str, ...], Any]], values: Mapping[str, Callable[[Any], float]]
) -> list[Metric]:
    """A family for each metric, with a sample for each row: its label or labels, and what the metric reads of it."""
    found = {name: family(f"penstock_{name}") for name in values}
    for label, row in rows:
        for name, value in values.items():
            found[name].add_metric([label] if isinstance(label, str) else label, value(row))
    return [*found.values()]
