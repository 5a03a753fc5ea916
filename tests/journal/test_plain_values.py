"""Rows and cells as plain values: nothing is lost where JSON can hold it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest

from penstock.journal.plain_values import plain, plain_row


def test_a_row_has_no_nulls_and_no_body_and_its_times_are_texts() -> None:
    row = {"offset": 7, "recorded_at": 1_000_001, "ref_at": None, "meta": '{"a":1}', "body": b"x", "reason": None}
    assert msgspec.json.decode(msgspec.json.encode(plain_row(row))) == {
        "offset": 7,
        "recorded_at": "1970-01-01T00:00:01.000001Z",
        "meta": {"a": 1},
    }
    assert plain_row({"meta": "no JSON"}) == {"meta": "no JSON"} and "body" in row


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00.000000Z"),
        (date(2026, 1, 31), "2026-01-31"),
        (b"text", "text"),
        (b"\xff", "/w=="),
        ([("key", 1)], {"key": 1}),
        ([1, None, {"at": date(2026, 1, 31)}], [1, None, {"at": "2026-01-31"}]),
    ],
)
def test_a_cell_is_what_json_can_hold(cell: Any, shown: Any) -> None:
    assert plain(cell) == shown
