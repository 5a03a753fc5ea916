"""Every table of the pipeline."""

from __future__ import annotations

from penstock.spark.lake.schemas import TABLES
from penstock.spark.lake.table import LakeTable, Progress
from tests.spark.lakes import APP


def test_every_table_of_the_pipeline_can_be_made(tmp_path):
    for table in TABLES.values():
        lake = LakeTable(tmp_path, table)
        assert lake.append(table.schema.empty_table(), {APP: Progress(0, 1)})
        assert lake.schema().equals(table.schema)
