"""The table `trigger_minutes`: firings of each trigger by the minute."""

# size: one table, one module

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from penstock.spark.lake_tables.expressions import date_of, minute_of, query
from penstock.spark.lake_tables.minutes import FINAL, to_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
