"""Rows of a DataFrame as envelopes."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.core.errors import PenstockError
from penstock.spark.sink.rows import address, encoder_for


def rows(**columns: Any) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict(columns)])


def lines(batch: pa.RecordBatch, *, is_text: bool = False) -> list[Any]:
    encode = encoder_for("agents/sam/inbox", "note", is_text=is_text)
    made = list(encode(batch))
    assert not any(b"\n" in line for line in made)
    return [msgspec.json.decode(line) for line in made]


def test_values_of_every_type_become_json():
    inner = pa.struct([("when", pa.timestamp("us", tz="UTC")), ("tags", pa.map_(pa.string(), pa.list_(pa.int64())))])
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    cases: list[tuple[Any, pa.DataType, Any]] = [
        ({"when": moment, "tags": [("a", [1, None])]}, inner, {"when": "2026-01-02T03:04:05Z", "tags": {"a": [1, None]}}),
        ([("k", [("x", 1)])], pa.map_(pa.string(), pa.map_(pa.string(), pa.int8())), {"k": {"x": 1}}),
        ([[("x", 1)], None], pa.list_(pa.map_(pa.string(), pa.int8())), [{"x": 1}, None]),
        ([(7, "x")], pa.map_(pa.int32(), pa.string()), {"7": "x"}),
        (7, pa.int32(), 7),
        (float("nan"), pa.float64(), None),
        (Decimal("1.50"), pa.decimal128(9, 2), 1.5),
        (datetime.date(2026, 1, 2), pa.date32(), "2026-01-02"),
        (b"\x00\xff", pa.binary(), "AP8="),
        (None, pa.int32(), None),
    ]  # fmt: skip
    for value, kind, expected in cases:
        (line,) = lines(pa.RecordBatch.from_arrays([pa.array([value], kind)], names=["payload"]))
        assert line == {"to": "agents/sam/inbox", "type": "note", "payload": expected}


def test_a_string_is_json_unless_it_is_called_text():
    (batch,) = rows(payload=['{"a":\n 1}', '"x"', None])
    assert [line["payload"] for line in lines(batch)] == [{"a": 1}, "x", None]
    assert [line["payload"] for line in lines(batch, is_text=True)] == ['{"a":\n 1}', '"x"', None]
    for bad in ("plain", '1,"to":"agents/kim/inbox"', "{", ""):
        with pytest.raises(PenstockError, match="payloadAs"):
            lines(next(rows(payload=[bad])))


def test_what_a_row_leaves_out_comes_from_the_options_or_is_missed():
    batch = pa.RecordBatch.from_pydict(
        {
            "to": ["kim", None],
            "type": [None, "alarm"],
            "payload": ["1", "2"],
            "id": ["a", None],
            "refs": [None, ["r"]],
        }
    )
    assert lines(batch) == [
        {"to": "agents/kim/inbox", "type": "note", "payload": 1, "id": "a"},
        {"to": "agents/sam/inbox", "type": "alarm", "payload": 2, "refs": ["r"]},
    ]
    with pytest.raises(PenstockError, match="a row has no `to`"):
        list(encoder_for(None, "note", is_text=False)(batch))


def test_addresses():
    assert [address(to) for to in ("sam", "a/b", "stream:jobs")] == ["agents/sam/inbox", "a/b", "jobs"]
    assert [address(to) for to in ("space:demo/stream-1", "space:a/b/c")] == [
        "space:demo/stream-1",
        "space:a/b/c",
    ]
    for bad in ("space:", "space:demo", "space:/x", "space:demo/"):
        with pytest.raises(PenstockError, match="not the stream of a space"):
            address(bad)
    for bad in ("", "a:b", "stream:"):
        with pytest.raises(PenstockError, match="is not an address"):
            address(bad)


def test_a_row_for_a_space_needs_no_type_and_says_how_its_payload_is_meant():
    batch = pa.RecordBatch.from_pydict(
        {
            "to": ["space:demo/x", "kim", "space:demo/x"],
            "type": [None, "t", None],
            "payload": ['{"a": 1}', "2", '"s"'],
        }
    )
    encode = encoder_for(None, None, is_text=False)
    assert [msgspec.json.decode(line) for line in encode(batch)] == [
        {"to": "space:demo/x", "payload": {"a": 1}},
        {"to": "agents/kim/inbox", "type": "t", "payload": 2},
        {"to": "space:demo/x", "payload": "s"},
    ]
    texts = pa.RecordBatch.from_pydict({"payload": ["hello", None]})
    encode = encoder_for("space:demo/x", None, is_text=True)
    assert [msgspec.json.decode(line) for line in encode(texts)] == [
        {"to": "space:demo/x", "payload": "hello", "payloadAs": "text"},
        {"to": "space:demo/x", "payload": None},
    ]
    with pytest.raises(PenstockError, match="a row has no `type`"):
        list(encoder_for("agents/sam/inbox", None, is_text=True)(texts))
