"""How each lake table is computed from the journal: one `Step` a table, built in or a user's own.

A step is a function from a batch of journal rows to rows of one table. It keeps no state: the same batch gives the same rows, and any
way of cutting the journal into batches ends in the same table.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from penstock.journal.delta_log import TABLE_NAME
from penstock.spark.errors import HintedError, line_in
from penstock.spark.lake import schemas
from penstock.spark.lake.schemas import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.pipeline.batch import JournalBatch


Rows = Callable[["JournalBatch"], "DataFrame"]
Window = Literal["minute"]


class StepError(HintedError):
    """A user table that cannot be built; the message says what to change."""

    code = "BadTable"


@dataclass(frozen=True)
class Step:
    """How one table is computed from the journal."""

    table: TableDefinition
    rows: Rows
    after: tuple[str, ...] = ()
    """Tables that it reads; they are written before it."""
    when: str = "true"
    """The journal rows it needs, as SQL: a batch without any moves the table's progress without a Spark job."""
    by_minute: bool = False
    """Whether its rows become final: then a batch without rows for it may still close an open minute."""
    file: Path | None = None
    """The file of a user's table."""


def built_in(token_keys: str | Path | None = None) -> list[Step]:
    """The built-in tables; a file of keys lets `token_streams` read tokens."""
    from penstock.spark.lake_tables.conversations import conversations
    from penstock.spark.lake_tables.deliveries import SETTLED, deliveries
    from penstock.spark.lake_tables.envelopes import INBOXES, SENT, envelopes, latest_per_agent
    from penstock.spark.lake_tables.expressions import TOUCHED
    from penstock.spark.lake_tables.frames import FANNED, FRAMED, fanout_minutes, frames
    from penstock.spark.lake_tables.minutes import TRIGGERED, queue_minutes, trigger_minutes
    from penstock.spark.lake_tables.token_streams import PASSED, RELAYED, token_chunks, token_streams
    from penstock.spark.lake_tables.verification_keys import KeyFile

    key_file = None if token_keys is None else KeyFile(Path(token_keys))
    return [
        # First, because the console shows it.
        Step(schemas.QUEUE_MINUTES, lambda batch: queue_minutes(batch.whole_minutes, batch.until, batch.minutes_since)),
        Step(schemas.ENVELOPES, lambda batch: envelopes(batch.events), when=SENT),
        Step(schemas.DELIVERIES, lambda batch: deliveries(batch.events), when=SETTLED),
        Step(schemas.FRAMES, lambda batch: frames(batch.events), when=FRAMED),
        Step(schemas.TOKEN_CHUNKS, lambda batch: token_chunks(batch.events), when=PASSED),
        Step(schemas.LATEST_PER_AGENT, lambda batch: latest_per_agent(envelopes(batch.inboxes)), when=INBOXES),
        Step(schemas.TRIGGER_MINUTES, lambda batch: trigger_minutes(batch.whole_minutes, batch.until),
             when=TRIGGERED, by_minute=True),
        Step(schemas.FANOUT_MINUTES, lambda batch: fanout_minutes(batch.whole_minutes, batch.until),
             when=FANNED, by_minute=True),
        Step(schemas.TOKEN_STREAMS, lambda batch: token_streams(batch, {} if key_file is None else key_file.keys()),
             when=RELAYED),
        Step(schemas.CONVERSATIONS, lambda batch: conversations(*batch.touched_conversations(), batch.group.cluster),
             after=("envelopes", "deliveries"), when=f"{TOUCHED} is not null"),
    ]  # fmt: skip


@dataclass(frozen=True)
class UserTable:
    """A user function marked as a table."""

    name: str
    function: Callable[[DataFrame], DataFrame]
    key: tuple[str, ...]
    write: Literal["append", "merge"]
    window: Window | None
    newest: str | None


_marked: list[UserTable] = []


def table(
    name: str | None = None,
    *,
    key: Sequence[str] = ("journal", "offset"),
    window: Window | None = None,
    newest: str | None = None,
) -> Callable[[Callable[[DataFrame], DataFrame]], Callable[[DataFrame], DataFrame]]:
    """Mark a function from journal rows to table rows. `pipeline.tables` of the config names the file that it is in.

    Parameters
    ----------
    name
        The name of the table; by default that of the function.
    key
        Columns that identify a row.
    window
        With `"minute"` the function is given every row of the minutes that new rows fell into, and its rows replace those of the
        same key: for counts and percentiles. Otherwise it is given the new rows only, and its rows are appended.
    newest
        A column: of the rows of one key, the one with the greatest value in it is kept. For the latest of something.
    """

    def mark(function: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame], DataFrame]:
        write: Literal["append", "merge"] = "merge" if window or newest else "append"
        _marked.append(UserTable(name or function.__name__, function, tuple(key), write, window, newest))
        return function

    return mark


def load(spark: SparkSession, files: Iterable[str | Path]) -> list[Step]:
    """Load the steps of the tables in these files."""
    known: dict[str, Path] = {}
    return [_step(spark, Path(file), found) for file in files for found in marked_tables(Path(file), known)]


def marked_tables(file: Path, known: dict[str, Path]) -> list[UserTable]:
    """Load the tables of a file, without Spark; `known` has the tables of the files before, and gains these."""
    found = _marks(file)
    for name in (one.name for one in found):
        if name in schemas.TABLES:
            raise StepError(f"`{file}`: the table `{name}` is built in", "choose another name")
        if name in known:
            raise StepError(f"`{file}`: there is already a table `{name}`", "choose another name")
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


def _step(spark: SparkSession, file: Path, found: UserTable) -> Step:
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    from penstock.journal.parquet_table import FILE_SCHEMA

    try:
        shape = found.function(spark.createDataFrame([], from_arrow_schema(FILE_SCHEMA))).schema
    except Exception as error:
        line = line_in(file, error) or found.function.__code__.co_firstlineno
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise StepError(f"the table `{found.name}` of `{file}`, line {line}: {why}") from error
    schema = to_arrow_schema(shape, timezone="UTC")
    for column in ("journal", *found.key, *([found.newest] if found.newest else [])):
        if column not in schema.names:
            raise StepError(f"`{file}`: the table `{found.name}` has no column `{column}`", "add it")
    partition_by = ("date",) if "date" in schema.names else ()
    made = TableDefinition(found.name, schema, found.key, found.write, partition_by, found.newest)
    function = found.function
    if found.window:
        return Step(made, lambda batch: function(batch.whole_minutes), file=file)
    return Step(made, lambda batch: function(batch.events), file=file)


def ordered(steps: Sequence[Step]) -> list[list[Step]]:
    """Sort steps into rounds; steps of one round do not read each other's tables."""
    rounds: list[list[Step]] = []
    left = list(steps)
    done: dict[str, None] = {}
    while left:
        ready = [step for step in left if all(name in done for name in step.after)]
        if not ready:
            raise StepError(f"`{left[0].table.name}` reads a table that no step writes: {left[0].after}")
        rounds.append(ready)
        done.update(dict.fromkeys(step.table.name for step in ready))
        left = [step for step in left if step not in ready]
    return rounds


def only(steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    """The steps of some tables, without the tables that they depend on."""
    known = {step.table.name: step for step in steps}
    for name in names:
        if name not in known:
            raise StepError(f"there is no table `{name}`", f"tables: {', '.join(known)}")
    return [replace(known[name], after=()) for name in names]


def check_retention(steps: Sequence[Step], names: Iterable[str]) -> None:
    """Refuse a retention for a table that does not exist, or whose rows have no time."""
    known = {table.name: table for table in (*(step.table for step in steps), schemas.ALERTS, schemas.AGENTS)}
    for name in names:
        if name not in known:
            raise StepError(f"`pipeline.retention` has no table `{name}`", f"tables: {', '.join(known)}")
        if "date" not in known[name].partition_by and not any(map(pa.types.is_timestamp, known[name].schema.types)):
            raise StepError(f"rows of the table `{name}` have no time, so they cannot expire", "add a timestamp")
