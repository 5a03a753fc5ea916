"""The counters that loads share, and percentiles."""

from __future__ import annotations

import pytest

from penstock.bench.harness.load import UNKNOWN, Board, percentiles_ms


def test_board_is_shared(tmp_path):
    path = tmp_path / "board"
    Board.create(path)
    one, other = Board(path), Board(path)
    assert (other.acked, other.total) == (0, UNKNOWN)
    one.acked, one.total = 5, 9
    assert (other.acked, other.total) == (5, 9)


@pytest.mark.promise("The document's testing strategy", "Load: synthetic producers and consumers, latency percentiles")
def test_percentiles_are_nearest_ranks():
    values = [number * 1_000_000 for number in range(1, 101)]
    assert percentiles_ms(values) == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert percentiles_ms([]) == {}
