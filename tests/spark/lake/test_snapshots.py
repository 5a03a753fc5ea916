"""Tables of other programs."""

from __future__ import annotations

import os
import time

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from penstock.spark.lake.catalog import open_table
from penstock.spark.lake.snapshots import LakeError


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
