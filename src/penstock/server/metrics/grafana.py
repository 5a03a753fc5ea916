"""A dashboard for Grafana, printed from the names of the metrics: a row for each part of the server, a few plots in it.

What a plot shows follows from the metric: of a counter its rate, of a gauge its value, a line for each set of labels.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.server.metrics.metric_names import BY_NAME, MetricName

WIDTH, HEIGHT, COLUMNS = 8, 8, 3


class Plot(msgspec.Struct, frozen=True):
    """A panel: its title, its unit in Grafana's words, and the metrics in it without their prefix."""

    title: str
    unit: str
    metrics: tuple[str, ...]


BOARD: dict[str, tuple[Plot, ...]] = {
    "Queues": (
        Plot("In, out and settled", "ops", ("q_in", "q_out", "q_ack")),
        Plot("Waiting", "short", ("q_depth", "q_if", "q_delayed")),
        Plot("Enqueue to first delivery", "ms", ("q_lat_ms",)),
        Plot("Deliveries that did not end in an ack", "ops", ("q_nack", "q_re", "q_release", "q_timeout")),
        Plot("Dead letters", "ops", ("q_dead", "q_moved", "dead_letters_blocked")),
        Plot("Refused, dropped, purged", "ops", ("q_reject", "q_drop", "q_purged", "q_dup", "rate_limited")),
    ),
    "Server and journal": (
        Plot("Connections and streams", "short", ("links", "streams", "streams_dormant")),
        Plot("Bytes held", "bytes", ("bytes", "pending_bytes")),
        Plot("The journal's disk", "bytes", ("journal_disk_free_bytes", "journal_segment_bytes")),
        Plot("Journal in trouble", "short", ("journal_refusing", "journal_seals_failed", "records_refused", "settles_refused")),
        Plot("Left out at a bound", "ops", ("observations_dropped", "tap_copies_lost", "log_lines_dropped", "record_frames_dropped", "events_dropped", "slow_peers_cut")),
        Plot("Payloads that do not fit", "ops", ("schema_warned", "schema_refused")),
        Plot("Uptime", "s", ("uptime_seconds",)),
    ),
    "Triggers and views": (
        Plot("Triggers", "ops", ("trigger_run", "trigger_emitted", "trigger_fail")),
        Plot("Matches that did nothing", "ops", ("trigger_suppressed", "trigger_looped", "trigger_hops", "trigger_blocked")),
        Plot("Views and their followers", "short", ("view_rows", "live_followers")),
        Plot("What followers are told", "ops", ("live_deltas", "live_snapshots", "view_evicted")),
    ),
    "Spaces": (
        Plot("Who is there, what is open", "short", ("space_participants", "space_streams")),
        Plot("Envelopes and frames", "ops", ("space_envelopes", "space_frames", "space_refused")),
        Plot("What targets save", "ops", ("space_deliveries", "space_broadcast")),
        Plot("Bytes of frames", "Bps", ("space_bytes",)),
        Plot("Slow readers", "ops", ("space_dropped", "space_slow_cut")),
        Plot("Waiting for the journal", "bytes", ("space_pending_bytes",)),
    ),
    "Token streams": (
        Plot("Messages", "ops", ("relay_messages", "relay_forwarded", "relay_replayed", "relay_resumes")),
        Plot("Bytes", "Bps", ("relay_bytes",)),
        Plot("Topics and what they hold", "short", ("relay_topics", "relay_held_bytes")),
        Plot("Lost, or not taken", "ops", ("relay_lost", "relay_unregistered", "relay_oversized", "relay_unkept", "relay_resumes_missed", "relay_early_forgotten")),
        Plot("Registrations", "ops", ("relay_registered", "relay_refused", "relay_refusals", "relay_facts_dropped")),
        Plot("Running", "short", ("relay_up", "relay_restarts", "relay_sockets_cut")),
    ),
    "Pipeline": (
        Plot("Rows behind the journal", "short", ("pipeline_lag_rows",)),
        Plot("The latest batch", "ms", ("pipeline_batch_ms",)),
        Plot("Batches", "ops", ("pipeline_batches",)),
        Plot("How far", "short", ("pipeline_offset", "journal_rows")),
        Plot("Running", "short", ("pipeline_up", "pipeline_halted", "pipeline_restarts")),
    ),
}  # fmt: skip
NOT_SHOWN = {
    "dedup_ids": "a size within its bound",
    "dedup_evicted": "a matter of `limits`, and not of a day",
    "rate_buckets": "a size within its bound",
    "rate_buckets_forgotten": "a matter of `limits`, and not of a day",
    "streams_forgotten": "a matter of `limits`, and not of a day",
    "idempotency_keys": "a size within its bound",
    "idempotency_replays": "clients that ask again are no trouble",
    "idempotency_forgotten": "a matter of `limits`, and not of a day",
    "relay_topic_messages": "a line for each topic; only with `?streams=1`",
    "relay_topic_bytes": "a line for each topic; only with `?streams=1`",
    "relay_topic_waiting": "a line for each topic; only with `?streams=1`",
    "relay_observations_dropped": "counts are missing from the journal, and nothing else",
}
"""Metrics that are in no plot, and why."""

_HERE = '{instance=~"$instance"}'


def expression(metric: MetricName) -> str:
    """What a plot shows of a metric."""
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
    for title, plots in BOARD.items():
        place = {"h": 1, "w": WIDTH * COLUMNS, "x": 0, "y": top}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "collapsed": False}
        )
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
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    instance = {
        "name": "instance",
        "type": "query",
        "label": "Server",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(penstock_uptime_seconds, instance)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
    tree = {
        "uid": "penstock",
        "title": "Penstock",
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, instance]},
        "panels": _panels(),
    }
    return msgspec.json.format(msgspec.json.encode(tree), indent=2).decode() + "\n"
