"""Merging rows by key: which files are rewritten, and which row wins."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
from deltalake import DeltaTable

from penstock.spark.lake.merge import SMALL_ROWS
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.lake.table import LakeTable, Progress
from tests.spark.lakes import APP, COUNTS, LATEST, START, counted, counts


def widened(table, *fields):
    """The same table as a later program knows it."""
    schema = table.schema
    for field in fields:
        schema = schema.append(field)
    return TableDefinition(table.name, schema, table.key, table.write, table.partition_by, table.newest)


def test_merging_replaces_by_key_and_touches_only_what_it_must(tmp_path):
    table = LakeTable(tmp_path, COUNTS)
    table.merge(counts({("a", 0): 1, ("b", 0): 1, ("a", 2_000): 1}), {APP: Progress(0, 1)})
    [other_day] = table.files({"date": (START.date() + timedelta(days=1), None)})
    table.merge(counts({("a", 0): 2, ("c", 0): 2}), {APP: Progress(1, 2)})
    assert counted(table.rows()) == {("a", 0): 2, ("b", 0): 1, ("c", 0): 2, ("a", 2_000): 1}
    assert other_day in table.files()
    assert table.merge(counts({("a", 0): 9}), {APP: Progress(1, 2)}) is False
    assert counted(table.rows(version=1)) == {("a", 0): 1, ("b", 0): 1, ("a", 2_000): 1}
    theirs = DeltaTable(str(table.path)).to_pyarrow_table()
    assert counted(theirs) == counted(table.rows())


def test_merging_leaves_the_bulk_of_a_large_file_by_itself(tmp_path):
    table = LakeTable(tmp_path, COUNTS)
    everything = {(f"c{number}", 0): 0 for number in range(SMALL_ROWS + 10)}
    table.merge(counts(everything), {APP: Progress(0, 1)})
    for number in range(1, 4):
        table.merge(counts({("c5", 0): number}), {APP: Progress(number, number + 1)})
    assert counted(table.rows()) == everything | {("c5", 0): 3}
    assert sorted(file.rows for file in table.files()) == [1, SMALL_ROWS + 9]


def test_the_newest_row_wins(tmp_path):
    table = LakeTable(tmp_path, LATEST)

    def latest(*pairs):
        rows = [{"journal": "j1", "address": address, "offset": offset, "tags": None} for address, offset in pairs]
        return pa.Table.from_pylist(rows, LATEST.schema)

    table.merge(latest(("sam", 5), ("kim", 7), ("sam", 4)), {APP: Progress(0, 8)})
    table.merge(latest(("sam", 3), ("kim", 9), ("ann", 1), ("ann", 2)), {"backfill": Progress(0, 1)})
    found = {row["address"]: row["offset"] for row in table.rows().to_pylist()}
    assert found == {"sam": 5, "kim": 9, "ann": 2}
    version = len(table.files())
    table.merge(latest(("sam", 1)), {"backfill": Progress(1, 2)})
    assert len(table.files()) == version and table.progress("backfill") == 2


def test_a_merged_table_grows_columns_too(tmp_path):
    LakeTable(tmp_path, COUNTS).merge(counts({("a", 0): 1, ("b", 0): 1}), {APP: Progress(0, 1)})
    later = LakeTable(tmp_path, widened(COUNTS, pa.field("final", pa.bool_())))
    later.merge(counts({("a", 0): 2}).append_column("final", pa.array([True])), {APP: Progress(1, 2)})
    found = {row["channel"]: (row["n"], row["final"]) for row in later.rows().to_pylist()}
    assert found == {"a": (2, True), "b": (1, None)}
