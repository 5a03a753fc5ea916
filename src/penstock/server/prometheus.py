"""GET /metrics: the counters of the queue for Prometheus, read at the moment of the scrape.

The first `limits.metric_streams_max` streams have a label of their own, the rest is summed as `other`, so a
stream per agent cannot drown the collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.core.instant import Now
from penstock.core.pipelines import Status
from penstock.core.queue import QueueMachine
from penstock.core.scopes import Principal
from penstock.server.idempotency import Replays
from penstock.server.runtime import Runtime

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"

_COUNTERS = {
    "q.in": "Envelopes accepted",
    "q.out": "Deliveries, redeliveries included",
    "q.ack": "Envelopes acknowledged",
    "q.nack": "Deliveries refused by their consumer",
    "q.re": "Deliveries after the first",
    "q.release": "Deliveries given back",
    "q.timeout": "Leases that expired",
    "q.dup": "Enqueues answered as duplicates",
    "q.drop": "Envelopes dropped at a bound",
    "q.dead": "Envelopes moved to the dead letters",
    "q.purged": "Envelopes purged",
    "q.moved": "Dead letters sent back",
    "q.reject": "Enqueues refused at a bound",
}
_GAUGES = {
    "q.depth": "Envelopes ready",
    "q.if": "Envelopes in flight",
    "q.delayed": "Envelopes waiting for their time",
}
_LATENCIES = {"latP50": "0.5", "latP95": "0.95", "latP99": "0.99"}


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
    ) -> None:
        self._runtime = runtime
        self._log_dropped = log_dropped
        self._pipeline = pipeline
        self._replays = replays or Replays()
        self._record_dropped = record_dropped

    def render(self, now: Now, principal: Principal) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Scrape(self._families(now, principal)))
        return generate_latest(registry)

    def _families(self, now: Now, principal: Principal) -> list[Metric]:
        machine = self._runtime.machine
        limit = machine.limits.metric_streams_max
        sums: dict[str, dict[str, float]] = {}
        latencies: dict[str, dict[str, float]] = {}
        for name, channel in machine.channels.items():
            if not principal.allows("read", name):
                continue
            label = name if len(sums) < limit else OTHER
            into = sums.setdefault(label, dict.fromkeys([*_COUNTERS, *_GAUGES], 0))
            for key, value in machine.metrics(now, channel).items():
                into[key] += value
            if label != OTHER:
                stats = machine.stats(now, channel)
                latencies[label] = {share: stats[key] for key, share in _LATENCIES.items()}
        families: list[Metric] = []
        for key, help_ in _COUNTERS.items():
            counter = CounterMetricFamily(_metric(key), help_, labels=["stream"])
            for label, values in sums.items():
                counter.add_metric([label], values[key])
            families.append(counter)
        for key, help_ in _GAUGES.items():
            gauge = GaugeMetricFamily(_metric(key), help_, labels=["stream"])
            for label, values in sums.items():
                gauge.add_metric([label], values[key])
            families.append(gauge)
        wait = GaugeMetricFamily(
            "penstock_q_lat_ms", "Enqueue to first delivery, last minute", labels=["stream", "quantile"]
        )
        for label, shares in latencies.items():
            for share, value in shares.items():
                wait.add_metric([label, share], value)
        families.append(wait)
        return families + self._server(now) + _triggers(machine) + _pipeline(self._pipeline())

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
        families: list[Metric] = [GaugeMetricFamily(n, h, value=v) for n, (h, v) in gauges.items()]
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


def _metric(key: str) -> str:
    return "penstock_" + key.replace(".", "_")


class _Scrape:
    """One scrape's families, in the shape the library collects from."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
