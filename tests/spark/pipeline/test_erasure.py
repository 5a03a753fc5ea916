"""Erasure and Spark: tables from which rows were erased equal tables that are built from the erased journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.spark import location
from penstock.spark.lake.erasure import Erasure
from penstock.spark.pipeline import steps
from penstock.spark.pipeline.erasure import COMBINED, recompute
from penstock.spark.pipeline.ingest import Ingest
from tests.spark.journal_builder import JournalBuilder, content
from tests.spark.journaled import JOURNAL
from tests.spark.pipeline.queried import erase, ingest_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBJECTS = {
    "word": {"id": {"word-1", "job-0"}},
    "talk": {"corr": {"talk-0-1"}},
    "space": {"corr": {"req-0"}},
    "sam": {"agent": {"sam"}},
    "ann": {"agent": {"ann"}},
}


def seal(data: Path) -> None:
    story = JournalBuilder(data)
    story.wait(60)  # a row, in a new segment
    story.seal()
    story.close()


def test_counts_of_a_former_journal_are_left(data: Path) -> None:
    ingest = ingest_of(None, data, only=set())
    assert recompute(ingest, Erasure(doomed={JOURNAL: {1}, "former": set()})) == []
    assert recompute(ingest, Erasure(doomed={JOURNAL: {1}, "former": {2}})) == [*COMBINED]
    ingest.close()


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "tables after an erasure equal tables that are built from the erased journal")
def test_tables_after_an_erasure_equal_those_built_from_the_erased_journal(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    seal(data)
    ingest = ingest_of(spark, data)
    ingest.backfill()
    ends = {step.table.name: ingest.group.stored(ingest.table(step.table.name)) for step in ingest.steps}
    before = content(data / "lake")
    for name, subject in SUBJECTS.items():
        assert erase(ingest, data, subject).doomed[JOURNAL], name
        anew = Ingest(spark, location.open_one(data), tmp_path / name, steps.built_in())
        anew.backfill()
        assert content(data / "lake") == content(tmp_path / name), name
        assert content(data / "lake") != before, name
        before = content(data / "lake")
        anew.close()
    assert {name: ingest.group.stored(ingest.table(name)) for name in ends} == ends, "progress stays"
    ingest.close()
