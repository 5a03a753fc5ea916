"""The tables `frames`, of streams that are journaled in full, and `fanout_minutes`, with the deliveries that targeting saved.

A stream journaled in full has a row for each frame, any other stream one row a second with counts; a minute adds up both. The cost of
a broadcast includes the sender, which receives its own frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.lake_tables.expressions import MEW, date_of, minute_of, query
from penstock.spark.lake_tables.minutes import FINAL, Times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        "journal", "offset", f"{date_of('recorded_at')} as date", "recorded_at", f"{SPACE} as space", f"{STREAM} as stream_id", "seq",
        "sender", "info.target as targets", "recipients", "info.participants as participants", "bytes", "body",
    )  # fmt: skip


_FRAME = "target array<string>, participants int"


def fanout_minutes(events: DataFrame, until: Times) -> DataFrame:
    """One row for each space and each minute in which frames passed through it.

    `events` are all rows of some minutes; `until` is the time of the last. Counted frames belong to the minute in which their second
    ended.
    """
    return query(_FANOUT_MINUTES, events, until=until)


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
