"""The counters of spaces for Prometheus: one label a space, and `limits.spaces_max` bounds those."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from penstock.server.metrics.metric_names import SPACE_COUNTERS, SPACE_GAUGES, family

if TYPE_CHECKING:
    from penstock.server.spaces.host import Spaces


def space_metrics(spaces: Spaces | None) -> list[Metric]:
    """What the spaces of a server count."""
    if spaces is None or not spaces.spaces:
        return []
    gauges = {name: family(f"penstock_space_{name}") for name in SPACE_GAUGES}
    counters = {name: family(f"penstock_space_{name}") for name in SPACE_COUNTERS}
    for id_, space in spaces.spaces.items():
        gauges["participants"].add_metric([id_], len(space.present))
        gauges["streams"].add_metric([id_], len(space.state.streams))
        gauges["pending_bytes"].add_metric([id_], space.pending_bytes)
        counts = {
            "envelopes": space.envelopes,
            "refused": space.refused,
            "slow_cut": space.slow_cut,
            **space.router.counts(),
        }
        for name, count in counts.items():
            counters[name].add_metric([id_], count)
    return [*gauges.values(), *counters.values()]
