"""Rows that match a table, and staged files."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.spark.lake.data_files import SchemaError
from penstock.spark.lake.table import LakeTable, Progress
from tests.spark.lakes import APP, COUNTS, NOTES, counts, notes


@pytest.mark.parametrize(
    ("table", "rows", "message"),
    [
        (COUNTS, counts({("a", 0): 1}).drop_columns(["channel"]), "column `channel` .* is missing"),
        (COUNTS, pa.concat_tables([counts({("a", 0): 1})] * 2), "same key .*channel=a"),
        (COUNTS, counts({(None, 0): 1}), "column `channel` .* is null"),
        (NOTES, notes(0, 1).append_column("extra", pa.array([1])), "no column `extra`"),
        (
            NOTES,
            notes(0, 1).set_column(1, "offset", pa.array(["0"])),
            "column `offset` .* is int64, .* string",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(tmp_path, table, rows, message):
    lake = LakeTable(tmp_path, table)
    write = lake.merge if table.write == "merge" else lake.append
    with pytest.raises(SchemaError, match=message):
        write(rows, {APP: Progress(0, 1)})
    assert lake.progress(APP) is None and lake.rows().num_rows == 0


def test_another_encoding_of_the_same_values_fits(tmp_path):
    table = LakeTable(tmp_path, NOTES)
    rows = notes(0, 3)
    other = rows.set_column(0, "journal", rows.column("journal").dictionary_encode())
    other = other.set_column(6, "text", rows.column("text").cast(pa.large_string()))
    other = other.set_column(1, "offset", rows.column("offset").cast(pa.int32()))
    table.append(other, {APP: Progress(0, 3)})
    assert table.rows().sort_by("offset").equals(rows)


def test_a_stage_that_fails_leaves_nothing(tmp_path):
    table = LakeTable(tmp_path, NOTES)

    def batches():
        yield from notes(0, 3).to_batches()
        raise RuntimeError("task killed")

    with pytest.raises(RuntimeError, match="task killed"):
        table.stage(batches())
    assert [path for path in table.path.rglob("*") if path.is_file()] == []
