"""Reading tables: rows, bounds, versions, and tables of other programs."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from penstock.journal.delta_log import table_names
from penstock.spark.lake.catalog import open_table, summary
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake.table_reader import LakeError
from tests.spark.lakes import APP, COUNTS, NOTES, START, counts, notes


def test_a_foreign_table_is_read_appended_to_and_compacted(tmp_path):
    """Other writers name files otherwise, and keep statistics of everything or of nothing."""
    rows = pa.table({"k": ["a b/c", "ü%x", None, "plain"], "n": [1, 2, 3, 4], "raw": [b"1", None, b"3", b"4"]})
    write_deltalake(str(tmp_path / "theirs"), rows, partition_by=["k"])
    table = open_table(tmp_path, "theirs")
    assert table.rows().sort_by("n").equals(rows)
    table.append(pa.table({"k": ["a b/c", "new/x"], "n": [5, 6], "raw": [b"5", None]}), {})
    assert table.compact_files(files_min=2) == (2, 1)
    for path in (tmp_path / "theirs").rglob("*.parquet"):
        os.utime(path, (1, 1))
    table.log.sweep(time.time())
    theirs = DeltaTable(str(table.path))
    assert theirs.to_pyarrow_table().sort_by("n").to_pylist() == table.rows().sort_by("n").to_pylist()
    assert [row["n"] for row in table.rows().sort_by("n").to_pylist()] == [1, 2, 3, 4, 5, 6]
    for predicate, count in (("raw is not null", 4), ("n >= 5", 2), ("k = 'new/x'", 1)):
        assert pa.table(theirs.scan(predicate=predicate).read_all()).num_rows == count
    theirs.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(LakeError, match="deletionVectors"):
        open_table(tmp_path, "theirs")


def test_rows_come_back_as_they_went_in_to_everybody(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    rows = notes(86_390, 86_410)  # over midnight
    table.append(rows, {APP: Progress(86_390, 86_410)})
    assert {file.path.split("/")[0] for file in table.files()} == {"date=2026-03-01", "date=2026-03-02"}
    assert table.rows().sort_by("offset").equals(rows)
    theirs = DeltaTable(str(table.path))
    assert theirs.to_pyarrow_table().sort_by("offset").to_pylist() == rows.to_pylist()
    # Statistics let Delta's readers skip files, and must never let them skip too many.
    for predicate in (
        "offset = 86400",
        "journal = 'j1' and offset >= 86409",
        "recorded_at >= '2026-03-02T00:00:09Z'",
    ):
        assert pa.table(theirs.scan(predicate=predicate).read_all()).num_rows == 1
    assert table.rows(["text"], pc.field("offset") == 86_395).to_pylist() == [{"text": "note 86395"}]
    with pytest.raises(LakeError, match="no column `nope`"):
        table.rows(["nope"])


def test_files_are_selected_by_their_bounds(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    for first in (0, 10, 20):
        table.append(notes(first, first + 10), {APP: Progress(first, first + 10)})
    assert [file.least["offset"] for file in table.files({"offset": (25, None)})] == [20]
    assert [file.least["offset"] for file in table.files({"offset": (None, 5)})] == [0]
    at = START + timedelta(seconds=15)
    assert [file.least["offset"] for file in table.files({"recorded_at": (at, at)})] == [10]
    assert table.files({"date": (START.date() + timedelta(days=1), None)}) == []
    assert len(table.files({"text": ("x", None)})) == 3  # nothing is known of it
    assert len(table.files(version=1)) == 1


def test_what_is_there_and_what_is_not(tmp_path):
    assert table_names(tmp_path / "none") == []
    with pytest.raises(LakeError, match="there is no table `notes`"):
        LakeTable(tmp_path, NOTES).rows()
    with pytest.raises(LakeError, match="there are: none yet"):
        open_table(tmp_path, "notes")
    LakeTable(tmp_path, NOTES).append(notes(0, 5), {APP: Progress(0, 5)})
    LakeTable(tmp_path, COUNTS).merge(counts({("a", 0): 1}), {"my-query": Progress(4, 4)})
    (tmp_path / "_checkpoints").mkdir()
    assert table_names(tmp_path) == ["counts", "notes"]
    known = summary(tmp_path, "notes")
    assert (known.rows, known.files, known.version, known.offset) == (5, 1, 1, 5)
    assert summary(tmp_path, "counts").offset is None  # a query's batches are no offsets
    with pytest.raises(LakeError, match=r"version 9 .* kept are 0 to 1"):
        open_table(tmp_path, "notes").rows(version=9)
    with pytest.raises(LakeError, match="cannot be a table's name"):
        LakeTable(tmp_path, TableDefinition("../x", NOTES.schema, (), "append")).append(notes(0, 1), {})
