"""The pipeline bench rejects parts that do not exist."""

from __future__ import annotations

from penstock.cli import main


def test_pipeline_refuses_a_part_that_is_none(capsys):
    assert main(["bench", "pipeline", "--only", "source,speed"]) == 1
    shown = capsys.readouterr().err
    assert "there is no part `speed`" in shown and "source, freshness, idle" in shown
