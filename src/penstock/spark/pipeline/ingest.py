"""The query `ingest`: every batch of journal rows brings every table of the lake forward, exactly once.

How far a table has come is kept in the table, in the same commit as its rows. So a batch that comes twice changes nothing, a table that is
behind, because it is new or was left behind by a crash, is first brought up by itself, and a lost checkpoint costs nothing but time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.lake.data_files import StagedFile
from penstock.spark.lake.schemas import GAPS, TABLES
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.pipeline.batch import JournalBatch, RecentRows, open_batch
from penstock.spark.pipeline.steps import Step, only, ordered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.source.location import SourceJournal

CHUNK_ROWS = 1_000_000
"""Journal rows by which a table that is behind is brought up at a time."""
SHARD = 0
"""The one shard of a journal on one machine."""
WRITERS = 4
"""Tables that are written side by side."""

OnProgress = Callable[[str, int, int], None]
"""Called with a table, how far it is, and how far it has to go."""


class LostRowsError(Exception):
    """Rows that a table still needs are no longer kept. DATA_LOSS."""


class Ingest:
    """Brings tables forward."""

    def __init__(
        self,
        spark: SparkSession,
        journal: SourceJournal,
        lake: Path,
        steps: Sequence[Step],
        read_lake: Path | None = None,
    ) -> None:
        self._spark = spark
        self.journal = journal
        self.lake = lake
        self._read_lake = read_lake or lake
        self._steps = list(steps)
        self._rounds = ordered(self._steps)
        self._conditions = list(dict.fromkeys(step.when for step in self._steps))
        self.app = f"{journal.id}/{SHARD}"
        """Under this name tables know how far they are."""
        self._tables = {step.table.name: LakeTable(lake, step.table) for step in steps}
        self._gaps = LakeTable(lake, GAPS)
        self._recent = RecentRows(journal)
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="tables")
        self._turn = threading.Lock()
        self.behind: dict[str, int] = {}
        """Tables that somebody else is writing, and how far they are."""
        self.end = self.start_offset()
        """Rows before this are in every table that is not behind."""

    def close(self) -> None:
        self._pool.shutdown()

    def beside(self, lake: Path, name: str) -> Ingest:
        """The same for one table in another directory, reading the others where they are."""
        return Ingest(self._spark, self.journal, lake, only(self._steps, [name]), self.lake)

    def table(self, name: str) -> LakeTable:
        """A table by name; one that is not made here is there to be read."""
        known = self._tables.get(name)
        return LakeTable(self._read_lake, TABLES[name]) if known is None else known

    def start_offset(self) -> int:
        """Where reading has to begin so that no table misses a row."""
        return min((self._stored(step) for step in self._steps), default=self.journal.bounds().first)

    def check(self) -> None:
        """Refuse to go on from a journal that has fewer rows than the tables."""
        end = self.journal.mark().end
        ahead = [step.table.name for step in self._steps if self._stored(step) > end]
        if ahead:
            raise LostRowsError(
                f"JOURNAL_REWOUND: the journal ends at {end} and these tables hold later rows: {', '.join(ahead)}; "
                "it lost rows when it recovered from a crash"
            )

    def level(self) -> None:
        """Bring tables that are behind the others up to them, so that they need not wait for new rows."""
        furthest = max((self._stored(step) for step in self._steps), default=0)
        if self.end < furthest:
            self.backfill()
            self.end = self.start_offset()

    def _stored(self, step: Step) -> int:
        """The first row that a table does not have."""
        stored = self._tables[step.table.name].progress(self.app)
        return self.journal.bounds().first if stored is None else stored

    # A batch

    def on_batch(self, rows: DataFrame, _number: int = 0) -> None:
        """Bring every table up to the end of a batch. For `foreachBatch`."""
        with open_batch(self._spark, self.journal, self.table, rows, self._recent, self._conditions) as batch:
            if batch is not None:  # a new query begins with an empty batch
                self.advance(batch)

    def advance(self, batch: JournalBatch) -> None:
        """Bring every table forward over a stretch of rows."""
        with self._turn:
            self._note_gap()
            self.behind = {}
            for steps in self._rounds:
                results = [self._pool.submit(self._bring, step, batch) for step in steps]
                for result in results:
                    result.exception()  # let all of them end before one of them is raised
                for result in results:
                    result.result()
            self.end = batch.end

    def rejoin(self) -> None:
        """Bring up what was left to somebody else, once that one is done: new rows may be long in coming."""
        if not self.behind or not self._turn.acquire(blocking=False):
            return
        try:
            for step in (step for steps in self._rounds for step in steps):
                name = step.table.name
                if name not in self.behind or any(source in self.behind for source in step.after):
                    continue
                with self._tables[name].try_writing() as is_ours:
                    if is_ours:
                        self._catch_up(step, self.end)
                        del self.behind[name]
        finally:
            self._turn.release()

    def _bring(self, step: Step, batch: JournalBatch) -> None:
        """Bring one table forward, from wherever it is."""
        name = step.table.name
        if any(source in self.behind for source in step.after):
            self.behind[name] = self._stored(step)
            return
        table = self._tables[name]
        with table.try_writing() as is_ours:
            if not is_ours:  # being filled beside us; what it misses then is brought up later
                self.behind[name] = self._stored(step)
                return
            self._catch_up(step, batch.first)
            stored = self._stored(step)
            if stored >= batch.end:
                return
            self._write(step, batch.since(stored))

    def _catch_up(self, step: Step, until: int, on_progress: OnProgress | None = None) -> None:
        """Give a table the rows before `until` that it lacks, a chunk at a time."""
        first = self._stored(step)
        if first >= until:
            return
        _check_kept(step.table.name, first, self.journal.bounds().first)
        while first < until:
            end = min(first + CHUNK_ROWS, until)
            until_us = self.journal.time_of(end - 1)
            self._write(step, JournalBatch(self._spark, self.journal, self.table, first, end, until_us))
            first = end
            if on_progress is not None:
                on_progress(step.table.name, first, until)

    def _write(self, step: Step, batch: JournalBatch) -> None:
        table = self._tables[step.table.name]
        progress = {self.app: Progress(batch.first, batch.end)}
        if step.when in batch.unmet and not (step.by_minute and _may_close(table, batch)):
            nothing = step.table.schema.empty_table()
            _ = table.append([], progress) if step.table.write == "append" else table.merge(nothing, progress)
        elif step.table.write == "append":
            table.append(stage(step.rows(batch), table), progress)
        else:
            table.merge(step.rows(batch).toArrow(), progress)

    def _note_gap(self) -> None:
        """What was gone before anybody read it is written down, once."""
        if self._gaps.progress(self.app) is None:
            with self._gaps.writing():
                note_gap(self._gaps, self.journal.id, self.app, 0, self.journal.bounds().first)

    # Beside the query

    def backfill(self, names: Sequence[str] | None = None, on_progress: OnProgress | None = None) -> int:
        """Bring tables up to the end of the journal without a query; returns that end."""
        until = self.journal.bounds().end
        for step in (step for steps in self._rounds for step in steps):
            if names is None or step.table.name in names:
                with self._tables[step.table.name].writing():
                    self._catch_up(step, until, on_progress)
        return until

    def compact_tables(self, now_s: float | None = None) -> None:
        """Merge small files and shorten logs, where that is due and nobody else writes."""
        moment = time.time() if now_s is None else now_s
        for table in [*self._tables.values(), self._gaps]:
            with table.try_writing() as is_ours:
                if is_ours:
                    table.compact(moment)


def check_kept(journal: SourceJournal, lake: Path, steps: Sequence[Step]) -> None:
    """Refuse to begin where a table needs rows that are gone; told without Spark, which takes long to start."""
    oldest = journal.bounds().first
    for step in steps:
        stored = LakeTable(lake, step.table).progress(f"{journal.id}/{SHARD}")
        if stored is not None:
            _check_kept(step.table.name, stored, oldest)


def _check_kept(name: str, first: int, oldest: int) -> None:
    if first < oldest:
        raise LostRowsError(
            f"DATA_LOSS: the table `{name}` needs rows {first} to {oldest - 1}, which are no longer kept; "
            "`penstock pipeline reset --accept-loss` notes the gap and goes on from the oldest row"
        )


def _may_close(table: LakeTable, batch: JournalBatch) -> bool:
    """Whether a table has a minute that was not final before these rows; told by its files' bounds."""
    return table.version() is not None and bool(table.files({"minute": (batch.minutes_since, None)}))


def note_gap(gaps: LakeTable, journal: str, app: str, first: int, end: int) -> None:
    """Write down that rows `first` to `end - 1` were never seen; with none, that nothing was missed so far."""
    rows = [{"journal": journal, "from_offset": first, "to_offset": end - 1, "reason": "retention"}]
    gaps.append(pa.Table.from_pylist(rows if end > first else [], GAPS.schema), {app: Progress(first, end)})


def stage(rows: DataFrame, table: LakeTable) -> list[StagedFile]:
    """Write rows as files of a table, where the tasks run; they count once they are committed."""
    import pickle

    from pyspark.sql.types import BinaryType, StructField, StructType

    def write(batches):  # type: ignore[no-untyped-def]
        files = table.stage(batches)
        yield pa.RecordBatch.from_pydict({"files": pa.array([pickle.dumps(files)], pa.binary())})

    described = rows.mapInArrow(write, StructType([StructField("files", BinaryType())])).collect()
    return [file for row in described for file in pickle.loads(row.files)]
