"""The pipeline bench rejects parts that do not exist."""

from __future__ import annotations

from penstock.bench.harness.result import BenchCell, BenchRound
from penstock.bench.pipeline.commands import growth_lines
from penstock.bench.pipeline.spark_loads import ALL, CATCH_UP, ONE_BATCH
from penstock.cli import main


def test_pipeline_refuses_a_part_that_is_none(capsys):
    assert main(["bench", "pipeline", "--only", "source,speed"]) == 1
    shown = capsys.readouterr().err
    assert "there is no part `speed`" in shown and "source, freshness, idle" in shown


def test_the_plot_shows_the_fill_and_a_batch_at_each_size():
    cells = []
    for rows in (100, 1_000):
        cells += [
            BenchCell(f"growth, {rows:,} rows", name, "backfill", "", [BenchRound.timed(rows, rows / 50)])
            for name in ("envelopes", ALL)
        ]
        batch = BenchRound(5, 1.0, 5.0, latency_ms={"p50": 250.0})
        cells.append(BenchCell(f"growth, {rows:,} rows", ONE_BATCH, "foreachBatch", "", [batch]))
    cells.append(BenchCell(CATCH_UP, ALL, "backfill", "", [BenchRound.timed(7, 1.0)]))
    assert growth_lines(cells) == {
        ALL: [(100, 2.0), (1_000, 20.0)],
        "envelopes": [(100, 2.0), (1_000, 20.0)],
        ONE_BATCH: [(100, 0.25), (1_000, 0.25)],
    }
