"""The query `ingest`: every batch of journal rows brings every table of the lake forward, exactly once.

Each table stores its progress in the same commit as its rows. So a repeated batch changes nothing, a table that is behind (new, or left
behind by a crash) first catches up by itself, and a lost checkpoint costs only time.

Rows that retention removed before a table had them are refused, or recorded as a gap so that the pipeline can continue.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.journal.delta_log import table_names
from penstock.journal.lake_location import LakePath, lake_of
from penstock.spark import location
from penstock.spark.errors import HintedError, TableFailedError, line_in
from penstock.spark.lake import data_files, rewrite
from penstock.spark.lake.catalog import open_table
from penstock.spark.lake.data_files import StagedFile
from penstock.spark.lake.schemas import AGENTS, CONVERSATIONS, EVENTS, GAPS, TABLES, TableDefinition
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake_tables.minutes import from_us
from penstock.spark.location import SourceJournal
from penstock.spark.pipeline.batch import JournalBatch, StepTimes, open_batch
from penstock.spark.pipeline.expectations import ExpectationCounts, ExpectationError, ExpectationTally, checked, stage
from penstock.spark.pipeline.journal_group import JournalGroup, Positions, app_of
from penstock.spark.pipeline.journal_rows import JournalRange, RecentRows, release_memory
from penstock.spark.pipeline.reporter import describe, diagnose
from penstock.spark.pipeline.steps import Step, only, ordered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LostRowsError(HintedError):
    """The journal no longer has rows that a table needs."""

    code = "DataLoss"


class TablesAheadError(LostRowsError):
    """The journal has fewer rows than a table."""

    code = "JournalRewound"


def check_kept(given: SourceJournal | JournalGroup, lake: LakePath, tables: Sequence[TableDefinition]) -> None:
    """Refuse to begin if a table needs rows that are gone. Needs no Spark, which is slow to start."""
    for one, oldest in JournalGroup.of(given).firsts().items():
        for table in tables:
            stored = LakeTable(lake, table).progress(app_of(one))
            if stored is not None:
                check_not_gone(table.name, stored, oldest)


def check_not_gone(name: str, first: int, oldest: int) -> None:
    """Refuse a table that needs row `first` when `oldest` is the oldest row kept."""
    if first < oldest:
        raise LostRowsError(
            f"DATA_LOSS: the table `{name}` needs rows {first} to {oldest - 1}, which are no longer kept",
            "`penstock pipeline reset --accept-loss` records the gap and continues from the oldest row",
        )


def accept(data: Path) -> dict[str, tuple[int, int]]:
    """Move every table that needs lost rows on to the oldest row kept; returns the rows that each table lacks."""
    journal = location.open_one(data)
    oldest = journal.bounds().first
    app = app_of(journal.id)
    lake = lake_of(data)
    skipped: dict[str, tuple[int, int]] = {}
    for name in table_names(lake):  # user tables too
        if name in (EVENTS.name, GAPS.name):
            continue
        table = open_table(lake, name)
        stored = table.progress(app)
        if stored is not None and stored < oldest:
            with table.writing():
                table.append(table.definition.schema.empty_table(), {app: Progress(stored, oldest)})
            skipped[name] = (stored, oldest)
    if skipped:
        gaps = LakeTable(lake, GAPS)
        with gaps.writing():
            record_gap(gaps, journal.id, min(first for first, _ in skipped.values()), oldest)
    return skipped


def record_gap(gaps: LakeTable, journal: str, first: int, end: int) -> None:
    """Record that rows `first` to `end - 1` were never read; an empty range records that nothing was missed so far."""
    rows = [{"journal": journal, "from_offset": first, "to_offset": end - 1, "reason": "retention"}]
    gaps.append(pa.Table.from_pylist(rows if end > first else [], GAPS.schema), {app_of(journal): Progress(first, end)})


CHUNK_ROWS = 1_000_000
"""Journal rows that a table which is behind takes in one commit."""
WRITERS = 4
"""Tables that are written at the same time."""

OnProgress = Callable[[str, int, int], None]
"""Called with a table, its offset, and the offset it has to reach."""


class Ingest:
    """Writes journal rows to the tables of its steps."""

    def __init__(
        self,
        spark: SparkSession,
        given: SourceJournal | JournalGroup,
        lake: LakePath,
        steps: Sequence[Step],
        read_lake: LakePath | None = None,
    ) -> None:
        self.spark = spark
        self.group = JournalGroup.of(given)
        self.lake = lake
        self._read_lake = read_lake or lake
        self.steps = list(steps)
        self._order = ordered(self.steps)
        self._read = {name for step in self.steps for name in step.after}
        self._conditions = list(dict.fromkeys(step.when for step in self.steps))
        self._tables = {step.table.name: LakeTable(lake, step.table) for step in steps}
        self._gaps = LakeTable(lake, GAPS)
        self._recent = {one: RecentRows(journal) for one, journal in self.group.journals.items()}
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="tables")
        self._turn = threading.Lock()
        self.times = StepTimes()
        """Where the time of the latest batch went."""
        self.retention: Mapping[str, str] | None = None
        """How long rows stay, by table; None leaves the settings of the tables."""
        self.behind: dict[str, int] = {}
        """Tables that another writer had locked during the last batch, and how many rows of the journals they have."""
        self.stopped: dict[str, HintedError] = {}
        """Users' tables that stopped, and why; the others go on."""
        self.expectations = ExpectationCounts()
        for step in self.steps:
            add_cluster(self._tables[step.table.name])
            self.expectations.add(ExpectationTally(step.table, step.expectations))
        self.end = self.start_offset()
        """Rows before this are in every table that is not `behind`."""

    def close(self) -> None:
        self._pool.shutdown()

    def for_table(self, lake: LakePath, name: str) -> Ingest:
        """An `Ingest` that writes one table to another directory and reads the others from this lake."""
        return Ingest(self.spark, self.group, lake, only(self.steps, [name]), self.lake)

    def table(self, name: str) -> LakeTable:
        """A table by name; one without a step here is only read."""
        known = self._tables.get(name)
        if known is None and name in TABLES:
            return LakeTable(self._read_lake, TABLES[name])
        return open_table(self._read_lake, name) if known is None else known

    def start_offset(self) -> Positions:
        """The least progress of all tables: reading from here misses no row."""
        every = [self._stored(step) for step in self.steps if step.table.name not in self.stopped]
        return {
            one: min((stored[one] for stored in every), default=first) for one, first in self.group.firsts().items()
        }

    def check(self) -> None:
        """Refuse a journal that has fewer rows than the tables."""
        for one, end in self.group.ends().items():
            ahead = [step.table.name for step in self.steps if self._stored(step)[one] > end]
            if ahead:
                raise TablesAheadError(
                    f"JOURNAL_REWOUND: the journal ends at {end} and these tables hold later rows: {', '.join(ahead)}",
                    "it lost rows when it recovered from a crash",
                )

    def level(self) -> None:
        """Catch up tables that are behind the others, without waiting for new rows."""
        every = [self._stored(step) for step in self.steps]
        if any(stored != every[0] for stored in every):
            self.backfill(goes_on=True)
            self.end = self.start_offset()

    def _stored(self, step: Step) -> Positions:
        """The progress of a table: its first missing row of each journal."""
        return self.group.stored(self._tables[step.table.name])

    # A batch

    def on_batch(self, ends: Positions, _number: int = 0) -> None:
        """Bring every table to the ends of a batch."""
        self.times = times = StepTimes()
        with open_batch(
            self.spark, self.group, self.table, self.end, ends, self._recent, self._conditions, times
        ) as batch:
            if batch is not None:  # a new query starts with an empty batch, and a batch may come again
                self.advance(batch)

    def advance(self, batch: JournalBatch) -> None:
        """Write a batch to every table; a step begins when the tables that it reads are written."""
        with self._turn:
            self._record_first_gap()
            self.behind = {}
            results: dict[str, Future[None]] = {}
            # Steps without rows come last, unless another step waits for them.
            for step in sorted(
                self._order, key=lambda step: step.when in batch.unmet and step.table.name not in self._read
            ):
                sources = [results[name] for name in step.after]
                results[step.table.name] = self._pool.submit(self._advance_table, step, batch, sources)
            for result in results.values():
                result.exception()  # wait for all before raising: a writer must not outlive the batch
            for result in results.values():
                result.result()
            self.end = self.end | batch.ends

    def catch_up_skipped(self) -> None:
        """Catch up tables that another writer had locked, without waiting for the next batch."""
        if not self.behind or not self._turn.acquire(blocking=False):
            return
        try:
            for step in self._order:
                name = step.table.name
                if name not in self.behind or any(source in self.behind for source in step.after):
                    continue
                with self._stopping(step) as goes_on, self._tables[name].try_writing() as is_ours:
                    if is_ours and goes_on:
                        self._catch_up(step, self.end)
                    if is_ours:
                        del self.behind[name]
        finally:
            self._turn.release()

    def _advance_table(self, step: Step, batch: JournalBatch, sources: Sequence[Future[None]]) -> None:
        """Bring one table to the end of a batch, from whatever progress it has, after the tables that it reads."""
        name = step.table.name
        if any(source.exception() is not None for source in sources):
            return
        if any(source in self.behind for source in step.after):
            self.behind[name] = sum(self._stored(step).values())
            return
        with self._stopping(step) as goes_on, self._tables[name].try_writing() as is_ours:
            if goes_on and not is_ours:  # a rebuild or backfill holds it; `catch_up_skipped` follows up
                self.behind[name] = sum(self._stored(step).values())
            elif goes_on:
                stored = self._catch_up(step, batch.firsts)
                if any(stored[one] < end for one, end in batch.ends.items()):
                    self._write(step, batch.since(stored))

    @contextmanager
    def _stopping(self, step: Step) -> Iterator[bool]:
        """Yields whether a table goes on. A user's table whose rows fail an expectation stops, and so do those that read it."""
        name = step.table.name
        for source in step.after:
            if source in self.stopped and name not in self.stopped:
                self.stopped[name] = HintedError(f"table `{name}`: it reads the table `{source}`, which stopped")
        try:
            yield name not in self.stopped
        except HintedError as error:
            if not isinstance(error, ExpectationError) and not step.stops_alone:
                raise
            self.stopped[name] = error
            print(error, file=sys.stderr)

    def _catch_up(self, step: Step, until: Positions, on_progress: OnProgress | None = None) -> Positions:
        """Write the rows before `until` that a table lacks, a chunk of a journal at a time. Returns its progress.

        Rows that a table which it reads lacks have to wait.
        """
        stored = self._stored(step)
        for source in step.reads:
            there = self.group.stored(self.table(source))
            until = {one: min(stop, there[one]) for one, stop in until.items()}
        for one, stop in until.items():
            journal = self.group.journals[one]
            if stored[one] < stop:
                check_not_gone(step.table.name, stored[one], journal.bounds().first)
            while stored[one] < stop:
                end = min(stored[one] + CHUNK_ROWS, stop)
                part = JournalRange(journal, stored[one], end, journal.time_of(end - 1))
                self._write(step, JournalBatch(self.spark, self.table, self.group, {one: part}))
                release_memory()
                stored[one] = end
                if on_progress is not None:
                    on_progress(step.table.name, sum(stored.values()), sum((stored | until).values()))
        return stored

    def _write(self, step: Step, batch: JournalBatch) -> None:
        try:
            self._write_rows(step, batch)
        except Exception as error:
            if step.file is None or isinstance(error, ExpectationError) or diagnose(error, None)[0] is not None:
                raise
            line = line_in(step.file, error)
            raise TableFailedError(step.table.name, step.file, line, describe(error)) from error

    def _write_rows(self, step: Step, batch: JournalBatch) -> None:
        table = self._tables[step.table.name]
        progress = batch.progress
        # A batch without rows for this step still moves its progress, at the cost of a commit instead of a Spark job. The exception:
        # such a batch may make an earlier minute final.
        if step.when in batch.unmet and not (step.by_minute and _may_close(table, batch)):
            nothing = step.table.schema.empty_table()
            with self.times.of(f"{table.name}.commit"):
                _ = table.append([], progress) if step.table.write == "append" else table.merge(nothing, progress)
            return
        tally = ExpectationTally(step.table, step.expectations)
        made: pa.Table | list[StagedFile]
        with self.times.of(f"{table.name}.rows"):
            rows = step.rows(batch)
            if isinstance(rows, pa.Table):
                made = rows
            elif step.table.write == "append" and batch.held is None:
                made = stage(rows, table, tally)
            else:
                made = checked(rows, step.expectations).toArrow()
        with self.times.of(f"{table.name}.commit"):
            if not isinstance(made, pa.Table):
                tally.check(lambda: table.discard(made))
                table.append(made, progress)
                self.times.wrote(table.name, sum(file.rows for file in made))
            else:
                made, dropped = tally.sift(made)
                self.times.wrote(table.name, made.num_rows)
                tally.check()
                if step.table.write == "append":
                    table.append(made, progress)
                else:
                    table.merge(made, progress, dropped if dropped.num_rows and step.table.newest is None else None)
        self.expectations.add(tally)

    def _record_first_gap(self) -> None:
        """Record, once, the rows that were gone before the first batch."""
        for one, journal in self.group.journals.items():
            if self._gaps.progress(app_of(one)) is None:
                with self._gaps.writing():
                    record_gap(self._gaps, one, 0, journal.bounds().first)

    # Without a query

    def backfill(
        self, names: Sequence[str] | None = None, on_progress: OnProgress | None = None, *, goes_on: bool = False
    ) -> int:
        """Bring tables to the ends of the journals without a query; returns how many rows that are. May go on when a user's table stops."""
        until = {one: journal.bounds().end for one, journal in self.group.journals.items()}
        for step in self._order:
            if names is None or step.table.name in names:
                with self._stopping(step), self._tables[step.table.name].writing():
                    if step.table.name not in self.stopped:
                        self._catch_up(step, until, on_progress)
        for error in () if goes_on else self.stopped.values():
            raise error
        return sum(until.values())

    def compact_tables(self) -> None:
        """Compact the tables that are due and not locked by another writer."""
        for table in [*self._tables.values(), self._gaps]:
            with table.try_writing() as is_ours:
                if is_ours:
                    table.compact(retention=None if self.retention is None else self.retention.get(table.name, ""))


def _may_close(table: LakeTable, batch: JournalBatch) -> bool:
    """Whether a table has a minute that this batch may make final, by the bounds of its files."""
    since_us = min(batch.minutes_since.values())
    return table.version() is not None and bool(table.files({"minute": (from_us(since_us), None)}))


def add_cluster(table: LakeTable) -> None:
    """Give the rows of a lake of an earlier version the cluster that they belong to: their journal."""
    if table.name not in (CONVERSATIONS.name, AGENTS.name) or table.version() is None:
        return
    schema = table.schema()
    unsure = (file for file in table.files() if file.nulls.get("cluster") != 0)
    parts = (data_files.read(table.path, file, schema, ["cluster"]) for file in unsure)
    if "cluster" in schema.names and not any(part.column(0).null_count for part in parts):
        return
    with table.writing():
        rows = table.rows()
        known = rows.column("cluster") if "cluster" in rows.column_names else pa.nulls(rows.num_rows, pa.string())
        filled = {"cluster": pc.coalesce(known, rows.column("journal"))}
        rows = pa.table(dict(zip(rows.column_names, rows.columns, strict=True)) | filled)
        # A row with the same key may have been written since. It comes last, so it also wins if the times are the same.
        rows = rows.take(pc.sort_indices(pc.is_valid(known)))
        table.overwrite(rewrite.one_per_key(rows, table.definition.key, "last_at", table.name), {})
