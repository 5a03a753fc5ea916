"""The tables `token_chunks`, the messages that passed through the relay, and `token_streams`, the registrations of topics.

The relay cannot read messages, so without a key a stream is only counted and timed. With keys, and if the journal has the messages
(`relay.journal: full`), every chain is verified and its tokens are counted. Spark sorts the rows; `stream_state` folds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.lake.schemas import TOKEN_STREAMS
from penstock.spark.lake_tables.expressions import date_of, query
from penstock.spark.lake_tables.stream_state import TokenEvent, TokenStreamRow, fold
from penstock.spark.lake_tables.verification_keys import GivenKeys, Keys, known_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipeline.batch import JournalBatch

RELAYED = "door = 'streamservice'"
"""Rows about token streams, as SQL."""
PASSED = "door = 'streamservice' and event in ('chunk', 'chunk_counts')"
"""Rows of messages, as SQL."""
TRAIL_US = 60_000_000
"""How long after the end of a stream its rows may still arrive: counts are written a quarter of a second late."""

_EVENTS = ("register", "expire", "chunk", "chunk_counts", "subscribe", "unsubscribe", "resume")


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


def token_audit(events: DataFrame, keys: GivenKeys) -> DataFrame:
    """Verify every stream in journal rows, from end to end, where its key is known.

    Parameters
    ----------
    events
        Journal rows of whole streams: `spark.read.format("penstock").load(data)`, or `penstock.spark.history(spark, data)`.
    keys
        For each topic its MAC key, as bytes or in hexadecimal, or a `TokenKey` that names another suite.

    Returns
    -------
    DataFrame
        Rows of the table `token_streams`. `chain_ok` is true if every message has a right MAC and follows the one before it, and null
        if there was no key or no message to verify.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    return query(_ROWS, events).mapInArrow(_folding(known_keys(keys), {}), from_arrow_schema(TOKEN_STREAMS.schema))


_ROWS = f"""
select journal, channel as topic_hash, offset, unix_micros(recorded_at) as at_us, event, kind as format, bytes, reason, meta, body
from {{rows}} where {RELAYED} and event in {_EVENTS}
distribute by journal, channel sort by journal, channel, offset
"""


def _folding(
    keys: Keys, before: Mapping[tuple[str, str], TokenStreamRow]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for the tasks: sorted rows become streams."""

    def fold_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows_read = (
            TokenEvent(*row)
            for batch in batches
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        return TOKEN_STREAMS.batches(
            stream.row()
            for one, rows in groupby(rows_read, key=attrgetter("journal", "topic_hash"))
            for stream in fold(rows, before.get(one), keys.get(one[1]))
        )

    return fold_batches


def token_streams(batch: JournalBatch, keys: Keys) -> DataFrame | pa.Table:
    """The rows of the table `token_streams` that a batch changes."""
    touched = batch.events.where(RELAYED).select("channel").distinct().toArrow().column("channel")
    known = {topic: keys[topic] for topic in touched.to_pylist() if topic in keys}
    return batch.mapped(query(_ROWS, batch.events), _folding(known, _before(batch, touched)), TOKEN_STREAMS.schema)


def _before(batch: JournalBatch, touched: pa.ChunkedArray) -> dict[tuple[str, str], TokenStreamRow]:
    """The newest stored stream of each topic in the batch, if it may continue."""
    import pyarrow.compute as pc

    table = batch.lake(TOKEN_STREAMS.name)
    if table.version() is None:
        return {}
    known = table.rows_with({"topic_hash": touched.combine_chunks()}, TOKEN_STREAMS.schema.names)
    plain = known.filter(pc.field("journal").isin(list(batch.ranges))).cast(_PLAIN).to_pylist()
    since_us = {one: part.journal.time_of(part.first) - TRAIL_US for one, part in batch.ranges.items()}
    found: dict[tuple[str, str], TokenStreamRow] = {}
    for row in sorted(plain, key=lambda one: one["started_at"]):
        found[row["journal"], row["topic_hash"]] = TokenStreamRow(**row)
    return {
        one: stream
        for one, stream in found.items()
        if stream.expired_at is None or stream.expired_at >= since_us[one[0]]
    }


_PLAIN = pa.schema(
    [
        pa.field(field.name, pa.int64() if pa.types.is_timestamp(field.type) else field.type)
        for field in TOKEN_STREAMS.schema
    ]
)
