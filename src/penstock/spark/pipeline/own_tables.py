"""Tables of users: functions marked with `@table`, and the kinds of tables that they can be.

Every kind ends in the same rows however the journal is cut into batches. A window, a session and a join are computed again from all of
their rows when a new row belongs to them. A state is stored in the commit that holds the progress of the table.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from penstock.journal.delta_log import TABLE_NAME
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.errors import line_in
from penstock.spark.lake import schemas
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.pipeline import steps
from penstock.spark.pipeline.expectations import checked, expectations_of
from penstock.spark.pipeline.steps import Step, StepError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.ipc.pipeline import PipelineSection
    from penstock.spark.pipeline.batch import JournalBatch

TableFunction = Callable[..., "DataFrame"]
WINDOW_MAX_S = 31 * 86_400
"""The longest window: a batch reads all rows of the windows that it touches."""
SESSION_WINDOW = "1 day"
"""Sessions end at the end of a window of this size, unless the table sets `window`."""
SESSION_COLUMNS = ("session_start", "session_end")
_UNITS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_SPAN = re.compile(rf"(?:(\d{{1,6}}) )?({'|'.join(_UNITS)})s?")


def parse_span(text: str, setting: str) -> int:
    """A duration such as `15 minutes` or `hour`, in microseconds."""
    found = _SPAN.fullmatch(text)
    seconds = int(found[1] or 1) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= WINDOW_MAX_S:
        raise StepError(f"`{setting}` is `{text}`", "write it as `15 minutes`, from `1 second` to `31 days`")
    return seconds * 1_000_000


@dataclass(frozen=True)
class UserTable:
    """A user function marked as a table."""

    name: str
    function: TableFunction
    key: tuple[str, ...]
    window_us: int | None = None
    session_us: int | None = None
    newest: str | None = None
    join: tuple[str, ...] = ()
    state: str | None = None
    where: str = "true"

    @property
    def write(self) -> Literal["append", "merge"]:
        return "merge" if self.window_us or self.newest or self.join or self.state else "append"

    @property
    def merge_key(self) -> tuple[str, ...]:
        """The key of the table: that of a session includes its start."""
        return (*self.key, SESSION_COLUMNS[0]) if self.session_us else self.key


_marked: list[UserTable] = []


def table(
    name: str | None = None,
    *,
    key: Sequence[str] = ("journal", "offset"),
    window: str | None = None,
    session: str | None = None,
    newest: str | None = None,
    join: Sequence[str] = (),
    state: str | None = None,
    where: str = "true",
) -> Callable[[TableFunction], TableFunction]:
    """Mark a function from journal rows to table rows. `pipeline.tables` of the config names the file that it is in.

    Without `window`, `session`, `newest`, `join` and `state` the function is given the new rows, and its rows are appended.

    Parameters
    ----------
    name
        The name of the table; by default that of the function.
    key
        Columns that identify a row. For `session`, `join` and `state`: columns of the rows that the function is given.
    window
        A duration such as `"15 minutes"`. The function is given every row, without bodies, of the windows that new rows fall into, and
        its rows replace those of the same key: for counts and percentiles. Windows begin at multiples of their size in UTC.
    session
        A pause such as `"10 minutes"`. Rows of one key that are less than this apart are a session. The function is given every row,
        without bodies, of the sessions of keys with new rows, with the columns `session_start` and `session_end`, which the table must
        have. A session ends at the end of `window`, by default at midnight UTC.
    newest
        A column: of the rows of one key, the one with the greatest value in it is kept. For the latest of something.
    join
        Names of tables with a column `offset` and the columns of the key. The function is given a DataFrame for each: all rows of the
        keys that have new rows in one of them. Its rows replace those of the same key.
    state
        The columns of the table, as in `"journal string, sender string, total bigint"`. The function is given the new rows and the
        stored rows of their keys. Its rows replace those of the same key.
    where
        SQL on journal rows: those that the table is about. A batch without any costs the table no Spark job.
    """
    kinds = [name for name, given in [("window", window and not session), ("session", session), ("newest", newest),
                                      ("join", join), ("state", state)] if given]  # fmt: skip
    if len(kinds) > 1:
        raise StepError(f"a table has one of `{kinds[0]}` and `{kinds[1]}`", "make two tables")
    if kinds and kinds[0] in ("session", "join", "state") and "journal" not in key:
        raise StepError(
            f"the key of a table with `{kinds[0]}` has no `journal`",
            "add it: offsets and times are those of one journal",
        )
    session_us = None if session is None else parse_span(session, "session")
    window = window or (SESSION_WINDOW if session else None)
    window_us = None if window is None else parse_span(window, "window")

    def mark(function: TableFunction) -> TableFunction:
        named = name or function.__name__
        _marked.append(UserTable(named, function, tuple(key), window_us, session_us, newest, tuple(join), state, where))
        return function

    return mark


def load(spark: SparkSession, files: Iterable[str | Path]) -> list[Step]:
    """Load the steps of the tables in these files. A table may join those before it."""
    known: dict[str, Path] = {}
    definitions = dict(schemas.TABLES)
    made = []
    for file in map(Path, files):
        for found in marked_tables(file, known):
            step = _step(spark, file, found, definitions)
            definitions[found.name] = step.table
            made.append(step)
    return made


def all_steps(spark: SparkSession, settings: PipelineSection) -> list[Step]:
    """The steps of a pipeline: built-in tables, tables of typed payloads, and those of users."""
    made = steps.built_in(settings.token_keys) + steps.typed(settings.schemas) + load(spark, settings.tables)
    names = [step.table.name for step in made]
    for step in made:
        if names.count(step.table.name) > 1:
            raise StepError(f"`{step.file}`: there are two tables `{step.table.name}`", "rename your own")
    return made


def marked_tables(file: Path, known: dict[str, Path]) -> list[UserTable]:
    """Load the tables of a file, without Spark; `known` has the tables of the files before, and gains these."""
    found = _marks(file)
    for name in (one.name for one in found):
        if name in schemas.TABLES or name in known:
            what = "the table `{}` is built in" if name in schemas.TABLES else "there is already a table `{}`"
            raise StepError(f"`{file}`: {what.format(name)}", "choose another name")
        if not TABLE_NAME.fullmatch(name):
            hint = 'begin with a letter or a digit, as in `@table("errors")`'
            raise StepError(f"`{file}`: `{name}` cannot be a table's name", hint)
        known[name] = file
    return found


def load_file(file: Path, setting: str, failure: Callable[[str], Exception]) -> ModuleType:
    """Run a Python file that a setting names; raises `failure` if that is not possible."""
    if not file.is_file():
        raise failure(f"`{setting}` names `{file}`, which does not exist")
    spec = importlib.util.spec_from_file_location(f"penstock_{setting.rpartition('.')[2]}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        line = line_in(file, error)
        where = "" if line is None else f", line {line}"
        raise failure(f"`{file}`{where}, cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _marks(file: Path) -> list[UserTable]:
    del _marked[:]
    load_file(file, "pipeline.tables", StepError)
    if not _marked:
        raise StepError(f"`{file}` marks no function with `@penstock.spark.table()`")
    return list(_marked)


def _step(spark: SparkSession, file: Path, found: UserTable, known: dict[str, TableDefinition]) -> Step:
    from pyspark.sql.pandas.types import to_arrow_schema

    expectations = expectations_of(found.function)
    for one in expectations:
        if found.state is not None and one.on_fail == "drop":
            hint = "use `warn` or `fail`, or leave the journal rows out with `where`"
            raise StepError(f"`{file}`: a row of the state `{found.name}` cannot be dropped", hint)
    try:
        made = found.function(*_given(spark, file, found, known))
        checked(made, expectations)
        if found.state is not None:
            made = spark.createDataFrame([], found.state).unionByName(made)
        shape = made.schema
    except StepError:
        raise
    except Exception as error:
        line = line_in(file, error) or found.function.__code__.co_firstlineno
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise StepError(f"the table `{found.name}` of `{file}`, line {line}: {why}") from error
    schema = to_arrow_schema(shape, timezone="UTC")
    needed = ["journal", *found.merge_key, *([found.newest] if found.newest else [])]
    needed += SESSION_COLUMNS if found.session_us else ()
    for column in needed:
        if column not in schema.names:
            raise StepError(f"`{file}`: the table `{found.name}` has no column `{column}`", "add it")
    partition_by = ("date",) if "date" in schema.names and not found.state else ()
    definition = TableDefinition(found.name, schema, found.merge_key, found.write, partition_by, found.newest)
    rows = partial(_rows, found)
    when = "true" if found.join else f"({found.where})"
    return Step(definition, rows, found.join, when, file=file, expectations=expectations, reads=found.join)


def _given(spark: SparkSession, file: Path, found: UserTable, known: dict[str, TableDefinition]) -> list[DataFrame]:
    """What the function is given, without rows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    for source in found.join:
        names = known[source].schema.names if source in known else None
        if names is None:
            raise StepError(
                f"`{file}`: `{found.name}` joins `{source}`, which is no table", f"tables: {', '.join(known)}"
            )
        for column in ("offset", *found.key):
            if column not in names:
                raise StepError(f"`{file}`: `{found.name}` joins `{source}`, which has no column `{column}`")
    if found.join:
        shapes = [from_arrow_schema(known[source].schema) for source in found.join]
        return [spark.createDataFrame([], shape) for shape in shapes]
    events = spark.createDataFrame([], from_arrow_schema(FILE_SCHEMA)).where(found.where)
    if found.session_us is not None and found.window_us is not None:
        return [in_sessions(events, found.key, found.session_us, found.window_us)]
    return [events] if found.state is None else [events, spark.createDataFrame([], found.state)]


def _rows(found: UserTable, batch: JournalBatch) -> DataFrame | pa.Table:
    """The rows of the table for a batch."""
    function = found.function
    if found.join:
        keys = batch.new_keys(found.join, found.key)
        if not keys.num_rows:
            return batch.lake(found.name).definition.schema.empty_table()
        return function(*(batch.rows_of_keys(name, keys) for name in found.join))
    if found.window_us is not None:
        rows = batch.windows(found.window_us).where(found.where)
        if found.session_us is None:
            return function(rows)
        new = batch.events.where(found.where).select(*found.key).distinct()
        touched = rows.join(new.hint("broadcast"), list(found.key), "left_semi")
        return function(in_sessions(touched, found.key, found.session_us, found.window_us))
    events = batch.events.where(found.where)
    if found.state is None:
        return function(events)
    keys = events.select(*found.key).distinct().toArrow().drop_null()
    names = batch.lake(found.name).definition.schema.names
    return function(events, batch.rows_of_keys(found.name, keys)).select(*names)


def in_sessions(rows: DataFrame, key: Sequence[str], pause_us: int, window_us: int) -> DataFrame:
    """Rows with the start and the end of their session: the times of its first and last row."""
    each = f"{', '.join(f'`{name}`' for name in key)}, unix_micros(recorded_at) div {window_us}"
    passed = f"unix_micros(recorded_at) - lag(unix_micros(recorded_at)) over (partition by {each} order by recorded_at, offset)"
    begun = rows.selectExpr("*", f"if(coalesce({passed} < {pause_us}, false), 0, 1) as _begins")
    order = "order by recorded_at, offset rows between unbounded preceding and current row"
    numbered = begun.selectExpr("*", f"sum(_begins) over (partition by {each} {order}) as _session")
    whole = f"over (partition by {each}, _session)"
    names = [f"`{name}`" for name in rows.columns]
    bounds = zip(("min", "max"), SESSION_COLUMNS, strict=True)
    return numbered.selectExpr(*names, *(f"{bound}(recorded_at) {whole} as {name}" for bound, name in bounds))
