"""Gold: queues and triggers by the minute, the latest of each inbox, and what each agent did last.

Functions from DataFrame to DataFrame. A row of `queue_minutes` or `trigger_minutes` depends on the journal's rows of its minute alone, so whoever has new rows
computes the minutes they can touch again (`reach_us`) and puts them in place of the old: the result is the same as of one computation.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.spark.tables.silver import OUTCOMES, TOTAL_MS, WAIT_MS, agent_of, date_of, minute_of, owner_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE_US = 60_000_000
GRACE_US = 10_000_000
"""How long after its minute a gauge may come and still close it. Then the minute is final."""
TRIGGERED = "door = 'courier' and event = 'trigger'"
"""Rows in which a trigger acted, as SQL."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GAUGE = (
    "minute bigint, ready bigint, leased bigint, delayed bigint, oldest double, delta map<string, bigint>"
)


def floor_minute(us: int) -> int:
    """The start of the minute that a moment is in."""
    return us // MINUTE_US * MINUTE_US


def is_final(minute_us: int, until_us: int) -> bool:
    """Whether no row after one of `until_us` can change a minute."""
    return until_us >= minute_us + MINUTE_US + GRACE_US


def reach_us(last_us: int) -> int:
    """Start of the earliest minute that may still change when the last row so far is of `last_us`.

    Whoever adds rows after that one computes all minutes from here on again.
    """
    return floor_minute(last_us - MINUTE_US - GRACE_US)


def queue_minutes(events: DataFrame, until: datetime, since: datetime | None = None) -> DataFrame:
    """One row for each queue and minute in which something happened to it.

    `events` are all rows of some minutes, to the last one; `until` is the time of the last and `since` that of the first, which is looked
    up when it is not given. Counts of what the journal has a row for are
    counted; deliveries, lease ends, duplicates and refusals are what the minute's gauges say. Depths are those of the minute's last
    gauge, null when it has none (the minute is running, or nothing changed). Percentiles are exact, over what was settled in the minute,
    and null when nothing was.
    """
    if since is None:
        [first] = events.selectExpr("unix_micros(min(recorded_at))").collect()
        since_us = first[0] or 0
    else:
        since_us = us_of(since)
    # The first rows may close a minute whose own rows were not given; its row is in the table already.
    return query(_QUEUE_MINUTES, events, until_us=us_of(until), since_us=floor_minute(since_us))


def us_of(moment: datetime) -> int:
    """A moment as microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def query(text: str, rows: DataFrame, **values: int) -> DataFrame:
    """A query over some rows, which it calls `{rows}`."""
    return rows.sparkSession.sql(text, args=dict(values), rows=rows)


def _grown(counter: str) -> str:
    """What the gauges of a minute say that a counter grew by."""
    return f"coalesce(sum(gauge.delta['{counter}']), 0)"


_CLOSED = minute_of("timestamp_micros(gauge.minute)")
_LATE_US = f"unix_micros(recorded_at) - unix_micros({_CLOSED})"
_ENDED = f"event in {tuple(OUTCOMES)}"
_QUEUE_MINUTES = f"""
with told as (
  select *, if(event = 'gauge', from_json(meta, '{_GAUGE}'), null) as gauge from {{rows}}
  where door = 'courier' and channel != ''
), placed as (
  -- A row counts for the minute of its time, a gauge for the one it closes. A gauge that comes too late for that, or was written by a clock
  -- that has been set back since, counts where it stands: a final minute never changes.
  select *, case when {_LATE_US} >= 0 and {_LATE_US} < {MINUTE_US + GRACE_US} then {_CLOSED}
    else {minute_of("recorded_at")} end as minute
  from told
), counted as (
  select journal, channel, minute,
    count_if(event = 'enqueue') as enqueued,
    {_grown("out")} as delivered,
    {_grown("re")} as redelivered,
    count_if(event = 'ack') as acked,
    -- With a fate it says that the dead letters have no room, not that somebody failed.
    count_if(event = 'nack' and get_json_object(meta, '$.fate') is null) as nacked,
    {_grown("timeout")} as timed_out,
    count_if(event = 'dead') as dead,
    count_if(event = 'drop') as dropped,
    count_if(event = 'purge') as purged,
    {_grown("dup")} as duplicates,
    {_grown("reject")} as rejected,
    coalesce(sum(if(event = 'enqueue', cast(bytes as bigint), null)), 0) as bytes_in,
    max_by(gauge, if(event = 'gauge', offset, null)) as last,
    percentile(if({_ENDED}, {WAIT_MS}, null), array(0.5D, 0.95D, 0.99D)) as waits,
    percentile(if({_ENDED}, {TOTAL_MS}, null), 0.95D) as total_p95_ms
  from placed where minute >= timestamp_micros(:since_us) group by journal, channel, minute
)
select journal, {date_of("minute")} as date, minute, channel, enqueued, delivered, redelivered, acked, nacked, timed_out, dead, dropped,
  purged, duplicates, rejected, bytes_in, last.ready as ready, last.leased as leased, last.delayed as delayed, last.oldest as oldest_ms,
  waits[0] as wait_p50_ms, waits[1] as wait_p95_ms, waits[2] as wait_p99_ms, total_p95_ms,
  :until_us >= unix_micros(minute) + {MINUTE_US + GRACE_US} as final
from counted
"""


def trigger_minutes(events: DataFrame, until: datetime) -> DataFrame:
    """One row for each trigger and minute in which it acted, or a cooldown of it ended that had kept it from acting.

    `events` are all rows of some minutes, to the last one, and `until` is its time. A firing that could not do all it should is `failed`
    and not `fired`; what it did send counts as `sent`. Of a rule that was changed within the minute, the hook is the later one.
    """
    return query(_TRIGGER_MINUTES, events, until_us=us_of(until))


_FIRING = "hook string, sent array<struct<id: string>>, suppressed bigint"
_TRIGGER_MINUTES = f"""
with acted as (
  select journal, peer as trigger, {minute_of("recorded_at")} as minute, channel, offset, reason, from_json(meta, '{_FIRING}') as told
  from {{rows}} where {TRIGGERED} and peer is not null
), counted as (
  select journal, trigger, minute,
    max_by(told.hook, offset) as hook,
    count_if(reason = 'fired') as fired,
    count_if(reason = 'failed') as failed,
    coalesce(sum(told.suppressed), 0) as suppressed,
    coalesce(sum(array_size(told.sent)), 0) as sent,
    cast(count(distinct channel) as int) as streams
  from acted group by journal, trigger, minute
)
select journal, {date_of("minute")} as date, minute, trigger, hook, fired, failed, suppressed, sent, streams,
  :until_us >= unix_micros(minute) + {MINUTE_US + GRACE_US} as final
from counted
"""


def latest_per_agent(envelopes: DataFrame) -> DataFrame:
    """The newest envelope of each agent's inbox: what the live view of that name shows."""
    return query(_LATEST, envelopes)


_LATEST = f"""
select journal, channel as address, {owner_of("channel")} as agent, newest.* from (
  select journal, channel,
    max_by(struct(offset, seq, id, type, sender, corr, recorded_at, payload), offset) as newest
  from {{rows}} where {owner_of("channel")} is not null group by journal, channel
)
"""


def agents(events: DataFrame) -> DataFrame:
    """The newest row of each agent: what it sent or settled last."""
    return query(_AGENTS, acts(events))


_AGENTS = """
select journal, agent, newest.* from (
  select journal, agent, max_by(struct(offset, recorded_at as last_at, event, channel), offset) as newest
  from {rows} group by journal, agent
)
"""


def acts(events: DataFrame) -> DataFrame:
    """The rows in which an agent did something, with its name as `agent`.

    Who settles is known by its token's name. Without tokens it has none; in an inbox it is then taken for the inbox's owner.
    """
    acted = events.where("door = 'courier' and not (channel like 'dlq/%' and event = 'enqueue')")
    return acted.selectExpr("*", f"{_AGENT} as agent").where("agent is not null")


# A record that died of too many tries may have died while its holder hung.
_SETTLES = "(event in ('ack', 'nack') or (event = 'dead' and reason = 'term'))"
_AGENT = f"""case when event = 'enqueue' then {agent_of("sender")}
  when {_SETTLES} and peer = 'anonymous' then {owner_of("channel")}
  when {_SETTLES} then {agent_of("peer")} end"""


def turns(events: DataFrame, pause_ms: int) -> DataFrame:
    """When agents were at work, as (agent, from, to) in microseconds and in order.

    What an agent did without a pause longer than `pause_ms` in between is one row.
    """
    return query(_TURNS, acts(events), pause_us=pause_ms * 1000)


_TURNS = """
with moments as (
  select agent, offset, unix_micros(recorded_at) as at_us,
    unix_micros(recorded_at) - lag(unix_micros(recorded_at)) over (partition by agent order by offset) as paused_us
  from {rows}
), numbered as (
  select *, sum(if(paused_us is null or paused_us > :pause_us, 1, 0)) over (partition by agent order by offset) as turn
  from moments
)
select agent, min(at_us) as from_us, max(at_us) as to_us from numbered group by agent, turn order by min(offset)
"""
