"""The table `frames`: one row for each frame in a space whose stream is journaled in full."""

# size: one table, one module

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.lake_tables.expressions import MEW, date_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRAMED = f"door = '{MEW}' and event = 'frame'"
"""Rows of frames, as SQL."""
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
