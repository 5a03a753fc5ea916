"""GET /metrics: the counters of the queue for Prometheus, read at the moment of the scrape.

The first `limits.metric_streams_max` streams have a label of their own, the rest is summed as `other`, so a
stream per agent cannot drown the collector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.core.instant import Now
from penstock.core.pipelines import Status
from penstock.core.queue import QueueMachine
from penstock.core.scopes import Principal
from penstock.dialects.courier.surveys import Slices
from penstock.server.runtime import Runtime

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
SAMPLES_A_TURN = 1_000
"""Lines that are written in one turn: a few milliseconds' work."""

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
    ) -> None:
        self._runtime = runtime
        self._log_dropped = log_dropped
        self._pipeline = pipeline

    def scrape(self, principal: Principal) -> Scrape:
        """A scrape to be made: the figures of the streams first, a few a turn, then the text."""
        return Scrape(self._runtime.machine, principal, self._rest)

    def _rest(self, now: Now) -> list[Metric]:
        return self._server(now) + _pipeline(self._pipeline())

    def _server(self, now: Now) -> list[Metric]:
        runtime, machine = self._runtime, self._runtime.machine
        totals = machine.totals
        gauges = {
            "penstock_streams": ("Streams in memory", len(machine.channels)),
            "penstock_streams_dormant": ("Streams unloaded", len(machine.dormant)),
            "penstock_links": ("Connections", len(machine.links)),
            "penstock_bytes": ("Bytes of envelopes held", machine.bytes),
            "penstock_pending_bytes": ("Bytes waiting for their commit", machine.pending_bytes),
            "penstock_dedup_ids": ("Settled ids remembered", machine.ids),
            "penstock_uptime_seconds": ("Seconds since the start", runtime.health(now)["uptime"]),
        }
        counters = {
            "penstock_records_refused": ("Envelopes the journal refused", totals.records_refused),
            "penstock_settles_refused": ("Settles the journal refused", totals.settles_refused),
            "penstock_observations_dropped": ("Observations dropped", totals.observations_dropped),
            "penstock_dead_letters_blocked": ("Offers to a full dead-letter stream", totals.dead_blocked),
            "penstock_dedup_evicted": ("Ids forgotten before their time", totals.dedup_evicted),
            "penstock_streams_forgotten": ("Dormant streams forgotten", totals.dormant_forgotten),
            "penstock_slow_peers_cut": ("Peers cut off for not reading", runtime.slow_cut),
            "penstock_log_lines_dropped": ("Log lines dropped", self._log_dropped()),
        }
        families: list[Metric] = [GaugeMetricFamily(n, h, value=v) for n, (h, v) in gauges.items()]
        return families + [CounterMetricFamily(n, h, value=v) for n, (h, v) in counters.items()]


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


class Scrape:
    """One scrape: first sums over streams, then the text, both a little a turn."""

    def __init__(
        self, machine: QueueMachine, principal: Principal, rest: Callable[[Now], list[Metric]]
    ) -> None:
        self._machine = machine
        self._principal = principal
        self._rest = rest
        self._names = Slices(lambda: list(machine.channels))
        self._sums: dict[str, dict[str, float]] = {}
        self._latencies: dict[str, dict[str, float]] = {}
        self._left: Iterator[Metric] | None = None
        self._parts: list[bytes] = []

    def step(self, now: Now) -> bool:
        machine, sums = self._machine, self._sums
        for name in self._names.take():
            channel = machine.channels.get(name)
            if channel is None or not self._principal.allows("read", name):
                continue
            label = name if len(sums) < machine.limits.metric_streams_max else OTHER
            into = sums.setdefault(label, dict.fromkeys([*_COUNTERS, *_GAUGES], 0))
            for key, value in machine.metrics(now, channel).items():
                into[key] += value
            if label != OTHER:
                stats = machine.stats(now, channel)
                self._latencies[label] = {share: stats[key] for key, share in _LATENCIES.items()}
        return self._names.is_over and self._render(now)

    def _render(self, now: Now) -> bool:
        """Write families until that is enough for one turn."""
        if self._left is None:
            self._left = chain(self._streams(), self._rest(now))
        samples = 0
        while samples < SAMPLES_A_TURN:
            family = next(self._left, None)
            if family is None:
                return True
            samples += len(family.samples)
            self._parts.append(generate_latest(_registry(family)))
        return False

    def _streams(self) -> Iterator[Metric]:
        for key, help_ in _COUNTERS.items():
            counter = CounterMetricFamily(_metric(key), help_, labels=["stream"])
            for label, values in self._sums.items():
                counter.add_metric([label], values[key])
            yield counter
        for key, help_ in _GAUGES.items():
            gauge = GaugeMetricFamily(_metric(key), help_, labels=["stream"])
            for label, values in self._sums.items():
                gauge.add_metric([label], values[key])
            yield gauge
        wait = GaugeMetricFamily(
            "penstock_q_lat_ms", "Enqueue to first delivery, last minute", labels=["stream", "quantile"]
        )
        for label, shares in self._latencies.items():
            for share, value in shares.items():
                wait.add_metric([label, share], value)
        yield wait

    def text(self) -> bytes:
        return b"".join(self._parts)


def _registry(family: Metric) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Family(family))
    return registry


class _Family:
    """One family, in the shape the library collects from."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]
