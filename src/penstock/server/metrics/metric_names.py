"""Every metric of `GET /metrics`, once: its name, kind, meaning and labels.

The exporters, the reference, the alert rules and the dashboard all use these entries, so none of them can name a metric that does not
exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Literal

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Group = Literal["queue", "server", "journal", "views", "triggers", "spaces", "relay", "topics", "pipeline"]


class MetricName(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    group: Group = "server"

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


def _entries(
    kind: Literal["counter", "gauge"], group: Group, prefix: str, texts: dict[str, str], labels: tuple[str, ...] = ()
) -> Iterator[MetricName]:
    for name, text in texts.items():
        yield MetricName(f"penstock_{prefix}{name}", kind, text, labels, group)


QUEUE_COUNTERS = {
    "q.in": "Envelopes accepted",
    "q.out": "Deliveries, redeliveries included",
    "q.ack": "Envelopes acknowledged",
    "q.nack": "Deliveries refused by their consumer",
    "q.re": "Deliveries after the first",
    "q.release": "Deliveries given back",
    "q.timeout": "Leases that expired",
    "q.dup": "Enqueues answered as duplicates",
    "q.drop": "Envelopes dropped because the stream was full",
    "q.dead": "Envelopes moved to the dead letters",
    "q.purged": "Envelopes purged",
    "q.moved": "Dead letters sent back",
    "q.reject": "Enqueues rejected because the stream was full",
}
"""By their names in Courier."""
QUEUE_GAUGES = {"q.depth": "Envelopes ready", "q.if": "Envelopes in flight", "q.delayed": "Envelopes delayed"}
WAIT = "penstock_q_lat_ms"
DEAD = "penstock_dead_letters"


def queue_name(key: str) -> str:
    """The metric of a figure of Courier."""
    return "penstock_" + key.replace(".", "_")


_SERVER_GAUGES = {
    "streams": "Streams in memory",
    "streams_dormant": "Streams unloaded",
    "links": "Connections",
    "bytes": "Bytes of envelopes held",
    "pending_bytes": "Bytes waiting for their commit",
    "outbox_bytes": "Bytes that peers have not read, at most",
    "dedup_ids": "Settled ids remembered",
    "rate_buckets": "Active rate counters",
    "idempotency_keys": "Answers remembered by idempotency key",
    "redelivery_hot": "Envelopes that failed more than five times",
    "uptime_seconds": "Seconds since the start",
    "loop_turn_longest_seconds": "The longest turn of the event loop since the start",
    "loop_turn_longest_cpu_seconds": "The most CPU time of the event loop's thread in a turn; other processes do not count",
}
_SERVER_COUNTERS = {
    "records_refused": "Envelopes the journal refused",
    "settles_refused": "Settles the journal refused",
    "observations_dropped": "Observations dropped",
    "dead_letters_blocked": "Offers to a full dead-letter stream",
    "tap_copies_lost": "Copies dropped for taps that did not read",
    "dedup_evicted": "Ids evicted before the end of their window",
    "streams_forgotten": "Dormant streams evicted",
    "slow_peers_cut": "Peers disconnected because they did not read",
    "readers_cut": "Readers disconnected at `limits.outbox_total_max`",
    "subscriptions_evicted": "Idle subscriptions without a label ended for newer ones of their connection",
    "log_lines_dropped": "Log lines dropped",
    "record_frames_dropped": "Recorded frames dropped",
    "rate_limited": "Envelopes rejected by a rate limit",
    "rate_buckets_forgotten": "Rate counters evicted",
    "idempotency_replays": "Requests answered from their idempotency key",
    "idempotency_forgotten": "Remembered answers evicted",
    "events_dropped": "Events not written to `logs.events`",
    "schema_warned": "Envelopes accepted although they do not match their schema",
    "schema_refused": "Envelopes rejected by their schema",
}
_JOURNAL_GAUGES = {
    "refusing": "Whether the journal refuses new envelopes",
    "rows": "Rows committed since the journal began: the next offset",
    "segment_bytes": "Bytes of the segment being written",
    "disk_free_bytes": "Free bytes of its disk",
}
TRIGGER_COUNTERS = {
    "run": "Times a trigger fired",
    "fail": "Actions of triggers that failed",
    "suppressed": "Matches within a cooldown",
    "emitted": "Envelopes that triggers sent",
    "looped": "Matches of a trigger on an envelope that it caused",
    "hops": "Matches on an envelope with too many trigger hops",
    "blocked": "Matches of a trigger that was blocked",
}
SPACE_GAUGES = {
    "participants": "Participants present in a space",
    "streams": "Streams open in a space",
    "pending_bytes": "Bytes of envelopes of a space waiting for their commit",
}
SPACE_COUNTERS = {
    "envelopes": "Envelopes passed on in a space",
    "refused": "Messages refused in a space",
    "slow_cut": "Participants disconnected because they did not read",
    "targets_removed": "Participants removed from a stream whose writers waited for them",
    "frames": "Frames written to the streams of a space",
    "bytes": "Bytes of those frames",
    "deliveries": "Deliveries of frames, one for each recipient",
    "broadcast": "Deliveries that there would be without targets",
    "dropped": "Frames dropped for participants that did not read",
}
RELAY_COUNTERS = {
    "messages": "Messages taken from publishers",
    "bytes": "Bytes of those messages",
    "forwarded": "Messages sent to subscribers for the first time",
    "replayed": "Messages sent again",
    "lost": "Messages evicted before they were sent",
    "unregistered": "Messages of unregistered topics",
    "oversized": "Messages over `relay.message_max`",
    "unkept": "Messages forwarded and not kept because the topic was full",
    "registered": "Registrations accepted",
    "refused": "Registrations refused",
    "early_forgotten": "Subscriptions to unregistered topics that were evicted",
    "resumes": "Requests to resume after a mark",
    "resumes_missed": "Requests to resume whose mark was gone",
}
"""By their names in the totals of the relay."""

METRICS = (
    *(MetricName(queue_name(key), "counter", text, ("stream",), "queue") for key, text in QUEUE_COUNTERS.items()),
    *(MetricName(queue_name(key), "gauge", text, ("stream",), "queue") for key, text in QUEUE_GAUGES.items()),
    MetricName(DEAD, "gauge", "Dead letters that wait now; `penstock_q_depth` counts them too", (), "queue"),
    MetricName(WAIT, "gauge", "Enqueue to first delivery, last minute", ("stream", "quantile"), "queue"),
    *_entries("gauge", "server", "", _SERVER_GAUGES),
    *_entries("counter", "server", "", _SERVER_COUNTERS),
    MetricName("penstock_loop_turn_seconds", "histogram", "Turns of the event loop, by what held it up"),
    MetricName("penstock_connections_refused", "counter", "Connections refused, or closed before they were authenticated, by reason", ("reason",)),
    MetricName("penstock_inputs_refused", "counter", "Messages and bodies that are too large, no JSON, or JSON that is not accepted", ("door", "code")),
    MetricName("penstock_tokens_refused", "counter", "Requests without a token where one is needed (`missing`), or with one that is mistyped, revoked or expired (`unknown`)", ("reason",)),
    *_entries("gauge", "journal", "journal_", _JOURNAL_GAUGES),
    MetricName("penstock_journal_seals_failed", "counter", "Times sealing failed", (), "journal"),
    MetricName("penstock_lake_damaged", "gauge", "1 while history cannot be sealed or a table cannot be opened", (), "journal"),
    MetricName("penstock_view_rows", "gauge", "Rows of a view", ("view",), "views"),
    MetricName("penstock_view_evicted", "counter", "Rows evicted because a view was full", ("view",), "views"),
    MetricName("penstock_live_followers", "gauge", "Followers of a view", ("view",), "views"),
    MetricName("penstock_live_deltas", "counter", "Changes sent to followers", ("view",), "views"),
    MetricName("penstock_live_snapshots", "counter", "Snapshots sent to followers", ("view",), "views"),
    *_entries("counter", "triggers", "trigger_", TRIGGER_COUNTERS, ("trigger",)),
    *_entries("gauge", "spaces", "space_", SPACE_GAUGES, ("space",)),
    *_entries("counter", "spaces", "space_", SPACE_COUNTERS, ("space",)),
    MetricName("penstock_relay_up", "gauge", "Whether the relay runs", (), "relay"),
    MetricName("penstock_relay_restarts", "counter", "Restarts of the relay", (), "relay"),
    MetricName("penstock_relay_sockets_cut", "counter", "WebSockets of token streams disconnected because they did not read", (), "relay"),
    *_entries("counter", "relay", "relay_", RELAY_COUNTERS),
    MetricName("penstock_relay_topics", "gauge", "Topics registered", (), "relay"),
    MetricName("penstock_relay_held_bytes", "gauge", "Cost of the messages held", (), "relay"),
    MetricName("penstock_relay_observations_dropped", "counter", "Observations dropped", (), "relay"),
    MetricName("penstock_relay_facts_dropped", "counter", "Registrations and expirations dropped", (), "relay"),
    MetricName("penstock_relay_peers_cut", "counter", "Publishers and subscribers disconnected by the relay, by reason", ("reason",), "relay"),
    MetricName("penstock_relay_reopened", "counter", "Times the relay disconnected all peers to free memory", (), "relay"),
    MetricName("penstock_relay_refusals", "counter", "Refusals by reason", ("reason",), "relay"),
    MetricName("penstock_relay_topic_messages", "counter", "Messages of a topic", ("topic",), "topics"),
    MetricName("penstock_relay_topic_bytes", "counter", "Bytes of a topic", ("topic",), "topics"),
    MetricName("penstock_relay_topic_waiting", "gauge", "Messages not sent to any subscriber yet", ("topic",), "topics"),
    MetricName("penstock_pipeline_up", "gauge", "Whether the pipeline runs", (), "pipeline"),
    MetricName("penstock_pipeline_halted", "gauge", "Whether the pipeline is halted", (), "pipeline"),
    MetricName("penstock_pipeline_lag_rows", "gauge", "Journal rows that are not in every table yet", (), "pipeline"),
    MetricName("penstock_pipeline_restarts", "counter", "Times the pipeline was started again", (), "pipeline"),
    MetricName("penstock_pipeline_offset", "gauge", "Journal rows before this are in the tables", ("query",), "pipeline"),
    MetricName("penstock_pipeline_batches", "counter", "Batches of this run", ("query",), "pipeline"),
    MetricName("penstock_pipeline_batch_ms", "gauge", "The latest batch", ("query",), "pipeline"),
    MetricName("penstock_pipeline_rows", "gauge", "Journal rows of the latest batch", ("query",), "pipeline"),
    MetricName("penstock_pipeline_input_rate", "gauge", "Rows a second that arrived, by Spark", ("query",), "pipeline"),
    MetricName("penstock_pipeline_failed_batches", "counter", "Batches that failed, since the server started", ("query", "table", "step"), "pipeline"),
    MetricName("penstock_table_rows", "gauge", "Rows of the table", ("table",), "pipeline"),
    MetricName("penstock_table_version", "gauge", "Last version of the table", ("table",), "pipeline"),
    MetricName("penstock_table_files", "gauge", "Data files of the table", ("table",), "pipeline"),
    MetricName("penstock_table_bytes", "gauge", "Bytes of its data files", ("table",), "pipeline"),
    MetricName("penstock_table_lag_rows", "gauge", "Journal rows that the table lacks", ("table",), "pipeline"),
    MetricName("penstock_table_lag_seconds", "gauge", "Age of the oldest row that the table lacks", ("table",), "pipeline"),
    MetricName("penstock_table_batch_ms", "gauge", "Rows and commit of the latest batch", ("table",), "pipeline"),
    MetricName("penstock_pipeline_expectation_failed", "counter", "Rows of your own table that failed an expectation, in this run", ("table", "expectation", "on_fail"), "pipeline"),
    MetricName("penstock_pipeline_tables_stopped", "gauge", "Your own tables that stopped while the others go on", (), "pipeline"),
)  # fmt: skip
"""All of them, in the order of the reference."""
BY_NAME = {metric.name: metric for metric in METRICS}


def family(name: str, value: float | None = None) -> CounterMetricFamily | GaugeMetricFamily:
    """The family of a metric by its name: with its one value, or with its labels and values to come."""
    return BY_NAME[name].family(value)


def readers(label: str) -> dict[str, Callable[[Any], float]]:
    """The metrics with this label, and how each reads its row: by the last part of its name."""
    names = [metric.name.removeprefix("penstock_") for metric in METRICS if metric.labels == (label,)]
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
