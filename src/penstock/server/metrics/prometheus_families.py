"""`GET /metrics` for Prometheus: figures are read when a scrape asks for them.

By default they are sums over all streams. Per stream, the first `limits.metric_streams_max` streams have a label each and
the rest is summed as `other`, so that very many streams cannot overload the collector. A scrape reads a few streams a turn,
then writes the text. The figures of a stream are read at one instant, so they balance, and so do their sums. No sum ever
decreases: a stream that is unloaded during the scrape counts with its stored counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, chain, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric

from penstock.core.clock import Now
from penstock.core.queue import hot
from penstock.core.queue.counters import merged, percentiles_us
from penstock.core.queue.inspect import overview
from penstock.core.queue.machine import QueueMachine
from penstock.core.scopes import Principal
from penstock.core.tenants import is_dead
from penstock.dialects.courier.operations.payload_schemas import Registry
from penstock.dialects.courier.operations.queries import Slices
from penstock.ipc.pipeline import PipelineStatus
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import TURN_BOUNDS, TurnTimes
from penstock.server.metrics import metric_names
from penstock.server.metrics.metric_names import labelled

if TYPE_CHECKING:
    from penstock.server.engine.admission import AdmissionControl
    from penstock.server.http.idempotency import Replays
    from penstock.server.journal.lifecycle import JournalLifecycle
    from penstock.server.relay.supervisor import RelaySupervisor
    from penstock.server.spaces.host import Spaces

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
EVERY = "*"
"""A name that only a scope over all streams matches; no stream has it."""
SAMPLES_A_TURN = 1_000
"""Samples written in one turn: a few milliseconds of work."""

_FIGURES = metric_names.QUEUE_KEYS
_LATENCIES = {"latP50": "0.5", "latP95": "0.95", "latP99": "0.99"}


class Exporter(msgspec.Struct, eq=False):
    """Renders the metrics of one runtime."""

    runtime: Runtime
    log_dropped: Callable[[], int]
    replays: Replays
    pipeline: Callable[[], PipelineStatus | None] = lambda: None
    record_dropped: Callable[[], int] = lambda: 0
    per_stream: bool = False
    spaces: Spaces | None = None
    relay: RelaySupervisor | None = None
    archive: JournalLifecycle | None = None
    turns: TurnTimes | None = None
    admission: AdmissionControl | None = None
    tokens_refused: Mapping[str, int] = {}
    cells: Callable[[], Iterable[Metric]] = tuple
    """What a node of a cluster exports of it."""

    def scrape(self, principal: Principal, *, per_stream: bool | None = None) -> Scrape:
        """A scrape that reads a few streams a turn and then writes the text; `per_stream` overrides the config."""
        wanted = self.per_stream if per_stream is None else per_stream
        machine = self.runtime.machine
        figures = ByStream(machine, principal) if wanted else Together(machine, principal)
        return Scrape(figures, lambda now: self._rest(now, per_topic=wanted))

    def readings(self, figures: Together) -> Readings:
        """The same as numbers, summed over all streams."""
        return Readings(figures, self._rest)

    def _rest(self, now: Now, *, per_topic: bool = False) -> Iterator[Metric]:
        machine = self.runtime.machine
        yield from self._server(now)
        rules = [(rule.id, rule.activity) for rule in machine.triggers.rules.values()]  # bounded by `limits.rules_max`
        for name, reader in metric_names.readers("trigger").items():  # one a turn, where there are many rules
            yield from labelled(rules, {name: reader})
        yield from self.cells()
        yield from space_metrics(self.spaces) + _pipeline(self.pipeline())
        yield from relay_metrics(self.relay, machine.limits.metric_streams_max, per_topic=per_topic)

    def _server(self, now: Now) -> list[Metric]:
        runtime, machine = self.runtime, self.runtime.machine
        totals, meter, replays = machine.totals, machine.meter, self.replays
        values: dict[str, float] = {
            "penstock_streams": len(machine.channels),
            "penstock_streams_dormant": len(machine.dormant),
            "penstock_links": len(machine.links),
            "penstock_bytes": machine.bytes,
            "penstock_pending_bytes": machine.pending_bytes,
            "penstock_outbox_bytes": runtime.peers.outboxes.total,
            "penstock_readers_cut": runtime.peers.outboxes.cut,
            "penstock_input_bytes": runtime.peers.inputs.total,
            "penstock_senders_cut": runtime.peers.inputs.cut,
            "penstock_dedup_ids": machine.ids,
            "penstock_rate_buckets": 0 if meter is None else len(meter),
            "penstock_idempotency_keys": len(replays),
            "penstock_redelivery_hot": hot.total(machine),
            "penstock_uptime_seconds": runtime.uptime_s(now),
            "penstock_records_refused": totals.records_refused,
            "penstock_settles_refused": totals.settles_refused,
            "penstock_observations_dropped": machine.commit_log.observations_dropped,
            "penstock_dead_letters_blocked": totals.dead_blocked,
            "penstock_tap_copies_lost": totals.copies_lost,
            "penstock_dedup_evicted": totals.dedup_evicted,
            "penstock_streams_forgotten": totals.dormant_forgotten,
            "penstock_slow_peers_cut": runtime.peers.slow_cut,
            "penstock_subscriptions_evicted": runtime.subscriptions_evicted,
            "penstock_log_lines_dropped": self.log_dropped(),
            "penstock_record_frames_dropped": self.record_dropped(),
            "penstock_rate_limited": 0 if meter is None else meter.refused,
            "penstock_rate_buckets_forgotten": 0 if meter is None else meter.forgotten,
            "penstock_idempotency_replays": replays.replayed,
            "penstock_idempotency_forgotten": replays.forgotten,
        }
        if runtime.events is not None:
            values["penstock_events_dropped"] = runtime.events.dropped
        if isinstance(machine.schemas, Registry):
            values["penstock_schema_warned"] = machine.schemas.warned
            values["penstock_schema_refused"] = machine.schemas.refused
        refused = {} if self.admission is None else self.admission.refused
        doors = labelled(refused.items(), {"connections_refused": lambda count: count})
        return (
            metric_names.families(values)
            + doors
            + labelled(self.tokens_refused.items(), {"tokens_refused": lambda count: count})
            + labelled(runtime.inputs_refused.items(), {"inputs_refused": lambda count: count})
            + _turns(self.turns)
            + _journal(runtime, self.archive)
            + _views(runtime)
        )


def _turns(turns: TurnTimes | None) -> list[Metric]:
    """How long the turns of the loop take."""
    if turns is None:
        return []
    counts = zip((*map(str, TURN_BOUNDS), "+Inf"), accumulate(turns.counts), strict=True)
    metric = metric_names.BY_NAME["penstock_loop_turn_seconds"]
    histogram = HistogramMetricFamily(metric.name, metric.text, buckets=list(counts), sum_value=turns.total_s)
    longest = zip(("longest_seconds", "longest_cpu_seconds"), (turns.longest_s, turns.longest_cpu_s), strict=True)
    return [histogram, *metric_names.families({f"penstock_loop_turn_{name}": value for name, value in longest})]


def _journal(runtime: Runtime, archive: JournalLifecycle | None) -> list[Metric]:
    """The journal on disk, if there is one."""
    if archive is None:
        return []
    return metric_names.families(
        {
            "penstock_journal_refusing": int(runtime.trouble is not None),
            "penstock_journal_rows": archive.journal.next_offset,
            "penstock_journal_segment_bytes": archive.journal.segment_size,
            "penstock_journal_disk_free_bytes": archive.free_bytes(),
            "penstock_journal_seals_failed": archive.seals_failed,
            "penstock_lake_damaged": int(archive.lake_trouble is not None),
        }
    )


def _views(runtime: Runtime) -> list[Metric]:
    """The views and their followers."""
    values: dict[str, Callable[[Any], float]] = {
        "view_rows": lambda feed: len(feed.view.rows),
        "view_evicted": attrgetter("view.evicted"),
        "live_followers": lambda feed: len(feed.watchers),
        "live_deltas": attrgetter("deltas"),
        "live_snapshots": attrgetter("snapshots"),
    }
    return labelled(runtime.live.feeds.items(), values)


def _pipeline(status: PipelineStatus | None) -> list[Metric]:
    """The Spark pipeline, if this server runs one."""
    if status is None:
        return []
    values: dict[str, float] = {
        "penstock_pipeline_up": int(status.state == "running"),
        "penstock_pipeline_halted": int(status.state == "halted"),
        "penstock_pipeline_lag_rows": status.lag,
        "penstock_pipeline_restarts": status.restarts,
        "penstock_pipeline_tables_stopped": len(status.stopped),
    }
    more = labelled(status.tables.items(), metric_names.readers("table"))
    for name, reader in metric_names.readers("query").items():
        own = {} if name == "pipeline_offset" else status.own_queries  # Spark does not report the offset of these
        more += labelled((status.queries | own).items(), {name: reader})
    expected = {(one.table, one.name, one.on_fail): one.failed for one in status.expectations}
    failed = {(one.query, one.table, one.step): one.count for one in status.failed}
    for name, counts in (("expectation_failed", expected), ("failed_batches", failed)):
        more += labelled(counts.items(), {f"pipeline_{name}": float})
    return metric_names.families(values) + more


def relay_metrics(relay: RelaySupervisor | None, topics_max: int, *, per_topic: bool) -> list[Metric]:
    """The counts of the relay's latest report."""
    if relay is None:
        return []
    values: dict[str, float] = {
        "penstock_relay_up": int(relay.is_up),
        "penstock_relay_restarts": relay.restarts,
        "penstock_relay_sockets_cut": 0 if relay.hub is None else relay.hub.slow_cut,
    }
    more: list[Metric] = []
    figures = relay.figures
    if figures is not None:
        totals = msgspec.structs.asdict(figures.totals)
        values |= {f"penstock_relay_{name}": count for name, count in totals.items()}
        values |= {
            "penstock_relay_topics": figures.topics,
            "penstock_relay_held_bytes": figures.bytes,
            "penstock_relay_observations_dropped": figures.dropped,
            "penstock_relay_facts_dropped": figures.facts_dropped + relay.facts_dropped,
            "penstock_relay_reopened": figures.reopened,
        }
        more = labelled(figures.refused.items(), {"relay_refusals": lambda count: count})
        more += labelled(figures.peers_cut.items(), {"relay_peers_cut": lambda count: count})
    if per_topic:
        topics = {f"relay_topic_{name}": attrgetter(name) for name in ("messages", "bytes", "waiting")}
        more += labelled(islice(relay.topics.items(), topics_max), topics)
    return metric_names.families(values) + more


def space_metrics(spaces: Spaces | None) -> list[Metric]:
    """Counts of each space."""
    if spaces is None or not spaces.spaces:
        return []
    rows = []
    for id_, space in spaces.spaces.items():
        counts = {"participants": len(space.present), "streams": len(space.state.streams), **space.counts()}
        rows.append((id_, {"pending_bytes": space.pending_bytes, **counts}))
    return labelled(rows, {name: itemgetter(name.removeprefix("space_")) for name in metric_names.readers("space")})


class ByStream:
    """Figures per stream: the first `limits.metric_streams_max` by name, the rest summed as `other`."""

    def __init__(self, machine: QueueMachine, principal: Principal) -> None:
        self._machine = machine
        self._principal = principal
        self._sums: dict[str, dict[str, float]] = {}
        self._waits: dict[str, dict[str, float]] = {}
        self._dead = 0

    def names(self) -> list[str]:
        return [name for name in self._machine.channels if self._principal.allows("read", name)]

    def add(self, now: Now, names: list[str]) -> None:
        machine, sums = self._machine, self._sums
        for name in names:
            channel = machine.channels.get(name)
            if channel is None:
                continue
            label = self._principal.from_channel(name) if len(sums) < machine.limits.metric_streams_max else OTHER
            into = sums.setdefault(label, dict.fromkeys(_FIGURES, 0))
            for key, value in machine.metrics(now, channel).items():
                into[key] += value
            self._dead += channel.depth * is_dead(name)
            if label != OTHER:
                stats = machine.stats(now, channel)
                self._waits[label] = {share: stats[key] for key, share in _LATENCIES.items()}

    def families(self) -> Iterator[Metric]:
        for key in _FIGURES:
            figures = metric_names.family(metric_names.queue_name(key))
            for label, values in self._sums.items():
                figures.add_metric([label], values[key])
            yield figures
        wait = metric_names.family(metric_names.WAIT)
        for label, shares in self._waits.items():
            for share, value in shares.items():
                wait.add_metric([label, share], value)
        yield wait
        yield metric_names.family(metric_names.DEAD, self._dead)


class Together:
    """Sums over the streams that the caller may read; with access to all, unloaded streams are included."""

    def __init__(self, machine: QueueMachine, principal: Principal) -> None:
        self._machine = machine
        self._principal = principal
        self._is_whole = principal.allows("read", EVERY)
        self._sums = dict.fromkeys(_FIGURES, 0)
        self._latencies: dict[int, int] | None = None
        self._looks = machine.limits.metric_streams_max
        self._dead = 0

    def names(self) -> list[str]:
        machine = self._machine
        if self._is_whole:
            self._count(overview(machine, [], asleep=[replace(machine.asleep)]))
            return list(machine.channels)
        return [name for name in machine.channels if self._principal.allows("read", name)]

    def add(self, now: Now, names: list[str]) -> None:
        machine = self._machine
        channels = [channel for name in names if (channel := machine.channels.get(name)) is not None]
        asleep = [machine.dormant[name].counters for name in names if name in machine.dormant]
        self._count(overview(machine, channels, asleep=asleep))
        for channel in channels:
            self._dead += channel.depth * is_dead(channel.name)
            counts = channel.latencies.counts(now.us) if self._looks else None
            if counts is not None:
                self._latencies = counts if self._latencies is None else merged(self._latencies, counts)
                self._looks -= 1

    def _count(self, row: dict[str, int]) -> None:
        for key, value in row.items():
            self._sums[key] += value

    def families(self) -> Iterator[Metric]:
        for key in _FIGURES:
            yield metric_names.family(metric_names.queue_name(key), self._sums[key])
        shares = [float(share) for share in _LATENCIES.values()]
        found = [0] * len(shares) if self._latencies is None else percentiles_us(self._latencies, tuple(shares))
        wait = metric_names.BY_NAME[metric_names.WAIT].family(labels=("quantile",))
        for share, us in zip(_LATENCIES.values(), found, strict=True):
            wait.add_metric([share], round(us / 1000, 3))
        yield wait
        yield metric_names.family(metric_names.DEAD, self._dead)


class Scrape:
    """One scrape: reads the figures of the streams, then writes the text, a part a turn."""

    def __init__(self, figures: ByStream | Together, rest: Callable[[Now], Iterator[Metric]]) -> None:
        self._figures = figures
        self._rest = rest
        self._names = Slices(figures.names)
        self._left: Iterator[Metric] | None = None
        self._parts: list[bytes] = []

    def step(self, now: Now) -> bool:
        if self._left is None:
            self._figures.add(now, self._names.take())
            if not self._names.is_over:
                return False
            self._left = chain(self._figures.families(), self._rest(now))
        samples = 0
        while samples < SAMPLES_A_TURN:
            metric = next(self._left, None)
            if metric is None:
                return True
            samples += len(metric.samples)
            self._write(metric)
        return False

    def _write(self, metric: Metric) -> None:
        self._parts.append(generate_latest(_Family(metric)))

    def text(self) -> bytes:
        return b"".join(self._parts)


class Readings(Scrape):
    """The same figures as numbers: quantiles one by one, other metrics summed over their labels."""

    def __init__(self, figures: ByStream | Together, rest: Callable[[Now], Iterator[Metric]]) -> None:
        super().__init__(figures, rest)
        self.values: dict[str, float] = {}

    def _write(self, metric: Metric) -> None:
        for sample in metric.samples:
            share = sample.labels.get("quantile")
            name = sample.name if share is None else f'{sample.name}{{quantile="{share}"}}'
            self.values[name] = self.values.get(name, 0) + sample.value


class _Family(CollectorRegistry):
    """A registry of one family."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(auto_describe=False)
        self._family = metric

    def collect(self) -> Iterable[Metric]:
        return [self._family]
