"""The last day of the main metrics and of the busiest streams, for `GET /v1/history` and the console's plots.

The server samples its own metrics every few seconds, whether or not a page is open. Counters become rates. The rows of the
last hour are kept one by one, older ones as means of a minute. The rings end with the process; `admin/lake.py` reads
what is older from the lake.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from heapq import nlargest
from time import monotonic
from typing import Annotated

import msgspec

from penstock.core.clock import Now
from penstock.core.queue.machine import QueueMachine
from penstock.core.scopes import OPERATOR
from penstock.server.engine.schedulers import completed
from penstock.server.logging import logs
from penstock.server.metrics.prometheus_families import Exporter, Together

SAMPLE_S = 5.0
"""Time between two samples."""
SHARE = 100
"""A sample that takes long is followed by a pause of this many times its duration: at most 1 % of the time is for samples."""
FINE_ROWS = 720
"""Samples that are kept: an hour."""
FOLD = 12
"""Samples in one row of a minute."""
MINUTE_ROWS = 1_440
"""Minutes that are kept: a day. With the samples this takes about half a megabyte."""
DAY_S = 86_400
WEEK_S = 7 * DAY_S
STREAMS_MAX = 32
"""Streams with a history of their own, about 300 KB each after a day: the busiest ones."""
MEMORY = 720
"""Samples that the traffic of a stream is averaged over: an hour. A stream takes the place of another that had less than half of its traffic."""

WAITS = tuple(f'penstock_q_lat_ms{{quantile="{share}"}}' for share in ("0.5", "0.95", "0.99"))
METRICS = (
    "penstock_q_in_total", "penstock_q_out_total", "penstock_q_ack_total", "penstock_q_dead_total",
    "penstock_q_depth", "penstock_q_if", "penstock_q_delayed", "penstock_dead_letters", *WAITS,
    "penstock_space_envelopes_total", "penstock_space_frames_total", "penstock_space_deliveries_total",
    "penstock_relay_messages_total", "penstock_relay_forwarded_total", "penstock_pipeline_lag_rows",
    "penstock_links", "penstock_outbox_bytes",
)  # fmt: skip
"""The columns. A name that ends with `_total` is a counter and is kept as its rate."""
STREAM_METRICS = {
    **{f"penstock_q_{name}_total": f"q.{name}" for name in ("in", "out", "ack", "dead")},
    **{f"penstock_q_{name}": f"q.{name}" for name in ("depth", "if", "delayed")},
}
"""The columns of one stream, and the names of its figures."""


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/history`: all streams together, or one."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=WEEK_S)] = 3_600
    stream: str = ""


class HistoryReply(msgspec.Struct):
    """Rows in order of time; null where the server did not report a metric."""

    times: Annotated[list[float], msgspec.Meta(description="Seconds since 1970")]
    columns: Annotated[
        dict[str, list[float | None]], msgspec.Meta(description="Counters as rates per second, by metric")
    ]
    sampled: Annotated[bool, msgspec.Meta(description="False for a stream that is not among the busiest")] = True
    note: Annotated[str | None, msgspec.Meta(description="Why no earlier rows were read from the lake")] = None


class Ring:
    """Two bounded rings of rows: a monotonic time, then a number for each metric, NaN where it is unknown."""

    def __init__(self, metrics: Sequence[str], traffic: float = 0.0) -> None:
        self._metrics, self.traffic = metrics, traffic
        """`traffic` is envelopes in and out per second, averaged over the last `MEMORY` samples."""
        self._fine: deque[array[float]] = deque(maxlen=FINE_ROWS)
        self._minutes: deque[array[float]] = deque(maxlen=MINUTE_ROWS)
        self._open: list[array[float]] = []
        """Samples of the minute that is not over."""
        self._before: tuple[float, Mapping[str, float]] | None = None

    def add(self, at_s: float, values: Mapping[str, float]) -> None:
        """Add a sample. Its time is monotonic, so that rows stay in order when the wall clock is set."""
        before_s, before = self._before or (-math.inf, {})
        if at_s <= before_s:
            return
        self._before = at_s, values
        row = array("d", [round(at_s, 1)])
        for name in self._metrics:
            value = values.get(name, math.nan)
            if name.endswith("_total"):
                grown = value - before.get(name, math.nan)
                value = (value if grown < 0 else grown) / (at_s - before_s)  # a relay that restarts counts from 0
            row.append(value)
        self._fine.append(row)
        self._open.append(row)
        if len(self._open) == FOLD:
            self._minutes.append(array("d", map(_mean, zip(*self._open, strict=True))))
            self._minutes[-1][0] = row[0]
            self._open.clear()

    def reply(self, seconds: int, now: Now) -> HistoryReply:
        """The rows of the last `seconds`, in the wall time of now."""
        rows = [*self._fine] if seconds <= FINE_ROWS * SAMPLE_S else [*self._minutes, *self._open]
        first_s = rows[-1][0] - seconds if rows else 0.0
        rows = [row for row in rows if row[0] >= first_s]
        columns = {name: [_known(row[place]) for row in rows] for place, name in enumerate(self._metrics, 1)}
        ahead_s = (now.wall_us - now.us) / 1_000_000
        return HistoryReply([round(row[0] + ahead_s, 1) for row in rows], columns)


class Busiest(Together):
    """The sums, and the streams with most traffic, those without traffic by their depth."""

    def __init__(self, machine: QueueMachine) -> None:
        super().__init__(machine, OPERATOR)
        self.streams: list[tuple[float, int, str]] = []
        """Envelopes per second in and out, depth and name, busiest first."""

    def add(self, now: Now, names: list[str]) -> None:
        super().add(now, names)
        for channel in filter(None, map(self._machine.channels.get, names)):
            rate = channel.rate_in.per_second(now.us) + channel.rate_out.per_second(now.us)
            if rate or channel.live:
                self.streams.append((rate, len(channel.live), channel.name))
        self.streams = nlargest(STREAMS_MAX, self.streams)


class MetricsHistory:
    """The ring of the server, and those of its busiest streams."""

    def __init__(self) -> None:
        self.server = Ring(METRICS)
        self._streams: dict[str, Ring] = {}

    async def run(self, exporter: Exporter) -> None:
        """Sample at intervals, until cancelled."""
        runtime, failure = exporter.runtime, ""
        while True:
            began_s = monotonic()
            try:
                busiest = Busiest(runtime.machine)
                readings = exporter.readings(busiest)
                await completed(runtime.survey, readings)
                now = runtime.scheduler.now()
                self.server.add(now.us / 1_000_000, readings.values)
                self.add_streams(now, runtime.machine, busiest.streams)
                failure = ""
            except Exception as error:
                if failure != (failure := repr(error)):  # once, not with every sample
                    logs.error("history.failed", exc=error)
            took_s = monotonic() - began_s
            await asyncio.sleep(max(SAMPLE_S - took_s, SHARE * took_s))

    def add_streams(self, now: Now, machine: QueueMachine, busiest: Sequence[tuple[float, int, str]]) -> None:
        """Add a sample of each stream that has a ring. A busy stream without one gets a free one, or that of a quiet stream."""
        for rate, _, name in busiest:
            if name in self._streams:
                continue
            if len(self._streams) >= STREAMS_MAX:
                quiet = min(self._streams, key=lambda each: self._streams[each].traffic)
                if rate <= 2 * self._streams[quiet].traffic:
                    break
                del self._streams[quiet]
            self._streams[name] = Ring([*STREAM_METRICS], rate)
        rates = {name: rate for rate, _, name in busiest}
        for name, ring in self._streams.items():
            ring.traffic += (rates.get(name, 0.0) - ring.traffic) / MEMORY
            channel = machine.channels.get(name)  # None: unloaded, because it was idle
            figures = {} if channel is None else machine.metrics(now, channel)
            ring.add(now.us / 1_000_000, {name: figures[key] for name, key in STREAM_METRICS.items() if figures})

    def reply(self, query: HistoryQuery, now: Now) -> HistoryReply:
        """The rows of the last `seconds`, in the wall time of now."""
        ring = self._streams.get(query.stream) if query.stream else self.server
        found = (ring or Ring([*STREAM_METRICS])).reply(query.seconds, now)
        found.sampled = ring is not None
        return found


def _mean(values: tuple[float, ...]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)
