"""The counters of the relay for Prometheus. Topics are labelled by their hashes, and `limits.metric_streams_max` bounds those."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import Metric

from penstock.server.metrics.metric_names import RELAY_COUNTERS, families, family

if TYPE_CHECKING:
    from penstock.server.relay.supervisor import RelaySupervisor


def relay_metrics(relay: RelaySupervisor | None, topics_max: int, *, per_topic: bool) -> list[Metric]:
    """What the relay counts, as of its latest report."""
    if relay is None:
        return []
    values: dict[str, float] = {
        "penstock_relay_up": int(relay.is_up),
        "penstock_relay_restarts": relay.restarts,
        "penstock_relay_sockets_cut": 0 if relay.hub is None else relay.hub.slow_cut,
    }
    refusals: list[Metric] = []
    figures = relay.figures
    if figures is not None:
        totals = msgspec.structs.asdict(figures.totals)
        values |= {f"penstock_relay_{name}": totals[name] for name in RELAY_COUNTERS}
        values |= {
            "penstock_relay_topics": figures.topics,
            "penstock_relay_held_bytes": figures.bytes,
            "penstock_relay_observations_dropped": figures.dropped,
            "penstock_relay_facts_dropped": figures.facts_dropped,
        }
        refused = family("penstock_relay_refusals")
        for reason, count in figures.refused.items():
            refused.add_metric([reason], count)
        refusals.append(refused)
    return families(values) + refusals + (_topics(relay, topics_max) if per_topic else [])


def _topics(relay: RelaySupervisor, topics_max: int) -> list[Metric]:
    messages, size = family("penstock_relay_topic_messages"), family("penstock_relay_topic_bytes")
    waiting = family("penstock_relay_topic_waiting")
    for number, (topic, figures) in enumerate(relay.topics.items()):
        if number >= topics_max:
            break
        messages.add_metric([topic], figures.messages)
        size.add_metric([topic], figures.bytes)
        waiting.add_metric([topic], figures.waiting)
    return [messages, size, waiting]
