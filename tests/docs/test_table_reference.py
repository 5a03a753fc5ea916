"""`docs/reference/tables.md` names every table with its key, and every column with its type, in order."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from penstock.spark.lake.schemas import EVENTS, TABLES, TableDefinition
from tests.paths import ROOT

TEXT = (ROOT / "docs/reference/tables.md").read_text()
KINDS = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.list_(pa.string()): "array<string>",
    pa.map_(pa.string(), pa.string()): "map<string, string>",
}


def cells(text: str) -> list[list[str]]:
    """The rows of a Markdown table without its head."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return rows[2:]


@pytest.mark.promise("Spark: pipeline", "every table and column is in the reference")
def test_every_table_is_listed_with_its_key_and_how_it_is_written() -> None:
    listed = {}
    for name, key, written, _ in cells(TEXT.partition("\n## ")[0]):
        listed[re.findall(r"`(\w+)`", name)[0]] = (tuple(re.findall(r"`(\w+)`", key)), written)
    assert listed == {
        table.name: (
            table.key,
            table.write + "".join(f", partitioned by `{name}`" for name in table.partition_by),
        )
        for table in TABLES.values()
    }


@pytest.mark.promise("Spark: pipeline", "every table and column is in the reference")
@pytest.mark.parametrize("table", [table for table in TABLES.values() if table is not EVENTS])
def test_every_column_is_described(table: TableDefinition) -> None:
    section = TEXT.partition(f"\n## {table.name}\n")[2].partition("\n## ")[0]
    described = cells(section)
    assert [(name.strip("`"), kind) for name, kind, _ in described] == [
        (field.name, KINDS[field.type]) for field in table.schema
    ]
    assert all(meaning for _, _, meaning in described)
