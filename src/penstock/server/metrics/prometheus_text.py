"""A scrape of the queue's figures, per stream or summed: reads a few streams a turn, then writes the text.

The figures of a stream are read at one instant, so they balance, and so do their sums. No sum ever decreases: a stream that is
unloaded during the scrape counts with its stored counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from penstock.core.clock import Now
from penstock.core.queue.counters import merged, percentiles_us
from penstock.core.queue.inspect import overview
from penstock.core.queue.machine import QueueMachine
from penstock.core.scopes import Principal
from penstock.core.tenants import is_dead
from penstock.dialects.courier.operations.queries import Slices
from penstock.server.metrics.metric_names import BY_NAME, DEAD, QUEUE_COUNTERS, QUEUE_GAUGES, WAIT, family, queue_name

OTHER = "other"
EVERY = "*"
"""A name that only a scope over all streams matches; no stream has it."""
SAMPLES_A_TURN = 1_000
"""Samples written in one turn: a few milliseconds of work."""

_FIGURES = (*QUEUE_COUNTERS, *QUEUE_GAUGES)
_LATENCIES = {"latP50": "0.5", "latP95": "0.95", "latP99": "0.99"}


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
            self._dead += len(channel.ready) * is_dead(name)
            if label != OTHER:
                stats = machine.stats(now, channel)
                self._waits[label] = {share: stats[key] for key, share in _LATENCIES.items()}

    def families(self) -> Iterator[Metric]:
        for key in _FIGURES:
            figures = family(queue_name(key))
            for label, values in self._sums.items():
                figures.add_metric([label], values[key])
            yield figures
        wait = family(WAIT)
        for label, shares in self._waits.items():
            for share, value in shares.items():
                wait.add_metric([label, share], value)
        yield wait
        yield family(DEAD, self._dead)


class Together:
    """Sums over the streams that the caller may read; with access to all, unloaded streams are included."""

    def __init__(self, machine: QueueMachine, principal: Principal) -> None:
        self._machine = machine
        self._principal = principal
        self._is_whole = principal.allows("read", EVERY)
        self._sums = dict.fromkeys(_FIGURES, 0)
        self._latencies: list[int] | None = None
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
            self._dead += len(channel.ready) * is_dead(channel.name)
            counts = channel.latencies.counts(now.us) if self._looks else None
            if counts is not None:
                self._latencies = counts if self._latencies is None else merged(self._latencies, counts)
                self._looks -= 1

    def _count(self, row: dict[str, int]) -> None:
        for key, value in row.items():
            self._sums[key] += value

    def families(self) -> Iterator[Metric]:
        for key in _FIGURES:
            yield family(queue_name(key), self._sums[key])
        shares = [float(share) for share in _LATENCIES.values()]
        found = [0] * len(shares) if self._latencies is None else percentiles_us(self._latencies, tuple(shares))
        wait = BY_NAME[WAIT].family(labels=("quantile",))
        for share, us in zip(_LATENCIES.values(), found, strict=True):
            wait.add_metric([share], round(us / 1000, 3))
        yield wait
        yield family(DEAD, self._dead)


class Scrape:
    """One scrape: reads the figures of the streams, then writes the text, a part a turn."""

    def __init__(
        self, machine: QueueMachine, figures: ByStream | Together, rest: Callable[[Now], list[Metric]]
    ) -> None:
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
            family = next(self._left, None)
            if family is None:
                return True
            samples += len(family.samples)
            self._write(family)
        return False

    def _write(self, family: Metric) -> None:
        self._parts.append(generate_latest(_Family(family)))

    def text(self) -> bytes:
        return b"".join(self._parts)


class Readings(Scrape):
    """The same figures as numbers: quantiles one by one, other metrics summed over their labels."""

    def __init__(
        self, machine: QueueMachine, figures: ByStream | Together, rest: Callable[[Now], list[Metric]]
    ) -> None:
        super().__init__(machine, figures, rest)
        self.values: dict[str, float] = {}

    def _write(self, family: Metric) -> None:
        for sample in family.samples:
            share = sample.labels.get("quantile")
            name = sample.name if share is None else f'{sample.name}{{quantile="{share}"}}'
            self.values[name] = self.values.get(name, 0) + sample.value


class _Family(CollectorRegistry):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        super().__init__(auto_describe=False)
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]
