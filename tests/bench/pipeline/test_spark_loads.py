"""Tables that grow: each size reports its fill and its batches, and the catch-up comes last."""

from __future__ import annotations

import json

import pytest

from penstock.bench.pipeline.spark_loads import ALL, BATCHES, CATCH_UP, ONE_BATCH
from penstock.cli import main


@pytest.mark.more
def test_growth_reports_every_size_and_the_catch_up(capsys):
    assert main(["bench", "pipeline", "--only", "growth", "--sizes", "600,1800", "--master", "local[1]", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    found = {(cell["workload"], cell["target"]): cell["rounds"][0] for cell in cells}
    for size in ("600", "1,800"):
        whole = found[f"growth, {size} rows", ALL]
        assert whole["files"] >= 8 and whole["millionS"] > 0 and whole["serverRssMib"] > 0
        assert found[f"growth, {size} rows", ONE_BATCH]["count"] == BATCHES
    assert found[CATCH_UP, ALL]["count"] >= 1_800
