"""Answers of several cells as one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.dialects.courier.operations.merges import MERGES


def merged(name: str, *bodies: dict[str, Any]) -> Any:
    return msgspec.json.decode(MERGES[name]([msgspec.json.encode(body) for body in bodies]))


def row(state: str, run: int, *codes: str) -> dict[str, Any]:
    reasons = [{"code": code} for code in codes]
    return {
        "id": "r", "state": state, "counters": {"run": run, "last": None}, "reasons": reasons, "cooling": [{"key": run}],
        "recent": [{"at": f"2026-01-0{run}"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "bodies", "expected"),
    [
        ("metrics", [{"streams": [1]}, {"streams": []}, {"streams": [2]}], {"streams": [1, 2]}),
        (
            "where",
            [{"id": "a", "places": [{"state": "settled"}]}, {"id": "a", "places": [{"state": "ready"}]}],
            {"id": "a", "places": [{"state": "ready"}, {"state": "settled"}]},
        ),
        (
            "snapshot",
            [{"rows": [1], "watermark": 2, "asOf": "a"}, {"rows": [2], "watermark": 3, "asOf": "b"}],
            {"rows": [1, 2], "watermark": 3, "asOf": "b"},
        ),
        ("trigger_put", [{"id": "r"}, {"id": "r"}], {"id": "r"}),
    ],
)
def test_rows_are_joined(name: str, bodies: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    assert merged(name, *bodies) == expected


def test_counts_of_a_trigger_are_summed_and_its_reasons_kept() -> None:
    (one,) = merged(
        "triggers", {"triggers": [row("ready", 1, "no_match")]}, {"triggers": [row("resting", 2, "resting")]}
    )["triggers"]
    assert (one["state"], one["counters"]) == ("resting", {"run": 3, "last": None})
    assert one["reasons"] == [{"code": "resting"}]
    assert [event["at"] for event in one["recent"]] == ["2026-01-02", "2026-01-01"]
    assert merged("trigger", row("ready", 1, "no_match"))["reasons"] == [{"code": "no_match"}]
