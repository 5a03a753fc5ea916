"""A batch of journal rows as DataFrames: the input of every step of the pipeline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake_tables.envelopes import INBOXES
from penstock.spark.lake_tables.expressions import BEGUN, TOUCHED, without_own
from penstock.spark.lake_tables.minutes import MINUTE_US, from_us, reach_us

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.lake.table import LakeTable
    from penstock.spark.location import JournalLocation, SourceJournal

SMALL_ROWS = 50_000
"""Up to this many rows are processed in one partition: a shuffle would take longer than the work."""
RECENT_ROWS = 100_000
"""Journal rows, without bodies, that the driver caches."""
TASK_ROWS = 250_000
"""Journal rows that one task reads."""
MEASURED = [name for name in FILE_SCHEMA.names if name != "body"]
"""Columns without the body, for counts and times."""


def journal_frame(
    spark: SparkSession, location: JournalLocation, first: int, end: int, columns: list[str] | None = None
) -> DataFrame:
    """Rows `first` to `end - 1` as a DataFrame, read by the tasks."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    count = max(1, -(-(end - first) // TASK_ROWS))
    step = -(-(end - first) // count)
    names = columns or FILE_SCHEMA.names
    schema = pa.schema([FILE_SCHEMA.field(name) for name in names])

    known = location.open().id

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from penstock.spark.source.partitions import check_present

        for batch in batches:
            for number in batch.column(0).to_pylist():
                start = first + number * step
                stop = min(start + step, end)
                journal = location.open()
                check_present(journal, known, stop)
                yield from journal.batches(start, stop, names)

    rows = spark.range(0, count, 1, count).mapInArrow(read, from_arrow_schema(schema))
    return rows.coalesce(1) if count == 1 else rows  # one partition: Spark plans no shuffle


class RecentRows:
    """A cache of the latest journal rows without bodies, so that a batch need not read the whole minutes that it touches again."""

    def __init__(self, journal: SourceJournal) -> None:
        self._journal = journal
        self._id = journal.id
        self._first = 0
        self._rows: pa.Table | None = None
        self._lock = threading.Lock()

    def rows(self, first: int, end: int) -> pa.Table | None:
        """Rows `first` to `end - 1`; None if they are too many to cache."""
        import pyarrow as pa

        with self._lock:
            if end - first > RECENT_ROWS:
                self._rows = None
                return None
            held = self._rows
            if held is None or not self._first <= first <= self._first + held.num_rows:
                held = self._read(first, end)
            else:
                kept = held.slice(first - self._first)
                held = pa.concat_tables([kept, self._read(first + kept.num_rows, end)])
            # Combine the chunks: there would be thousands after a while.
            self._rows, self._first = held.combine_chunks(), first
            return self._rows.slice(0, end - first)

    def _read(self, first: int, end: int) -> pa.Table:
        import pyarrow as pa

        from penstock.spark.source.partitions import check_present

        schema = pa.schema([FILE_SCHEMA.field(name) for name in MEASURED])
        check_present(self._journal, self._id, end)
        return pa.Table.from_batches(self._journal.batches(first, end, MEASURED), schema)


@contextmanager
def open_batch(
    spark: SparkSession,
    journal: SourceJournal,
    lake: Callable[[str], LakeTable],
    rows: DataFrame,
    recent: RecentRows,
    conditions: Sequence[str] = (),
) -> Iterator[JournalBatch | None]:
    """A batch of a query, cached while it is processed; None if it has no rows.

    `conditions` are SQL: `unmet` of the batch names those that no row meets.
    """
    rows = rows.persist()
    try:
        counts = [f"count_if({condition})" for condition in conditions]
        about = ["min(offset)", "max(offset)", "unix_micros(max(recorded_at))", *counts]
        first, last, until_us, *met = rows.selectExpr(*about).collect()[0]
        if first is None:
            yield None
        else:
            unmet = [condition for condition, count in zip(conditions, met, strict=True) if not count]
            yield JournalBatch(spark, journal, lake, first, last + 1, until_us, rows, tuple(unmet), recent)
    finally:
        rows.unpersist()


@dataclass
class JournalBatch:
    """Rows `first` to `end - 1` of one journal, and the older rows that a step may need with them."""

    spark: SparkSession
    journal: SourceJournal
    lake: Callable[[str], LakeTable]
    first: int
    end: int
    until_us: int
    """Time of the last row."""
    given: DataFrame | None = None
    """The rows, if the caller has them already."""
    unmet: tuple[str, ...] = ()
    """Conditions that no row of the batch meets."""
    recent: RecentRows | None = None
    """A cache of the rows before the batch."""

    @property
    def until(self) -> datetime:
        return from_us(self.until_us)

    @cached_property
    def events(self) -> DataFrame:
        """The rows, without those that the pipeline itself caused."""
        rows = self.given
        if rows is None:
            rows = journal_frame(self.spark, self.journal.location, self.first, self.end)
        elif self.end - self.first <= SMALL_ROWS:
            rows = rows.coalesce(1)
        return without_own(rows)

    def since(self, first: int) -> JournalBatch:
        """The batch from row `first` to the same end; `first` may lie before the batch."""
        if first == self.first:
            return self
        rows = None
        if self.given is not None and first > self.first:
            rows = self.given.where(f"offset >= {first}")
        return JournalBatch(
            self.spark, self.journal, self.lake, first, self.end, self.until_us, rows, recent=self.recent
        )

    @property
    def inboxes(self) -> DataFrame:
        """The rows of envelopes to inboxes."""
        return self.events.where(INBOXES)

    @cached_property
    def _reach(self) -> tuple[int, int]:
        """The first row, and the time, of the minutes that this batch may change."""
        oldest = self.journal.bounds().first
        if self.first <= oldest:
            return self.first, self.journal.time_of(self.first)
        reach = reach_us(self.journal.time_of(self.first - 1))
        first = min(self.first, self.journal.offset_at(reach))
        if first == oldest and oldest > 0:
            # Retention removed the beginning of that minute. Its stored row was counted from all rows, so keep it and begin with the next.
            return first, (self.journal.time_of(oldest) // MINUTE_US + 1) * MINUTE_US
        return first, reach

    @property
    def minutes_since(self) -> datetime:
        """The first minute that this batch touches or may close."""
        return from_us(self._reach[1] // MINUTE_US * MINUTE_US)

    @cached_property
    def whole_minutes(self) -> DataFrame:
        """Every row, without bodies, of the minutes that this batch touches or may close."""
        first, since_us = self._reach
        if first == self.first and self.given is not None:
            return self.events.select(*MEASURED)
        held = None if self.recent is None else self.recent.rows(first, self.end)
        if held is not None:
            rows = self.spark.createDataFrame(held).coalesce(1)
        else:
            rows = journal_frame(self.spark, self.journal.location, first, self.end, MEASURED)
        since_us = since_us // MINUTE_US * MINUTE_US
        return without_own(rows).where(f"recorded_at >= timestamp_micros({since_us})")

    def touched_conversations(self) -> tuple[DataFrame, DataFrame]:
        """Every envelope and delivery of the conversations that this batch touches."""
        import pyarrow as pa
        import pyarrow.compute as pc

        named = self.events.selectExpr("journal", f"{TOUCHED} as corr").where("corr is not null")
        touched = named.distinct().toArrow()
        talks = touched.column("corr").combine_chunks()
        since_us = self.journal.time_of(self.first)
        conversations = self.lake("conversations")
        if conversations.version() is not None:
            known = conversations.rows_with("corr", talks, ["journal", "started_at"])
            known = known.filter(pc.field("journal") == self.journal.id)
            if known.num_rows:
                # By time, not by offset: the table still has rows of the conversation that retention removed from the journal.
                since_us = min(since_us, pc.min(known.column("started_at").cast(pa.int64())).as_py())
        names = self.spark.createDataFrame(touched).hint("broadcast")
        ids = {"corr": talks, "id": talks}  # `BEGUN`: some conversations are named by the id of their first envelope
        sent = self._table_rows("envelopes", "recorded_at", since_us, ids).selectExpr(
            "*", f"coalesce(corr, {BEGUN}) as talk"
        )
        of_them = (sent["journal"] == names["journal"]) & (sent["talk"] == names["corr"])
        ended = self._table_rows("deliveries", "settled_at", since_us, {"corr": talks})
        return sent.join(names, of_them, "left_semi"), ended.join(names, ["journal", "corr"], "left_semi")

    def _table_rows(self, name: str, moment: str, since_us: int, any_of: Mapping[str, pa.Array]) -> DataFrame:
        """Rows of an append table from a time on, of the files that may have one of these values, by Spark's own Parquet reader."""
        from pyspark.sql.pandas.types import from_arrow_schema

        table = self.lake(name)
        files = table.filters.holding(table.files({moment: (from_us(since_us), None)}), any_of)
        paths = [str(table.path / file.path) for file in files]
        schema = from_arrow_schema(table.definition.schema)
        if not paths:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema).option("basePath", str(table.path))
        return reader.parquet(*paths).where(
            f"journal = '{self.journal.id}' and {moment} >= timestamp_micros({since_us})"
        )
