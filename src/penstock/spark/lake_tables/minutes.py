"""The tables `deliveries`, a row for each settled record, `frames`, and those of minutes; when a minute is final.

A minute's row depends only on the journal rows of that minute. So a batch recomputes every minute it can touch (`reach_us`) from all
of its rows and replaces the stored ones; the result does not depend on how the journal was cut into batches.

The table `fanout_minutes` has the deliveries that targeting saved. A stream journaled in full has a row for each frame, any other stream one row a second with counts; a minute adds up both. The cost of
a broadcast includes the sender, which receives its own frames.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.spark.lake_tables.expressions import (
    MEW,
    OUTCOMES,
    TOTAL_MS,
    WAIT_MS,
    date_of,
    minute_of,
    ms_between,
    query,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SETTLED = f"event in {tuple(OUTCOMES)}"
"""Rows that settle a record, as SQL."""


def deliveries(events: DataFrame) -> DataFrame:
    """One row for each settled record.

    `wait_ms` is from the enqueue to the first delivery, `work_ms` from there to the settle, `total_ms` the sum. The first two are
    null for a record that was never delivered. If the clock was set back in between, the time is 0.
    """
    return events.where(f"door <=> 'courier' and {SETTLED}").selectExpr(*_DELIVERY)


_CASES = " ".join(f"when '{event}' then '{outcome}'" for event, outcome in OUTCOMES.items())
_DELIVERY = (
    "journal",
    "offset",
    f"{date_of('recorded_at')} as date",
    "channel",
    "seq",
    "id",
    "kind as type",
    "sender",
    "peer as holder",
    "corr",
    "ref_at as enqueued_at",
    "first_at as first_delivered_at",
    "recorded_at as settled_at",
    "attempt as attempts",
    f"{WAIT_MS} as wait_ms",
    f"{ms_between('first_at', 'recorded_at')} as work_ms",
    f"{TOTAL_MS} as total_ms",
    f"case event {_CASES} end as outcome",
    "reason",
)


MINUTE_US = 60_000_000
GRACE_US = 10_000_000
"""A gauge counts for its minute if it arrives within this time after the minute's end. Then the minute is final."""
FINAL = f":until_us >= unix_micros(minute) + {MINUTE_US + GRACE_US}"
"""`is_final` as SQL, for queries with a parameter `until_us`."""
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


def to_us(moment: datetime) -> int:
    """A time as microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(us: int) -> datetime:
    """A time from its microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=us)


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


TRIGGERED = "door = 'courier' and event = 'trigger'"
"""Rows in which a trigger acted, as SQL."""


def trigger_minutes(events: DataFrame, until: datetime) -> DataFrame:
    """One row for each trigger and each minute in which it fired, or in which a cooldown that suppressed firings ended.

    `events` are all rows of some minutes; `until` is the time of the last. A firing that failed in part counts as `failed`, not as
    `fired`; the envelopes it did send count as `sent`. If the rule changed within the minute, `hook` is the later one.
    """
    return query(_TRIGGER_MINUTES, events, until_us=to_us(until))


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


FRAMED = f"door = '{MEW}' and event = 'frame'"
"""Rows of frames, as SQL."""
FANNED = f"door = '{MEW}' and event in ('frame', 'frame_counts')"
"""Rows that count frames, as SQL."""
# The channel is `<space>/<stream>`, and a stream's id has no slash.
STREAM = "substring_index(channel, '/', -1)"
SPACE = f"left(channel, length(channel) - length({STREAM}) - 1)"


def frames(events: DataFrame) -> DataFrame:
    """One row for each frame of a stream that is journaled in full; `targets` is null for a stream that goes to the whole space."""
    read = events.where(FRAMED).selectExpr("*", f"from_json(meta, '{_FRAME}') as info")
    return read.selectExpr(
        "journal",
        "offset",
        f"{date_of('recorded_at')} as date",
        "recorded_at",
        f"{SPACE} as space",
        f"{STREAM} as stream_id",
        "seq",
        "sender",
        "info.target as targets",
        "recipients",
        "info.participants as participants",
        "bytes",
        "body",
    )


_FRAME = "target array<string>, participants int"


def fanout_minutes(events: DataFrame, until: datetime) -> DataFrame:
    """One row for each space and each minute in which frames passed through it.

    `events` are all rows of some minutes; `until` is the time of the last. Counted frames belong to the minute in which their second
    ended.
    """
    return query(_FANOUT_MINUTES, events, until_us=to_us(until))


_COUNTED = "frames bigint, bytes bigint, deliveries bigint, participants bigint, broadcast bigint"
_FANOUT_MINUTES = f"""
with read as (
  select journal, channel, {SPACE} as space, {minute_of("recorded_at")} as minute, event = 'frame' as is_one, bytes, recipients,
    from_json(meta, '{_COUNTED}') as meta
  from {{rows}} where {FANNED}
), each as (
  select journal, space, minute, channel,
    if(is_one, 1L, coalesce(meta.frames, 0)) as frames,
    cast(coalesce(if(is_one, bytes, meta.bytes), bytes, 0) as bigint) as bytes,
    cast(coalesce(if(is_one, recipients, meta.deliveries), recipients, 0) as bigint) as deliveries,
    if(is_one, meta.participants, meta.broadcast) as broadcast
  from read
), counted as (
  select journal, space, minute,
    count(distinct channel) as streams,
    sum(frames) as frames,
    sum(bytes) as bytes,
    sum(deliveries) as deliveries,
    -- Without a known broadcast cost, assume that nothing was saved.
    sum(coalesce(broadcast, deliveries)) as broadcast_deliveries
  from each group by journal, space, minute
)
select journal, {date_of("minute")} as date, minute, space, streams, frames, bytes, deliveries, broadcast_deliveries,
  broadcast_deliveries - deliveries as saved,
  {FINAL} as final
from counted
"""
