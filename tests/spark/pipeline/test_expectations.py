"""Expectations: which rows stay, which are counted, and when a table stops. Without a JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.ipc.pipeline import ExpectationStatus, PipelineStatus
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.pipeline.expectations import (
    FAILED_KEYS_MAX,
    Expectation,
    ExpectationCounts,
    ExpectationError,
    ExpectationTally,
    expect,
    expectations_of,
)

SCHEMA = pa.schema({"journal": pa.string(), "offset": pa.int64(), "bytes": pa.int64()})
APPENDED = TableDefinition("jobs", SCHEMA, ("journal", "offset"), "append")
MERGED = TableDefinition("sums", SCHEMA, ("journal", "offset"), "merge")
DROP = Expectation("not empty", "bytes > 0", "drop")
WARN = Expectation("small", "bytes < 5", "warn")
FAIL = Expectation("known", "bytes != 7", "fail")
EVERY = (DROP, WARN, FAIL)


def rows(*sizes: int, first: int = 0) -> pa.Table:
    """Rows as Spark returns them, with the results of `EVERY`."""
    return pa.table(
        {
            "journal": ["j1"] * len(sizes),
            "offset": list(range(first, first + len(sizes))),
            "bytes": list(sizes),
            "_expectation_0": [size > 0 for size in sizes],
            "_expectation_1": [size < 5 for size in sizes],
            "_expectation_2": [size != 7 for size in sizes],
        }
    )


def test_expectations_stack_in_the_order_in_which_they_are_written() -> None:
    @expect("not empty", "bytes > 0", on_fail="drop")
    @expect("small", "bytes < 5")
    def jobs() -> None: ...

    assert expectations_of(jobs) == (DROP, WARN) and expectations_of(rows) == ()


def test_rows_that_fail_are_dropped_or_counted() -> None:
    tally = ExpectationTally(APPENDED, EVERY)
    kept, dropped = tally.sift(rows(1, 0, 9, 0))
    assert kept.to_pylist() == [{"journal": "j1", "offset": 0, "bytes": 1}, {"journal": "j1", "offset": 2, "bytes": 9}]
    assert dropped.column("offset").to_pylist() == [1, 3]
    assert tally.failed == [(2, ["journal=j1, offset=1"]), (1, ["journal=j1, offset=2"]), (0, [])]
    tally.check()
    assert tally.sift(SCHEMA.empty_table())[0].num_rows == 0, "a table without rows has not been checked"
    total = ExpectationTally(APPENDED, EVERY)
    for _ in range(2):
        total.add(tally.failed)  # two tasks
    assert [count for count, _ in total.failed] == [4, 2, 0]


@pytest.mark.promise("Spark: pipeline", "an expectation that fails stops its table alone and names a row")
def test_an_expectation_that_stops_the_table_names_table_expectation_and_row() -> None:
    tally = ExpectationTally(APPENDED, EVERY)
    tally.sift(rows(1, 7, 7))
    with pytest.raises(ExpectationError) as caught:
        tally.check()
    assert caught.value.message == (
        "table `jobs`: rows that fail the expectation `known` (bytes != 7): 2, such as journal=j1, offset=1"
    )
    assert caught.value.hint


def test_a_row_that_is_computed_again_counts_once() -> None:
    counts = ExpectationCounts()
    for _ in range(3):
        tally = ExpectationTally(MERGED, EVERY)
        tally.sift(rows(9, 1))
        counts.add(tally)
    more = ExpectationTally(MERGED, EVERY)
    more.sift(rows(9, 9, first=0))
    counts.add(more)
    assert [(one.name, one.failed, one.sample) for one in counts.report()] == [
        ("not empty", 0, ""),
        ("small", 2, "journal=j1, offset=1"),
        ("known", 0, ""),
    ]
    appended = ExpectationCounts()
    for number in range(3):
        tally = ExpectationTally(APPENDED, EVERY)
        tally.sift(rows(9, first=number))
        appended.add(tally)
    assert appended.report()[1].failed == 3


def test_the_memory_of_failed_rows_is_bounded() -> None:
    counts = ExpectationCounts()
    for first in (0, FAILED_KEYS_MAX):
        tally = ExpectationTally(MERGED, EVERY)
        tally.sift(rows(*[9] * FAILED_KEYS_MAX, first=first))
        counts.add(tally)
    assert counts.report()[1].failed == 2 * FAILED_KEYS_MAX
    assert {len(known) for known in counts._known.values()} == {0, FAILED_KEYS_MAX}


def test_a_stopped_table_degrades_the_pipeline_and_says_why() -> None:
    status = PipelineStatus(
        "running", stopped={"jobs": "table `jobs`: no"}, expectations=[ExpectationStatus("a", "b", "fail")]
    )
    finding = status.finding()
    assert finding.state == "degraded" and "table `jobs`: no" in finding.reason and "pipeline.tables" in finding.action
