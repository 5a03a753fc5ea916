"""When a minute of the `*_minutes` tables is final, and which minutes new rows can change.

A minute's row depends only on the journal rows of that minute. So a batch recomputes every minute it can touch (`reach_us`) from all
of its rows and replaces the stored ones; the result does not depend on how the journal was cut into batches. Needs no Spark.
"""

# size: one rule, used by three tables, the batch and the alerts

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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
