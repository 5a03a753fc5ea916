"""The journal bench accounts for every record."""

from __future__ import annotations

import pytest


@pytest.mark.more
@pytest.mark.promise("Benchmarks and robustness", "`penstock bench journal` compares with SQLite")
def test_journal_cells_are_accounted_for_beside_sqlite(bench):
    found = bench("journal", "--rounds", "1", "--count", "600", "--commit", "100", "--live", "300")
    cells = [(cell["workload"], cell["target"], cell["rounds"][0]["count"]) for cell in found["cells"]]
    words = "100 records a commit, synced"
    assert cells == [
        (f"append, {words}", "penstock", 600),
        (f"append, {words}", "sqlite", 600),
        (f"read back, {words}", "penstock", 600),
        (f"read back, {words}", "penstock, sealed", 600),
        (f"read back, {words}", "sqlite", 600),
        ("recover, 300 live records", "penstock", 300),
    ]
    assert found["cells"][1]["ratio"] > 0
