"""Streaming queries over the journal: how one is started, stopped, and started again after a crash."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.journal.segments import SHARD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.location import SourceJournal

CHECKPOINTS = "_checkpoints"
"""The directory in the lake with a checkpoint for each query."""
QUERIES = ("ingest", "watch")
READER = "pipeline"
"""Prefix of the named readers that make the journal keep rows until the pipeline has read them."""
_OFFSETS = "offsets"
"""The directory in a checkpoint with one file for each planned batch, named by its number."""


def start_query(
    spark: SparkSession,
    journal: SourceJournal,
    name: str,
    on_batch: Callable[[DataFrame, int], None],
    checkpoint: Path,
    *,
    start: int,
    rows_max: int,
    pause_ms: int | None,
) -> StreamingQuery:
    """Start a query that passes journal rows to `on_batch`: once, up to the current end, or repeatedly with a pause."""
    reader = (
        spark.readStream.format("penstock")
        .options(**journal.location.options)
        .option("startingOffsets", f'{{"v":1,"journals":{{"{journal.id}":{{"{SHARD}":{start}}}}}}}')
        .option("maxOffsetsPerTrigger", rows_max)
        # The tables drop the pipeline's own rows later. Dropping them here would leave holes in the offsets of a batch.
        .option("includePipeline", "true")
        .option("reader", f"{READER}-{name}")
    )
    writer = reader.load().writeStream.queryName(name).foreachBatch(on_batch)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if pause_ms is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{pause_ms} milliseconds").start()


def stop_query(query: StreamingQuery, deadline: float) -> None:
    """Stop a query between two batches; a batch that runs past the deadline is cut off, and the next run repeats it."""
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(0.02)
    query.stop()


def repair_checkpoint(checkpoint: Path) -> list[str]:
    """Remove what an interrupted first batch left in a checkpoint; returns the names of the removed files.

    Spark writes the offsets of a batch to a temporary file and renames it. If the process dies in between, before the very first batch,
    the temporary file stays, and a stateful query rejects the checkpoint forever ("should be empty on batch 0"). Nothing was read
    yet, so nothing is lost. A checkpoint that has a batch is not touched.
    """
    try:
        files = sorted((checkpoint / _OFFSETS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    if any(file.name.isdigit() for file in files):
        return []
    left = [file for file in files if file.name.startswith(".") and file.is_file()]
    for file in left:
        file.unlink(missing_ok=True)
    return [file.name for file in left]
