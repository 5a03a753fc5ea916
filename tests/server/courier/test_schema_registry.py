"""Mismatches that pass with a warning are logged, but not for every envelope."""

from __future__ import annotations

import pytest

from penstock.server.courier.schema_registry import Notices
from penstock.server.logging import logs


def test_a_busy_stream_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, int]] = []
    monkeypatch.setattr(logs, "warning", lambda name, **f: said.append((f["stream"], f["envelopes"])))
    time_s = 0.0
    notices = Notices(lambda: time_s)
    for _ in range(100):
        notices("a", "x")
    notices("b", "x")
    time_s = 11.0
    notices("a", "x")
    assert said == [("a", 1), ("b", 1), ("a", 100)]
