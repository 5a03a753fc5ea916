"""Tables of a lake directory: opened by name, and summed up from their logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.lake.catalog import open_table, stored_table, summary
from penstock.spark.lake.snapshots import LakeError
from penstock.spark.lake.table import LakeTable, Progress
from tests.spark.lakes import APP, NOTES, notes


def test_a_stored_table_has_the_columns_and_partitions_that_were_written(tmp_path: Path) -> None:
    LakeTable(tmp_path, NOTES).append(notes(0, 3), {APP: Progress(0, 3)})
    for opened in (stored_table(tmp_path / NOTES.name), open_table(tmp_path, NOTES.name)):
        assert opened.definition.schema.names == NOTES.schema.names
        assert opened.definition.partition_by == NOTES.partition_by
        assert opened.rows().num_rows == 3


def test_a_summary_counts_rows_and_files_and_says_how_far_the_table_is(tmp_path: Path) -> None:
    table = LakeTable(tmp_path, NOTES)
    for number in range(2):
        table.append(notes(number, number + 1), {"j1/0": Progress(number, number + 1)})
    found = summary(tmp_path, NOTES.name)
    assert (found.table, found.rows, found.files, found.offset) == (NOTES.name, 2, 2, 2)


def test_a_name_that_is_no_table_is_refused_with_those_that_are(tmp_path: Path) -> None:
    LakeTable(tmp_path, NOTES).append(notes(0, 1), {APP: Progress(0, 1)})
    for name in ("absent", "../outside", "_locks"):
        with pytest.raises(LakeError, match=NOTES.name):
            open_table(tmp_path, name)
