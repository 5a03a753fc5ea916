"""Queries of the pipeline, run once over a data directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from penstock.journal.lake_location import LakePath
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.journal.reader import JournalReader
from penstock.spark import location
from penstock.spark.lake.catalog import open_table
from penstock.spark.lake.erasure import Erasure, bury, find
from penstock.spark.pipeline import steps
from penstock.spark.pipeline.batch import JournalBatch
from penstock.spark.pipeline.erasure import look, recompute, scrub, split
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.journal_rows import JournalRange
from penstock.spark.pipeline.queries import CHECKPOINTS, start_query
from penstock.spark.pipeline.watch import AlertWatch
from tests.spark.journaled import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipeline.journal_group import Positions

APP = f"{JOURNAL}/0"
"""The application id under which tables store their progress."""


def ingest_of(
    spark: SparkSession | None,
    data: Path,
    more: list[steps.Step] | None = None,
    only: set[str] | None = None,
    lake: LakePath | None = None,
) -> Ingest:
    """Ingest with the built-in tables, or only some of them, and `more`."""
    built_in = [step for step in steps.built_in() if only is None or step.table.name in only]
    return Ingest(spark, location.open_one(data), lake or data / "lake", built_in + (more or []))  # type: ignore[arg-type]


def erase(ingest: Ingest, data: Path, subject: dict[str, set[str]]) -> Erasure:
    """What the command does to the journal and the"""
    found = Erasure(**subject)
    find(data, found)
    look(data / "lake", found)
    bury(data, found)
    scrub(data / "lake", found)
    recompute(ingest, found)
    for name in split(data / "lake")[0]:
        open_table(data / "lake", name).purge([APP])
    return found


def batch_between(ingest: Ingest, first: int, end: int, unmet: tuple[str, ...] = ()) -> JournalBatch:
    """Rows of the one journal, as a batch that needs no Spark."""
    [(one, journal)] = ingest.group.journals.items()
    part = JournalRange(journal, first, end, journal.time_of(end - 1))
    return JournalBatch(cast("SparkSession", None), ingest.table, ingest.group, {one: part}, unmet=unmet)


def run(spark: SparkSession, data: Path, part: Ingest | AlertWatch, name: str = "ingest", rows_max: int = 70) -> int:
    """The query as it is shipped, once over what is there; returns how many batches it took."""
    batches = []

    def on_batch(ends: Positions, number: int) -> None:
        batches.append(number)
        part.on_batch(ends, number)

    checkpoint = data / "lake" / CHECKPOINTS / name
    query = start_query(
        spark,
        location.open_one(data),
        name,
        on_batch,
        checkpoint,
        start=part.end,
        rows_max=rows_max,
        pause_ms=None,
    )
    query.awaitTermination()
    assert query.exception() is None
    return len(batches)


def exported(data: Path) -> pa.Table:
    """Every row of the journal, for the recomputation."""
    reader = JournalReader(data)
    return pa.Table.from_batches(reader.batches(0, reader.bounds().end, FILE_SCHEMA.names))
