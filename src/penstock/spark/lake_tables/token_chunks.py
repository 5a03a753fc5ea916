"""The table `token_chunks`: messages that passed through the relay, one by one or as counts of a topic."""

# size: one table, one module

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.lake_tables.expressions import date_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PASSED = "door = 'streamservice' and event in ('chunk', 'chunk_counts')"
"""Rows of messages, as SQL."""


def token_chunks(events: DataFrame) -> DataFrame:
    """One row for each journaled message, and one with `chunks` for each count of a topic's messages."""
    read = events.where(PASSED).selectExpr("*", f"from_json(meta, '{_COUNTED}') as info")
    return read.selectExpr(
        "journal",
        "offset",
        f"{date_of('recorded_at')} as date",
        "recorded_at",
        "channel as topic_hash",
        "seq",
        "kind as format",
        "bytes",
        "coalesce(info.replayed, 0) > 0 as replayed",
        "coalesce(info.held, info.waiting > 0, false) as held",
        "recipients as subscribers",
        "if(event = 'chunk', null, coalesce(info.chunks, 0)) as chunks",
    )


_COUNTED = "chunks bigint, replayed bigint, waiting bigint, held boolean"
