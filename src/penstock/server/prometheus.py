"""GET /metrics: the counters of the queue for Prometheus, read at the moment of the scrape.

Sums over all streams, unless figures of each are asked for. Even then the first `limits.metric_streams_max` streams have a
label of their own and the rest is summed as `other`, so a stream per agent cannot drown the collector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.core.instant import Now
from penstock.core.pipelines import Status
from penstock.core.queue import QueueMachine
from penstock.core.scopes import Principal
from penstock.dialects.courier.schemas import Registry
from penstock.server.idempotency import Replays
from penstock.server.relay_metrics import relay_metrics
from penstock.server.runtime import Runtime
from penstock.server.scrapes import ByStream, Scrape, Together
from penstock.server.space_metrics import space_metrics

if TYPE_CHECKING:
    from penstock.server.relaying import Relaying
    from penstock.server.spaces import Spaces

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exporter:
    """Renders the metrics of one runtime."""

    def __init__(
        self,
        runtime: Runtime,
        log_dropped: Callable[[], int],
        pipeline: Callable[[], Status | None] = lambda: None,
        *,
        replays: Replays | None = None,
        record_dropped: Callable[[], int] = lambda: 0,
        per_stream: bool = False,
        spaces: Spaces | None = None,
        relay: Relaying | None = None,
    ) -> None:
        self._runtime = runtime
        self._relay = relay
        self._spaces = spaces
        self.per_stream = per_stream
        self._log_dropped = log_dropped
        self._pipeline = pipeline
        self._replays = replays or Replays()
        self._record_dropped = record_dropped

    def scrape(self, principal: Principal, *, per_stream: bool | None = None) -> Scrape:
        """A scrape to be made: the figures of the streams first, a few a turn, then the text.

        `per_stream` as asked for, else as configured.
        """
        wanted = self.per_stream if per_stream is None else per_stream
        machine = self._runtime.machine
        figures = ByStream(machine, principal) if wanted else Together(machine, principal)
        return Scrape(machine, figures, lambda now: self._rest(now, per_topic=wanted))

    def _rest(self, now: Now, *, per_topic: bool = False) -> list[Metric]:
        machine = self._runtime.machine
        others = _triggers(machine) + space_metrics(self._spaces) + _pipeline(self._pipeline())
        relay = relay_metrics(self._relay, machine.limits.metric_streams_max, per_topic=per_topic)
        return self._server(now) + others + relay

    def _server(self, now: Now) -> list[Metric]:
        runtime, machine = self._runtime, self._runtime.machine
        totals, meter, replays = machine.totals, machine.meter, self._replays
        gauges = {
            "penstock_streams": ("Streams in memory", len(machine.channels)),
            "penstock_streams_dormant": ("Streams unloaded", len(machine.dormant)),
            "penstock_links": ("Connections", len(machine.links)),
            "penstock_bytes": ("Bytes of envelopes held", machine.bytes),
            "penstock_pending_bytes": ("Bytes waiting for their commit", machine.pending_bytes),
            "penstock_dedup_ids": ("Settled ids remembered", machine.ids),
            "penstock_rate_buckets": ("Rates being counted", 0 if meter is None else len(meter)),
            "penstock_idempotency_keys": ("Answers remembered by their key", len(replays)),
            "penstock_uptime_seconds": ("Seconds since the start", runtime.health(now)["uptime"]),
        }
        counters = {
            "penstock_records_refused": ("Envelopes the journal refused", totals.records_refused),
            "penstock_settles_refused": ("Settles the journal refused", totals.settles_refused),
            "penstock_observations_dropped": ("Observations dropped", totals.observations_dropped),
            "penstock_dead_letters_blocked": ("Offers to a full dead-letter stream", totals.dead_blocked),
            "penstock_tap_copies_lost": ("Copies left out for taps that did not read", totals.copies_lost),
            "penstock_dedup_evicted": ("Ids forgotten before their time", totals.dedup_evicted),
            "penstock_streams_forgotten": ("Dormant streams forgotten", totals.dormant_forgotten),
            "penstock_slow_peers_cut": ("Peers cut off for not reading", runtime.slow_cut),
            "penstock_log_lines_dropped": ("Log lines dropped", self._log_dropped()),
            "penstock_record_frames_dropped": ("Recorded frames dropped", self._record_dropped()),
            "penstock_rate_limited": (
                "Envelopes refused for their rate",
                0 if meter is None else meter.refused,
            ),
            "penstock_rate_buckets_forgotten": (
                "Rates forgotten at the bound",
                0 if meter is None else meter.forgotten,
            ),
            "penstock_idempotency_replays": ("Requests answered by their key", replays.replayed),
            "penstock_idempotency_forgotten": ("Answers forgotten at a bound", replays.forgotten),
        }
        if runtime.events is not None:
            counters["penstock_events_dropped"] = (
                "Events not written to `logs.events`",
                runtime.events.dropped,
            )
        if isinstance(machine.schemas, Registry):
            warned, refused = machine.schemas.warned, machine.schemas.refused
            counters["penstock_schema_warned"] = ("Envelopes taken although they do not fit", warned)
            counters["penstock_schema_refused"] = ("Envelopes refused by their schema", refused)
        families: list[Metric] = [GaugeMetricFamily(n, h, value=v) for n, (h, v) in gauges.items()]
        families += _views(runtime)
        return families + [CounterMetricFamily(n, h, value=v) for n, (h, v) in counters.items()]


_TRIGGER_COUNTERS = {
    "run": "Times a trigger fired",
    "fail": "Actions of triggers that failed",
    "suppressed": "Matches within a cooldown",
    "emitted": "Envelopes that triggers sent",
    "looped": "Matches of a trigger on what it had a hand in",
    "hops": "Matches on what too many triggers had a hand in",
    "blocked": "Matches of a trigger that was resting",
}


def _triggers(machine: QueueMachine) -> list[Metric]:
    """The rules; `limits.rules_max` bounds how many there are."""
    families: list[Metric] = []
    for name, help_ in _TRIGGER_COUNTERS.items():
        counter = CounterMetricFamily(f"penstock_trigger_{name}", help_, labels=["trigger"])
        for rule in machine.triggers.rules.values():
            counter.add_metric([rule.id], getattr(rule.activity, name))
        families.append(counter)
    return families


def _views(runtime: Runtime) -> list[Metric]:
    """The views and their followers."""
    rows = GaugeMetricFamily("penstock_view_rows", "Rows of a view", labels=["view"])
    evicted = CounterMetricFamily(
        "penstock_view_evicted", "Rows that went because a view was full", labels=["view"]
    )
    watchers = GaugeMetricFamily("penstock_live_followers", "Followers of a view", labels=["view"])
    deltas = CounterMetricFamily(
        "penstock_live_deltas", "Changes told to followers, all together", labels=["view"]
    )
    snapshots = CounterMetricFamily(
        "penstock_live_snapshots", "Tables written for followers", labels=["view"]
    )
    for name, feed in runtime.live.feeds.items():
        rows.add_metric([name], len(feed.view.rows))
        evicted.add_metric([name], feed.view.evicted)
        watchers.add_metric([name], len(feed.watchers))
        deltas.add_metric([name], feed.deltas)
        snapshots.add_metric([name], feed.snapshots)
    return [rows, evicted, watchers, deltas, snapshots]


def _pipeline(status: Status | None) -> list[Metric]:
    """The Spark pipeline, where one belongs to this server."""
    if status is None:
        return []
    families: list[Metric] = [
        GaugeMetricFamily(
            "penstock_pipeline_up", "Whether the pipeline runs", value=int(status.state == "running")
        ),
        GaugeMetricFamily(
            "penstock_pipeline_halted",
            "Whether the pipeline waits for a person",
            value=int(status.state == "halted"),
        ),
        GaugeMetricFamily(
            "penstock_pipeline_lag_rows", "Journal rows that are not in every table yet", value=status.lag
        ),
        CounterMetricFamily(
            "penstock_pipeline_restarts", "Times the pipeline was started again", value=status.restarts
        ),
    ]
    offsets = GaugeMetricFamily(
        "penstock_pipeline_offset", "Journal rows before this are in the tables", labels=["query"]
    )
    batches = CounterMetricFamily("penstock_pipeline_batches", "Batches of this run", labels=["query"])
    durations = GaugeMetricFamily("penstock_pipeline_batch_ms", "The latest batch", labels=["query"])
    for name, query in status.queries.items():
        offsets.add_metric([name], query.offset)
        batches.add_metric([name], query.batches)
        durations.add_metric([name], query.batch_ms)
    return [*families, offsets, batches, durations]
