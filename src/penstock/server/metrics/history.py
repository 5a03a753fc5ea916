"""`GET /v1/history`: the last day of the main metrics, for the console's plots.

The server samples its own metrics every few seconds, whether or not a page is open. Counters become rates. The rows of the
last hour are kept one by one, older ones as means of a minute. The history ends with the process; the `gauge` rows of the
journal have what is older.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import Annotated

import msgspec

from penstock.core.clock import Now
from penstock.core.scopes import OPERATOR
from penstock.server.engine.schedulers import completed
from penstock.server.logging import logs
from penstock.server.metrics.prometheus_families import Exporter

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

WAITS = tuple(f'penstock_q_lat_ms{{quantile="{share}"}}' for share in ("0.5", "0.95", "0.99"))
METRICS = (
    "penstock_q_in_total", "penstock_q_out_total", "penstock_q_ack_total", "penstock_q_dead_total",
    "penstock_q_depth", "penstock_q_if", "penstock_q_delayed", "penstock_dead_letters", *WAITS,
    "penstock_space_envelopes_total", "penstock_space_frames_total", "penstock_space_deliveries_total",
    "penstock_relay_messages_total", "penstock_relay_forwarded_total", "penstock_pipeline_lag_rows",
    "penstock_links", "penstock_outbox_bytes",
)  # fmt: skip
"""The columns. A name that ends with `_total` is a counter and is kept as its rate."""


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/history`."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=DAY_S)] = 3_600


class HistoryReply(msgspec.Struct):
    """Rows in order of time; null where the server did not report a metric."""

    times: Annotated[list[float], msgspec.Meta(description="Seconds since 1970")]
    columns: Annotated[
        dict[str, list[float | None]], msgspec.Meta(description="Counters as rates per second, by metric")
    ]


class MetricsHistory:
    """Two bounded rings of rows: a monotonic time, then a number for each of `METRICS`, NaN where it is unknown."""

    def __init__(self) -> None:
        self._fine: deque[array[float]] = deque(maxlen=FINE_ROWS)
        self._minutes: deque[array[float]] = deque(maxlen=MINUTE_ROWS)
        self._open: list[array[float]] = []
        """Samples of the minute that is not over."""
        self._before: tuple[float, Mapping[str, float]] | None = None

    async def run(self, exporter: Exporter) -> None:
        """Sample at intervals, until cancelled."""
        runtime, failure = exporter.runtime, ""
        while True:
            began_s = monotonic()
            try:
                readings = exporter.readings(OPERATOR)
                await completed(runtime.survey, readings)
                self.add(runtime.scheduler.now().us / 1_000_000, readings.values)
                failure = ""
            except Exception as error:
                if failure != (failure := repr(error)):  # once, not with every sample
                    logs.error("history.failed", exc=error)
            took_s = monotonic() - began_s
            await asyncio.sleep(max(SAMPLE_S - took_s, SHARE * took_s))

    def add(self, at_s: float, values: Mapping[str, float]) -> None:
        """Add a sample. Its time is monotonic, so that rows stay in order when the wall clock is set."""
        before_s, before = self._before or (-math.inf, {})
        if at_s <= before_s:
            return
        self._before = at_s, values
        row = array("d", [round(at_s, 1)])
        for name in METRICS:
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

    def reply(self, query: HistoryQuery, now: Now) -> HistoryReply:
        """The rows of the last `seconds`, in the wall time of now."""
        rows = [*self._fine] if query.seconds <= FINE_ROWS * SAMPLE_S else [*self._minutes, *self._open]
        first_s = rows[-1][0] - query.seconds if rows else 0.0
        rows = [row for row in rows if row[0] >= first_s]
        columns = {name: [_known(row[place]) for row in rows] for place, name in enumerate(METRICS, 1)}
        ahead_s = (now.wall_us - now.us) / 1_000_000
        return HistoryReply([round(row[0] + ahead_s, 1) for row in rows], columns)


def _mean(values: tuple[float, ...]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)
