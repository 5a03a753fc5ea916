"""The table `trigger_minutes`, and when a minute is final.

A minute's row depends only on the journal rows of that minute. So a batch recomputes every minute it can touch (`reach_us`) from all
of its rows and replaces the stored ones; the result does not depend on how the journal was cut into batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from penstock.spark.lake_tables.expressions import date_of, minute_of, of_journal, query

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
