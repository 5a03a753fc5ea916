"""Expectations of a user's table: conditions that its rows must meet, and what happens to a row that does not.

Spark evaluates the conditions with the rows, in the same job. The rest is Arrow: it runs in the tasks of an append and in the driver of
a merge, and needs no JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.ipc.pipeline import ExpectationStatus
from penstock.spark.errors import HintedError
from penstock.spark.pipeline.journal_rows import release_memory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.lake.data_files import StagedFile
    from penstock.spark.lake.schemas import TableDefinition
    from penstock.spark.lake.table import LakeTable

OnFail: TypeAlias = Literal["drop", "warn", "fail"]
Function = TypeVar("Function", bound=Callable[..., Any])
FAILED_KEYS_MAX = 10_000
"""Keys of failed rows that are remembered for each expectation, so that a row that is computed again counts once; drop the oldest."""
_COLUMN = "_expectation_"
_MARK = "__expectations__"


@dataclass(frozen=True)
class Expectation:
    """A condition for the rows of a table."""

    name: str
    condition: str
    on_fail: OnFail


def expect(name: str, condition: str, *, on_fail: OnFail = "warn") -> Callable[[Function], Function]:
    """State a condition that each row of a table meets. Stack it with `@table`; a table may have several.

    Parameters
    ----------
    name
        What the condition means, in `/metrics`, the console and errors.
    condition
        SQL on the columns of the table. A row passes if it is true; null fails.
    on_fail
        What happens to a row that fails: `"warn"` counts it, `"drop"` counts it and leaves it out, and `"fail"` stops this table, and
        no other, before the row is written.
    """

    def mark(function: Function) -> Function:
        setattr(function, _MARK, (Expectation(name, condition, on_fail), *expectations_of(function)))
        return function

    return mark


def expectations_of(function: Any) -> tuple[Expectation, ...]:
    """The expectations of a function, in the order in which they are written."""
    return tuple(getattr(function, _MARK, ()))


class ExpectationError(HintedError):
    """Rows that a table must not have. Stops the table; a restart tries again."""

    def __init__(self, table: str, expected: Expectation, count: int, sample: str) -> None:
        super().__init__(
            f"table `{table}`: rows that fail the expectation `{expected.name}` ({expected.condition}): {count}, such as {sample}",
            "correct the function or the expectation, then restart the pipeline",
        )


def checked(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """Rows with a column for each expectation: whether the row passes."""
    passes = [f"coalesce(({one.condition}), false) as {_COLUMN}{number}" for number, one in enumerate(expectations)]
    return rows.selectExpr("*", *passes) if passes else rows


@dataclass
class ExpectationTally:
    """Counts the failures of a table's rows, and takes out those to drop. Runs where the rows are."""

    table: TableDefinition
    expectations: tuple[Expectation, ...]

    def __post_init__(self) -> None:
        self.failed: list[tuple[int, list[str]]] = [(0, []) for _ in self.expectations]
        """For each expectation, how many rows failed, and their keys: all of a merge, one of an append."""

    def sift(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The rows of the table, and those that are dropped."""
        names = [name for name in rows.column_names if not name.startswith(_COLUMN)]
        plain, stays = rows.select(names), pa.array([True] * rows.num_rows, pa.bool_())
        for number, one in enumerate(self.expectations if rows.num_rows else ()):
            passes = rows.column(f"{_COLUMN}{number}").combine_chunks()
            missed = plain.filter(pc.invert(passes))
            count, keys = self.failed[number]
            wanted = FAILED_KEYS_MAX if self.table.write == "merge" else 1
            for row in missed.slice(0, wanted - len(keys)).to_pylist():
                keys.append(", ".join(f"{name}={row[name]}" for name in self.table.key))
            self.failed[number] = count + missed.num_rows, keys
            if one.on_fail == "drop":
                stays = pc.and_(stays, passes)
        return plain.filter(stays), plain.filter(pc.invert(stays))

    def add(self, failed: Iterable[tuple[int, list[str]]]) -> None:
        """Add the failures that a task counted."""
        both = zip(self.failed, failed, strict=True)
        self.failed = [(count + more, keys + more_keys) for (count, keys), (more, more_keys) in both]

    def check(self, before: Callable[[], None] | None = None) -> None:
        """Raise for the first expectation that stops the table, after `before`."""
        for one, (count, keys) in zip(self.expectations, self.failed, strict=True):
            if count and one.on_fail == "fail":
                if before is not None:
                    before()
                raise ExpectationError(self.table.name, one, count, keys[0])


def stage(rows: DataFrame, table: LakeTable, tally: ExpectationTally) -> list[StagedFile]:
    """Write rows as files of a table, in the tasks; a later commit adds them to the table. Counts rows that fail expectations."""
    import pickle

    from pyspark.sql.types import BinaryType, StructField, StructType

    definition, expectations = tally.table, tally.expectations

    def write(batches):  # type: ignore[no-untyped-def]
        here = ExpectationTally(definition, expectations)
        if expectations:
            batches = (kept for one in batches for kept in here.sift(pa.Table.from_batches([one]))[0].to_batches())
        files = table.stage(batches)
        release_memory()
        yield pa.RecordBatch.from_pydict({"files": pa.array([pickle.dumps((files, here.failed))], pa.binary())})

    checks = checked(rows, expectations)
    described = checks.mapInArrow(write, StructType([StructField("files", BinaryType())])).collect()
    staged = []
    for row in described:
        files, failed = pickle.loads(row.files)
        staged += files
        tally.add(failed)
    return staged


class ExpectationCounts:
    """How many rows failed each expectation since the pipeline started. A row of a merge that is computed again counts once."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], ExpectationStatus] = {}
        self._known: dict[tuple[str, str], dict[str, None]] = {}

    def add(self, tally: ExpectationTally) -> None:
        """Count the failures of a commit."""
        table = tally.table
        is_recomputed = table.write == "merge" and table.newest is None
        for one, (count, keys) in zip(tally.expectations, tally.failed, strict=True):
            name = table.name, one.name
            status = self._counts.setdefault(name, ExpectationStatus(table.name, one.name, one.on_fail))
            known = self._known.setdefault(name, {})
            if is_recomputed:
                new = [key for key in keys if key not in known]
                count = len(new)
                known.update(dict.fromkeys(new))
                for _ in range(len(known) - FAILED_KEYS_MAX):
                    del known[next(iter(known))]
            status.failed += count
            if count:
                status.sample = keys[-1]

    def report(self) -> list[ExpectationStatus]:
        return list(self._counts.values())
