"""The tables `queue_minutes` and `trigger_minutes`, and when a minute is final.

A minute's row depends only on the journal rows of that minute. So a batch recomputes every minute it can touch (`reach_us`) from all
of its rows and replaces the stored ones; the result does not depend on how the journal was cut into batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from penstock.spark.lake_tables.deliveries import SETTLED
from penstock.spark.lake_tables.expressions import TOTAL_MS, WAIT_MS, date_of, minute_of, of_journal, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE_US = 60_000_000
GRACE_US = 10_000_000
"""A gauge counts for its minute if it arrives within this time after the minute's end. Then the minute is final."""
FINAL = f"{of_journal('until')} >= unix_micros(minute) + {MINUTE_US + GRACE_US}"
"""`is_final` as SQL, for queries with a parameter `until`."""
Times: TypeAlias = Mapping[str, int]
"""Microseconds since 1970 by journal; under an empty name for all journals."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def floor_minute(us: int) -> int:
    """The start of the minute of a time."""
    return us // MINUTE_US * MINUTE_US


def is_final(minute_us: int, until_us: int) -> bool:
    """Whether no row recorded after `until_us` can change a minute."""
    return until_us >= minute_us + MINUTE_US + GRACE_US


def reach_us(last_us: int) -> int:
    """Start of the earliest minute that rows recorded after `last_us` can change: recompute from here."""
    return floor_minute(last_us - MINUTE_US - GRACE_US)


def from_us(us: int) -> datetime:
    """A time from its microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=us)


_GAUGE = "minute bigint, ready bigint, leased bigint, delayed bigint, oldest double, delta map<string, bigint>, own map<string, bigint>"


def queue_minutes(events: DataFrame, until: Times, since: Times | None = None) -> DataFrame:
    """One row for each queue and each minute in which something happened to it.

    `events` are all rows of some minutes. `until` is the time of the last row, `since` that of the first; without it, `since` is
    queried. Events that have a journal row are counted; deliveries, lease timeouts, duplicates and rejects come from the gauges of the
    minute. Depths are those of its last gauge, null without one (the minute is running, or nothing changed). Percentiles are exact,
    over the records settled in the minute, null if there are none.
    """
    if since is None:
        [first] = events.selectExpr("unix_micros(min(recorded_at))").collect()
        since = {"": floor_minute(first[0] or 0)}
    # The first rows may be gauges of the minute before, whose rows are not in `events`: its stored row is complete and must stay.
    return query(_QUEUE_MINUTES, events, until=until, since=since)


def _grown(counter: str) -> str:
    """How much a counter grew, by the gauges of the minute; without what the pipeline sent itself."""
    return f"coalesce(sum(gauge.delta['{counter}'] - coalesce(gauge.own['{counter}'], 0)), 0)"


_SEEN = ("enqueued", "delivered", "acked", "nacked", "timed_out", "dead", "dropped", "purged", "duplicates", "rejected")
_DEPTHS = {state: f"last.{state} - coalesce(last.own['{state}'], 0)" for state in ("ready", "leased", "delayed")}
"""How many records were in a state by the last gauge; without those of the pipeline itself."""


_CLOSED = minute_of("timestamp_micros(gauge.minute)")
_LATE_US = f"unix_micros(recorded_at) - unix_micros({_CLOSED})"
_QUEUE_MINUTES = f"""
with gauged as (
  select *, if(event = 'gauge', from_json(meta, '{_GAUGE}'), null) as gauge from {{rows}}
  where door = 'courier' and channel != ''
), placed as (
  -- A row counts for the minute of its time, a gauge for the minute it closes. A gauge that is too late for that, or that was written
  -- before the clock was set back, counts for the minute of its own time: a final minute never changes.
  select *, case when {_LATE_US} >= 0 and {_LATE_US} < {MINUTE_US + GRACE_US} then {_CLOSED}
    else {minute_of("recorded_at")} end as minute
  from gauged
), counted as (
  select journal, channel, minute,
    count_if(event = 'enqueue') as enqueued,
    {_grown("out")} as delivered,
    {_grown("re")} as redelivered,
    count_if(event = 'ack') as acked,
    -- A nack with a fate means that the dead-letter stream is full, not that a consumer failed.
    count_if(event = 'nack' and get_json_object(meta, '$.fate') is null) as nacked,
    {_grown("timeout")} as timed_out,
    count_if(event = 'dead') as dead,
    count_if(event = 'drop') as dropped,
    count_if(event = 'purge') as purged,
    {_grown("dup")} as duplicates,
    {_grown("reject")} as rejected,
    coalesce(sum(if(event = 'enqueue', cast(bytes as bigint), null)), 0) as bytes_in,
    max_by(gauge, if(event = 'gauge', offset, null)) as last,
    coalesce(bool_or(gauge.own is not null), false) as has_own,
    percentile(if({SETTLED}, {WAIT_MS}, null), array(0.5D, 0.95D, 0.99D)) as waits,
    percentile(if({SETTLED}, {TOTAL_MS}, null), 0.95D) as total_p95_ms
  from placed where minute >= timestamp_micros({of_journal("since")}) group by journal, channel, minute
)
select journal, {date_of("minute")} as date, minute, channel, enqueued, delivered, redelivered, acked, nacked, timed_out, dead, dropped,
  purged, duplicates, rejected, bytes_in, {", ".join(f"{depth} as {state}" for state, depth in _DEPTHS.items())}, last.oldest as oldest_ms,
  waits[0] as wait_p50_ms, waits[1] as wait_p95_ms, waits[2] as wait_p99_ms, total_p95_ms,
  {FINAL} as final
from counted where not has_own or {" + ".join([*_SEEN, *_DEPTHS.values()])} > 0
"""


TRIGGERED = "door = 'courier' and event = 'trigger'"
"""Rows in which a trigger acted, as SQL."""


def trigger_minutes(events: DataFrame, until: Times) -> DataFrame:
    """One row for each trigger and each minute in which it fired, or in which a cooldown that suppressed firings ended.

    `events` are all rows of some minutes; `until` is the time of the last. A firing that failed in part counts as `failed`, not as
    `fired`; the envelopes it did send count as `sent`. If the rule changed within the minute, `hook` is the later one.
    """
    return query(_TRIGGER_MINUTES, events, until=until)


_FIRING = "hook string, sent array<struct<id: string>>, suppressed bigint"
_TRIGGER_MINUTES = f"""
with acted as (
  select journal, peer as trigger, {minute_of("recorded_at")} as minute, channel, offset, reason, from_json(meta, '{_FIRING}') as firing
  from {{rows}} where {TRIGGERED} and peer is not null
), counted as (
  select journal, trigger, minute,
    max_by(firing.hook, offset) as hook,
    count_if(reason = 'fired') as fired,
    count_if(reason = 'failed') as failed,
    coalesce(sum(firing.suppressed), 0) as suppressed,
    coalesce(sum(array_size(firing.sent)), 0) as sent,
    cast(count(distinct channel) as int) as streams
  from acted group by journal, trigger, minute
)
select journal, {date_of("minute")} as date, minute, trigger, hook, fired, failed, suppressed, sent, streams,
  {FINAL} as final
from counted
"""
