"""The counters of spaces for Prometheus: one label a space, and `limits.spaces_max` bounds those."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from penstock.server.spaces import Spaces

_GAUGES = {
    "participants": "Participants present in a space",
    "streams": "Streams open in a space",
    "pending_bytes": "Bytes of envelopes of a space that wait for their commit",
}
_COUNTERS = {
    "envelopes": "Envelopes passed on in a space",
    "refused": "Messages refused in a space",
    "slow_cut": "Participants let go for not reading",
    "frames": "Frames written to the streams of a space",
    "bytes": "Bytes of those frames",
    "deliveries": "Frames handed to those who receive them, each counted",
    "broadcast": "What deliveries would have been without targets",
    "dropped": "Frames dropped for participants that did not read",
}


def space_metrics(spaces: Spaces | None) -> list[Metric]:
    """What the spaces of a server count."""
    if spaces is None or not spaces.spaces:
        return []
    gauges = {
        name: GaugeMetricFamily(f"penstock_space_{name}", help_, labels=["space"])
        for name, help_ in _GAUGES.items()
    }
    counters = {
        name: CounterMetricFamily(f"penstock_space_{name}", help_, labels=["space"])
        for name, help_ in _COUNTERS.items()
    }
    for id_, space in spaces.spaces.items():
        gauges["participants"].add_metric([id_], len(space.present))
        gauges["streams"].add_metric([id_], len(space.state.streams))
        gauges["pending_bytes"].add_metric([id_], space.pending_bytes)
        counts = {
            "envelopes": space.envelopes,
            "refused": space.refused,
            "slow_cut": space.slow_cut,
            **space.room.counts(),
        }
        for name, count in counts.items():
            counters[name].add_metric([id_], count)
    return [*gauges.values(), *counters.values()]
