"""A batch of journal rows as DataFrames: the input of every step of the pipeline."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.journal.lake_location import ObjectPath
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake import data_files
from penstock.spark.lake.rewrite import candidates
from penstock.spark.lake.table import Progress
from penstock.spark.lake_tables.conversations import MEMBER_COLUMNS
from penstock.spark.lake_tables.expressions import BEGUN, OWN_SENDER, TOUCHED, without_own
from penstock.spark.lake_tables.minutes import MINUTE_US, from_us
from penstock.spark.lake_tables.row_masks import talk_of, unmet, without_own_rows
from penstock.spark.pipeline.journal_group import JournalGroup, Positions, app_of
from penstock.spark.pipeline.journal_rows import MEASURED, journal_frame, ranges_between, read_few
from penstock.spark.session import small_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark.lake.data_files import LiveFile
    from penstock.spark.lake.table import LakeTable
    from penstock.spark.pipeline.journal_rows import JournalRange, RecentRows

COUNTED = [name for name in MEASURED if name not in ("shard", "epoch", "seq", "id", "kind", "corr", "attempt")]
"""Columns that the built-in tables of minutes read."""
FOUND_ROWS_MAX = 100_000
"""Rows of conversations that the driver looks up; more are left to Spark."""
TIME = FILE_SCHEMA.field("recorded_at").type


class StepTimes:
    """Where the time of a batch goes, by step, and which step failed."""

    def __init__(self) -> None:
        self.ms: dict[str, int] = {}
        self.written: dict[str, int] = {}
        """Rows that each table got, or that replaced others."""
        self.failed: str | None = None

    def wrote(self, table: str, rows: int) -> None:
        """Count rows of a table; a batch may begin with rows that the table lacked."""
        self.written[table] = self.written.get(table, 0) + rows

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Time a step; several threads may."""
        start = time.monotonic()
        try:
            yield
        except Exception:
            self.failed = self.failed or step
            raise
        finally:
            self.ms[step] = self.ms.get(step, 0) + int((time.monotonic() - start) * 1000)


@contextmanager
def open_batch(
    spark: SparkSession,
    group: JournalGroup,
    lake: Callable[[str], LakeTable],
    firsts: Positions,
    ends: Positions,
    recent: Mapping[str, RecentRows],
    conditions: Sequence[str] = (),
    times: StepTimes | None = None,
) -> Iterator[JournalBatch | None]:
    """The rows from some positions to others, read once for all tables; None if there are none.

    The driver reads few rows itself: Spark then starts no task that waits for a Python worker. `conditions` are SQL: `unmet` of the
    batch names those that no row meets.
    """
    with (times or StepTimes()).of("read"):
        ranges = ranges_between(group, firsts, ends)
        held = read_few(ranges)
        for one, rows in (held or {}).items():
            has_gauges = pc.any(pc.equal(rows.column("event"), "gauge")).as_py()
            ranges[one] = replace(ranges[one], has_gauges=has_gauges)
        batch = JournalBatch(spark, lake, group, ranges, held, recent=recent)
        given = batch.given = batch.read(batch.firsts).persist() if ranges and held is None else None
    try:
        if ranges and conditions:
            with (times or StepTimes()).of("read"):
                batch.ask(conditions)
        yield batch if ranges else None
    finally:
        if given is not None:
            given.unpersist()


@dataclass
class JournalBatch:
    """Some rows of one or more journals, and the older rows that a step may need with them."""

    session: SparkSession
    lake: Callable[[str], LakeTable]
    group: JournalGroup
    ranges: dict[str, JournalRange]
    """The rows of each journal, by its id."""
    held: dict[str, pa.Table] | None = None
    """The rows of a small batch, by journal."""
    given: DataFrame | None = None
    """The rows of a large batch, if they are cached."""
    unmet: tuple[str, ...] = ()
    """Conditions that no row of the batch meets."""
    touched: list[str] | None = None
    """The conversations of its rows, if they are known."""
    recent: Mapping[str, RecentRows] | None = None
    """A cache of the rows before the batch."""

    @property
    def firsts(self) -> Positions:
        return {one: part.first for one, part in self.ranges.items()}

    @property
    def ends(self) -> Positions:
        return {one: part.end for one, part in self.ranges.items()}

    @property
    def progress(self) -> dict[str, Progress]:
        """What the batch adds to the progress of a table."""
        return {app_of(one): Progress(part.first, part.end) for one, part in self.ranges.items()}

    @property
    def until(self) -> dict[str, int]:
        """The time of the last row of each journal."""
        return {one: part.until_us for one, part in self.ranges.items()}

    @property
    def minutes_since(self) -> dict[str, int]:
        """The first minute of each journal that this batch touches or may close."""
        return {one: part.minutes_since_us for one, part in self.ranges.items()}

    @cached_property
    def spark(self) -> SparkSession:
        """The session, with the settings for a small batch if it is one."""
        return self.session if self.held is None else small_session(self.session)

    @cached_property
    def rows(self) -> pa.Table | None:
        """The rows of a small batch, without those that the pipeline itself caused."""
        return None if self.held is None else without_own_rows(pa.concat_tables(self.held.values()))

    @cached_property
    def events(self) -> DataFrame:
        """The rows, without those that the pipeline itself caused."""
        if self.rows is not None:
            return self.spark.createDataFrame(self.rows)
        return without_own(self.read(self.firsts) if self.given is None else self.given)

    def frame(self, rows: DataFrame | pa.Table) -> DataFrame:
        """Rows as a DataFrame."""
        return self.spark.createDataFrame(rows) if isinstance(rows, pa.Table) else rows

    def ask(self, conditions: Sequence[str] = ()) -> None:
        """Ask at once which conditions the rows meet, and which conversations they belong to."""
        if self.rows is not None:
            are_unmet, unknown = unmet(self.rows, conditions)
            self.touched = sorted({*talk_of(self.rows).to_pylist()} - {None})
            if unknown:  # of tables of users; Spark evaluates this while it plans, without a job
                met = [{*column} for column in zip(*self.events.selectExpr(*unknown).collect(), strict=True)]
                are_met = [True in values for values in met] or [False for _ in unknown]
                are_unmet += [one for one, is_met in zip(unknown, are_met, strict=True) if not is_met]
            self.unmet = tuple(are_unmet)
            return
        asked = [f"bool_or({condition})" for condition in conditions]
        *are_met, self.touched = self.events.selectExpr(*asked, f"collect_set({TOUCHED})").collect()[0]
        self.unmet = tuple(condition for condition, is_met in zip(conditions, are_met, strict=True) if not is_met)

    def mapped(
        self,
        rows: DataFrame,
        function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> DataFrame | pa.Table:
        """What a function makes of rows: here for a small batch, else in the tasks."""
        from pyspark.sql.pandas.types import from_arrow_schema

        if self.held is None:
            return rows.mapInArrow(function, from_arrow_schema(schema))
        return pa.Table.from_batches(function(iter(rows.toArrow().to_batches())), schema)

    def read(self, firsts: Positions, columns: list[str] | None = None) -> DataFrame:
        """The rows from these on, read by the tasks."""
        frames = [
            journal_frame(self.spark, part.journal.location, firsts[one], part.end, columns)
            for one, part in self.ranges.items()
        ]
        return reduce(lambda rows, more: rows.union(more), frames)

    def since(self, firsts: Positions) -> JournalBatch:
        """The batch from these rows to the same ends; a first row may lie before the batch."""
        if all(firsts[one] == part.first for one, part in self.ranges.items()):
            return self
        left = {
            one: replace(part, first=firsts[one], has_gauges=part.has_gauges or firsts[one] < part.first)
            for one, part in self.ranges.items()
            if firsts[one] < part.end
        }
        held, rows = None, None
        if all(part.first >= self.ranges[one].first for one, part in left.items()):
            if self.held is not None:
                held = {one: self.held[one].slice(part.first - self.ranges[one].first) for one, part in left.items()}
            elif self.given is not None:
                rows = self.given.where(
                    " or ".join(f"(journal = '{one}' and offset >= {part.first})" for one, part in left.items())
                )
        return JournalBatch(self.session, self.lake, self.group, left, held, rows, recent=self.recent)

    @cached_property
    def whole_minutes(self) -> DataFrame:
        """Every row, without bodies, of the minutes that this batch touches or may close."""
        return self._measured({one: part.reach for one, part in self.ranges.items()}, MINUTE_US, COUNTED)

    @cached_property
    def held_minutes(self) -> pa.Table | None:
        """The same, if they are few enough to hold."""
        return self._recent_rows({one: part.reach for one, part in self.ranges.items()}, MINUTE_US, COUNTED)

    def _recent_rows(
        self, reaches: Mapping[str, tuple[int, int]], size_us: int, columns: Sequence[str]
    ) -> pa.Table | None:
        """Rows from a row and from the window of a time on, without those that the pipeline itself caused; None if they are not cached."""
        found = []
        for one, part in self.ranges.items():
            first, time_us = reaches[one]
            rows = None if self.recent is None else self.recent[one].rows(first, part.end)
            if rows is None:
                return None
            is_meant = pc.field("recorded_at") >= pa.scalar(time_us // size_us * size_us, TIME)
            others = pc.field("sender").is_null() | (pc.field("sender") != OWN_SENDER)
            found.append(rows.select(columns).filter(is_meant & others))
        return pa.concat_tables(found)

    def windows(self, size_us: int) -> DataFrame:
        """Every row, without bodies, of the windows that this batch touches and whose beginning is kept."""
        return self._measured({one: part.window(size_us) for one, part in self.ranges.items()}, size_us)

    def _measured(
        self, reaches: Mapping[str, tuple[int, int]], size_us: int, columns: Sequence[str] = MEASURED
    ) -> DataFrame:
        """Every row, without bodies, from a row and from the window of a time on."""
        held = self._recent_rows(reaches, size_us, columns)
        if held is not None:
            return self.spark.createDataFrame(held).coalesce(1)
        since = {one: time_us // size_us * size_us for one, (_, time_us) in reaches.items()}
        firsts = {one: first for one, (first, _) in reaches.items()}
        rows = self.read(firsts, MEASURED) if self.given is None or firsts != self.firsts else self.given
        begun = [f"(journal = '{one}' and recorded_at >= timestamp_micros({us}))" for one, us in since.items()]
        return without_own(rows).where(" or ".join(begun)).select(*columns)

    def new_rows(self, name: str, columns: Sequence[str]) -> pa.Table:
        """The rows that this batch adds to a table with offsets."""
        table = self.lake(name)
        wanted = pa.schema([table.definition.schema.field(column) for column in columns])
        found = [wanted.empty_table()]
        for one, part in self.ranges.items() if table.version() is not None else ():
            field = pc.field
            is_new = (field("journal") == one) & (field("offset") >= part.first) & (field("offset") < part.end)
            rows = table.rows(columns, is_new, bounds={"offset": (part.first, part.end - 1)})
            found.append(rows.cast(wanted))  # files may encode a column in another way
        return pa.concat_tables(found)

    def new_keys(self, names: Sequence[str], key: Sequence[str]) -> pa.Table:
        """The keys of the rows that this batch adds to some tables, each once."""
        found = pa.concat_tables([self.new_rows(name, key) for name in names])
        return found.drop_null().group_by(list(key)).aggregate([])

    def rows_of_keys(self, name: str, keys: pa.Table) -> DataFrame:
        """All rows of a table that have one of these keys."""
        table, key = self.lake(name), keys.column_names
        delta = table.delta()
        filtered = [column for column in table.definition.filters if column in key]
        files = [] if delta is None else candidates(table.live(delta), keys, key, table.filters, filtered)
        rows = self._rows_in(table, files)
        return rows.join(self.spark.createDataFrame(keys).hint("broadcast"), key, "left_semi").select(*rows.columns)

    def touched_conversations(self) -> tuple[DataFrame | pa.Table, DataFrame | pa.Table]:
        """The envelopes and deliveries of the conversations that this batch touches; those of a small batch with some others."""
        if self.touched is None:
            self.ask()
        talks = pa.array(self.touched, pa.string())
        since_us = min(part.journal.time_of(part.first) for part in self.ranges.values())
        conversations = self.lake("conversations")
        if conversations.version() is not None:
            known = conversations.rows_with({"corr": talks}, ["cluster", "started_at"])
            known = known.filter(pc.field("cluster") == self.group.cluster)
            if known.num_rows:
                # By time, not by offset: the table still has rows of the conversation that retention removed from the journal.
                since_us = min(since_us, pc.min(known.column("started_at").cast(pa.int64())).as_py())
        return self.members_of(talks, since_us)

    def members_of(self, talks: pa.Array, since_us: int = 0) -> tuple[DataFrame | pa.Table, DataFrame | pa.Table]:
        """The envelopes and deliveries of some conversations, from a time on; those of a small batch with some others."""
        ids = {"corr": talks, "id": talks}  # `BEGUN`: some conversations are named by the id of their first envelope
        found = self._table_rows("envelopes", "recorded_at", since_us, ids)
        done = self._table_rows("deliveries", "settled_at", since_us, {"corr": talks})
        if isinstance(found, pa.Table) and isinstance(done, pa.Table):
            return found, done
        sent, ended = self.frame(found), self.frame(done)
        names = self.spark.createDataFrame(pa.table({"corr": talks})).hint("broadcast")
        sent = sent.selectExpr("*", f"coalesce(corr, {BEGUN}) as talk")
        return sent.join(names, sent["talk"] == names["corr"], "left_semi"), ended.join(names, ["corr"], "left_semi")

    def _table_rows(
        self, name: str, moment: str, since_us: int, any_of: Mapping[str, pa.Array]
    ) -> DataFrame | pa.Table:
        """Rows of an append table from a time on, of the files that may have one of these values; of few, those that have one."""
        table = self.lake(name)
        bounds = {moment: (from_us(since_us), None)}
        if self.held is not None:
            columns = [column for column in table.definition.schema.names if column in MEMBER_COLUMNS]
            found = table.rows_with(any_of, columns, bounds, FOUND_ROWS_MAX)
            if found.num_rows < FOUND_ROWS_MAX:
                is_ours = pc.field("journal").isin(list(self.group.journals))
                return found.filter(is_ours & (pc.field(moment) >= pa.scalar(since_us, TIME)))
        files = table.filters.holding(table.files(bounds), any_of)
        ids = ", ".join(f"'{one}'" for one in self.group.journals)
        return self._rows_in(table, files).where(f"journal in ({ids}) and {moment} >= timestamp_micros({since_us})")

    def _rows_in(self, table: LakeTable, files: Sequence[LiveFile]) -> DataFrame:
        """The rows of some files of a table, through Spark's own Parquet reader; from an object store, through Arrow."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(table.definition.schema)
        if not files:
            return self.spark.createDataFrame([], schema)
        if isinstance(table.path, ObjectPath):
            return self._stored_rows(table.path, files, schema)
        reader = self.spark.read.schema(schema).option("basePath", str(table.path))
        return reader.parquet(*(str(table.path / file.path) for file in files))

    def _stored_rows(self, root: ObjectPath, files: Sequence[LiveFile], schema: StructType) -> DataFrame:
        """The rows of files in an object store, through Arrow: Spark's own reader has no client for one."""
        from pyspark.sql.pandas.types import to_arrow_schema

        wanted = to_arrow_schema(schema, timezone="UTC")

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for described in (one for batch in batches for one in batch.column(0).to_pylist()):
                for rows in data_files.batches(root, pickle.loads(described), wanted):
                    yield pa.RecordBatch.from_arrays(rows.columns, schema=wanted)

        named = self.spark.createDataFrame(pa.table({"file": [pickle.dumps(file) for file in files]}))
        return named.mapInArrow(read, schema)
