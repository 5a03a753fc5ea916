"""Typed payloads: columns of a schema, their evolution, and values that do not fit. Without a JVM."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.journal.sql import ask
from penstock.spark.lake.schemas import ENVELOPES
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake_tables.typed_payloads import COLUMNS_MAX, columns_of, typed_tables

START = datetime(2026, 3, 1, tzinfo=UTC)
ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "orderId": {"type": "string"},
        "amount": {"type": ["number", "null"]},
        "count": {"$ref": "#/$defs/Count"},
        "paid": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "due": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "to": {"type": "object", "properties": {"city": {"enum": ["Bern", "Rome"]}}},
        "parts": {"type": "array", "items": {"type": "object"}},
        "id": {"type": "integer"},
    },
    "$defs": {"Count": {"type": "integer"}},
}


def put(folder: Path, name: str, schema: dict[str, Any]) -> None:
    file = folder / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(schema))


def envelopes(*sent: tuple[str | None, Any]) -> pa.Table:
    """Rows of the table `envelopes`: a schema and a payload each."""
    rows = [
        {"journal": "j1", "offset": number, "date": START.date(), "recorded_at": START, "channel": "orders",
         "id": f"o-{number}", "type": "order", "sender": "shop", "schema": schema, "payload": json.dumps(payload)}
        for number, (schema, payload) in enumerate(sent)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, ENVELOPES.schema)


def test_the_columns_of_a_schema_have_the_types_of_its_properties() -> None:
    assert {column.name: column.kind for column in columns_of(ORDER)} == {
        "order_id": "string",
        "amount": "double",
        "count": "long",
        "paid": "boolean",
        "due": "date",
        "at": "timestamp",
        "tags": "array<string>",
        "to_city": "string",
        "parts": "json",
        "payload_id": "long",
    }
    assert [(column.name, column.kind) for column in columns_of({"type": "string"})] == [("value", "string")]
    assert [column.kind for column in columns_of({"$ref": "#"})] == ["json"], "a schema of itself ends"
    loop = {"properties": {"next": {"$ref": "#/properties/next"}}}
    assert [column.kind for column in columns_of(loop)] == ["json"]


def test_values_become_columns_and_those_that_do_not_fit_are_null_and_named(tmp_path: Path) -> None:
    put(tmp_path, "shop/order@v1", ORDER)
    [table] = typed_tables(tmp_path)
    assert table.name == "types_shop_order_v1"
    whole = {"orderId": "a", "amount": 3, "count": 2.0, "paid": True, "due": "2026-03-04", "at": "2026-03-01T01:00:00+01:00",
             "tags": ["x"], "to": {"city": "Rome"}, "parts": [{"n": 1}], "id": 7}  # fmt: skip
    sent = [("shop/order@v1", whole), ("shop/order@v1.3", {"orderId": 5, "count": 2**70, "to": 1}), ("shop/order@v2", {}),
            ("shop/order-line@v1", {}), (None, whole), ("shop/order@v1", [])]  # fmt: skip
    first, second, third = table.rows(envelopes(*sent)).to_pylist()
    assert {name: first[name] for name in table.columns} == {
        "order_id": "a",
        "amount": 3.0,
        "count": 2,
        "paid": True,
        "due": date(2026, 3, 4),
        "at": START,
        "tags": ["x"],
        "to_city": "Rome",
        "parts": '[{"n":1}]',
        "payload_id": 7,
    }
    assert (first["id"], first["sender"], first["payload_error"]) == ("o-0", "shop", None)
    assert second["order_id"] is None and second["count"] is None and second["schema"] == "shop/order@v1.3"
    assert second["payload_error"] == "`payload.orderId`: Expected `str | null`, got `int`"
    assert third["order_id"] is None and third["offset"] == 5


@pytest.mark.promise(
    "Spark: pipeline", "payloads with a schema are tables with its columns, which evolve by its versions"
)
def test_a_minor_version_adds_columns_and_a_major_version_is_another_table(tmp_path: Path) -> None:
    schemas, lake = tmp_path / "schemas", tmp_path / "lake"
    put(schemas, "shop/order@v1", {"properties": {"sum": {"type": "integer"}, "old": {"type": "string"}}})
    [first] = typed_tables(schemas)
    stored = LakeTable(lake, first.definition)
    stored.append(first.rows(envelopes(("shop/order@v1", {"sum": 1, "old": "x"}))), {"j1/0": Progress(0, 1)})
    put(schemas, "shop/order@v1.1", {"properties": {"sum": {"type": "integer"}, "extra": {"type": "boolean"}}})
    put(schemas, "shop/order@v2", {"properties": {"sum": {"type": "string"}}})
    second, other = typed_tables(schemas)
    assert (second.name, other.name) == (first.name, "types_shop_order_v2")
    rows = second.rows(envelopes((None, 0), ("shop/order@v1.1", {"sum": 2, "extra": True})))
    LakeTable(lake, second.definition).append(rows, {"j1/0": Progress(1, 2)})
    found = ask(lake, "select sum, old, extra from types_shop_order_v1 order by offset")
    assert list(found.rows) == [[1, "x", None], [2, None, True]]


def test_files_that_are_no_schema_are_left_out_and_names_and_columns_are_bounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "notes", {})
    put(tmp_path, "a/b-c@v1", {"properties": {f"p{number}": {} for number in range(COLUMNS_MAX + 1)}})
    put(tmp_path, "a/b_c@v1", {})
    (tmp_path / "a" / "broken@v1.json").write_text("{")
    [table] = typed_tables(tmp_path)
    assert table.schema == "a/b-c" and len(table.columns) == COLUMNS_MAX
    assert "no table for `a/b_c@v1`" in capsys.readouterr().err
    assert typed_tables(tmp_path / "absent") == []
