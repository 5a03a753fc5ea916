"""Frames in spaces: each one that was kept as a row of silver, and by the minute what targeting saved.

Functions from DataFrame to DataFrame without state. A stream that is kept in full has a row of the journal for each frame, any other one a
row for each second that says how many there were; a minute adds up both. What a broadcast would have cost counts the sender too, who hears
itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from penstock.spark.tables.gold import GRACE_US, MINUTE_US, query, us_of
from penstock.spark.tables.silver import MEW, date_of, minute_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRAMED = f"door = '{MEW}' and event = 'frame'"
"""Rows of frames that were kept, as SQL."""
FANNED = f"door = '{MEW}' and event in ('frame', 'frame_counts')"
"""Rows that count frames, as SQL."""
# The channel is `<space>/<stream>`, and a stream's id has no slash.
_STREAM = "substring_index(channel, '/', -1)"
_SPACE = f"left(channel, length(channel) - length({_STREAM}) - 1)"


def frames(events: DataFrame) -> DataFrame:
    """One row for each frame of a stream that is kept in full; `targets` is null for a stream that all of the space hear."""
    told = events.where(FRAMED).selectExpr("*", f"from_json(meta, '{_FRAME}') as told")
    return told.selectExpr(
        "journal",
        "offset",
        f"{date_of('recorded_at')} as date",
        "recorded_at",
        f"{_SPACE} as space",
        f"{_STREAM} as stream_id",
        "seq",
        "sender",
        "told.target as targets",
        "recipients",
        "told.participants as participants",
        "bytes",
        "body",
    )


_FRAME = "target array<string>, participants int"


def fanout_minutes(events: DataFrame, until: datetime) -> DataFrame:
    """One row for each space and minute in which frames passed through it.

    `events` are all rows of some minutes, to the last one, and `until` is its time. Frames that are only counted belong to the minute in
    which their second was over.
    """
    return query(_FANOUT_MINUTES, events, until_us=us_of(until))


_COUNTED = "frames bigint, bytes bigint, deliveries bigint, participants bigint, broadcast bigint"
_FANOUT_MINUTES = f"""
with told as (
  select journal, channel, {_SPACE} as space, {minute_of("recorded_at")} as minute, event = 'frame' as is_one, bytes, recipients,
    from_json(meta, '{_COUNTED}') as meta
  from {{rows}} where {FANNED}
), each as (
  select journal, space, minute, channel,
    if(is_one, 1L, coalesce(meta.frames, 0)) as frames,
    cast(coalesce(if(is_one, bytes, meta.bytes), bytes, 0) as bigint) as bytes,
    cast(coalesce(if(is_one, recipients, meta.deliveries), recipients, 0) as bigint) as deliveries,
    if(is_one, meta.participants, meta.broadcast) as broadcast
  from told
), counted as (
  select journal, space, minute,
    count(distinct channel) as streams,
    sum(frames) as frames,
    sum(bytes) as bytes,
    sum(deliveries) as deliveries,
    -- Where nothing says what a broadcast would have cost, nothing was saved.
    sum(coalesce(broadcast, deliveries)) as broadcast_deliveries
  from each group by journal, space, minute
)
select journal, {date_of("minute")} as date, minute, space, streams, frames, bytes, deliveries, broadcast_deliveries,
  broadcast_deliveries - deliveries as saved,
  :until_us >= unix_micros(minute) + {MINUTE_US + GRACE_US} as final
from counted
"""
