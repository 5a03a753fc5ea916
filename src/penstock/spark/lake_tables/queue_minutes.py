"""The table `queue_minutes`: counts, depths and latency percentiles of each queue by the minute."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from penstock.spark.lake_tables.deliveries import SETTLED
from penstock.spark.lake_tables.expressions import TOTAL_MS, WAIT_MS, date_of, minute_of, query
from penstock.spark.lake_tables.minutes import FINAL, GRACE_US, MINUTE_US, floor_minute, to_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GAUGE = "minute bigint, ready bigint, leased bigint, delayed bigint, oldest double, delta map<string, bigint>"


def queue_minutes(events: DataFrame, until: datetime, since: datetime | None = None) -> DataFrame:
    """One row for each queue and each minute in which something happened to it.

    `events` are all rows of some minutes. `until` is the time of the last row, `since` that of the first; without it, `since` is
    queried. Events that have a journal row are counted; deliveries, lease timeouts, duplicates and rejects come from the gauges of the
    minute. Depths are those of its last gauge, null without one (the minute is running, or nothing changed). Percentiles are exact,
    over the records settled in the minute, null if there are none.
    """
    if since is None:
        [first] = events.selectExpr("unix_micros(min(recorded_at))").collect()
        since_us = first[0] or 0
    else:
        since_us = to_us(since)
    # The first rows may be gauges of the minute before, whose rows are not in `events`: its stored row is complete and must stay.
    return query(_QUEUE_MINUTES, events, until_us=to_us(until), since_us=floor_minute(since_us))


def _grown(counter: str) -> str:
    """How much a counter grew, by the gauges of the minute."""
    return f"coalesce(sum(gauge.delta['{counter}']), 0)"


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
    percentile(if({SETTLED}, {WAIT_MS}, null), array(0.5D, 0.95D, 0.99D)) as waits,
    percentile(if({SETTLED}, {TOTAL_MS}, null), 0.95D) as total_p95_ms
  from placed where minute >= timestamp_micros(:since_us) group by journal, channel, minute
)
select journal, {date_of("minute")} as date, minute, channel, enqueued, delivered, redelivered, acked, nacked, timed_out, dead, dropped,
  purged, duplicates, rejected, bytes_in, last.ready as ready, last.leased as leased, last.delayed as delayed, last.oldest as oldest_ms,
  waits[0] as wait_p50_ms, waits[1] as wait_p95_ms, waits[2] as wait_p99_ms, total_p95_ms,
  {FINAL} as final
from counted
"""
