"""The counters of the relay for Prometheus. Topics are labelled by their hashes, and `limits.metric_streams_max` bounds those."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from penstock.server.relaying import Relaying

_COUNTERS = {
    "messages": "Messages taken from publishers",
    "bytes": "Bytes of those messages",
    "forwarded": "Messages sent to subscribers a first time",
    "replayed": "Messages sent again",
    "lost": "Messages that were never sent and are gone",
    "unregistered": "Messages of topics that nobody registered",
    "oversized": "Messages over `relay.message_max`",
    "unkept": "Messages forwarded and not kept for want of room",
    "registered": "Registrations accepted",
    "refused": "Registrations refused",
    "early_forgotten": "Subscriptions to unregistered topics that were forgotten",
    "resumes": "Requests to send again what followed a mark",
    "resumes_missed": "Such requests whose mark was gone",
}


def relay_metrics(relay: Relaying | None, topics_max: int, *, per_topic: bool) -> list[Metric]:
    """What the relay counts, as of its latest report."""
    if relay is None:
        return []
    up = GaugeMetricFamily("penstock_relay_up", "Whether the relay runs", value=int(relay.is_up))
    restarts = CounterMetricFamily(
        "penstock_relay_restarts", "Times the relay was started again", value=relay.restarts
    )
    slow = 0 if relay.hub is None else relay.hub.slow_cut
    cut = CounterMetricFamily(
        "penstock_relay_sockets_cut", "WebSockets of token streams cut off for not reading", value=slow
    )
    families: list[Metric] = [up, restarts, cut]
    figures = relay.figures
    if figures is not None:
        totals = msgspec.structs.asdict(figures.totals)
        families += [
            CounterMetricFamily(f"penstock_relay_{name}", text, value=totals[name])
            for name, text in _COUNTERS.items()
        ]
        families += [
            GaugeMetricFamily("penstock_relay_topics", "Topics registered", value=figures.topics),
            GaugeMetricFamily("penstock_relay_held_bytes", "Cost of the messages held", value=figures.bytes),
            CounterMetricFamily(
                "penstock_relay_observations_dropped", "Observations not told", value=figures.dropped
            ),
            CounterMetricFamily(
                "penstock_relay_facts_dropped",
                "Registrations and ends not written down",
                value=figures.facts_dropped,
            ),
        ]
        refusals = CounterMetricFamily(
            "penstock_relay_refusals", "What was refused, by the reason", labels=["reason"]
        )
        for reason, count in figures.refused.items():
            refusals.add_metric([reason], count)
        families.append(refusals)
    return families + (_topics(relay, topics_max) if per_topic else [])


def _topics(relay: Relaying, topics_max: int) -> list[Metric]:
    messages = CounterMetricFamily("penstock_relay_topic_messages", "Messages of a topic", labels=["topic"])
    size = CounterMetricFamily("penstock_relay_topic_bytes", "Bytes of a topic", labels=["topic"])
    waiting = GaugeMetricFamily(
        "penstock_relay_topic_waiting", "Messages that nobody was sent yet", labels=["topic"]
    )
    for number, (topic, figures) in enumerate(relay.topics.items()):
        if number >= topics_max:
            break
        messages.add_metric([topic], figures.messages)
        size.add_metric([topic], figures.bytes)
        waiting.add_metric([topic], figures.waiting)
    return [messages, size, waiting]
