"""Steps: their order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.ipc.pipeline import FILLED_TABLES
from penstock.spark import location
from penstock.spark.lake.schemas import DELIVERIES, ENVELOPES
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake_tables.envelopes import envelope_rows
from penstock.spark.pipeline import steps
from penstock.spark.pipeline.ingest import Ingest
from tests.spark.journal_builder import INGESTED, JournalBuilder
from tests.spark.pipeline.queried import APP


def names(found: list[steps.Step]) -> list[str]:
    return [step.table.name for step in found]


def test_a_step_comes_after_the_tables_that_it_reads() -> None:
    first, *others = names(steps.ordered(steps.built_in()))
    assert first == "queue_minutes", "the console shows it"
    assert others[-1] == "conversations" and {"envelopes", "deliveries"} <= set(others)
    chain = [
        steps.Step(one, lambda batch: batch.events, after)
        for one, after in ((ENVELOPES, ("deliveries",)), (DELIVERIES, ()))
    ]
    assert names(steps.ordered(chain)) == ["deliveries", "envelopes"]
    assert steps.ordered([]) == []


def test_a_step_that_reads_a_table_without_a_step_is_refused() -> None:
    conversations = [step for step in steps.built_in() if step.after]
    with pytest.raises(steps.StepError, match="`conversations` reads a table that no step writes"):
        steps.ordered(conversations)


def test_some_steps_are_taken_in_the_given_order_without_their_sources() -> None:
    chosen = steps.only(steps.built_in(), ["conversations", "frames"])
    assert names(chosen) == ["conversations", "frames"] and chosen[0].after == ()
    with pytest.raises(steps.StepError, match="there is no table `alerts`"):
        steps.only(steps.built_in(), ["frames", "alerts"])


def test_every_built_in_table_of_the_queue_has_one_step() -> None:
    made = [step.table.name for step in steps.built_in()]
    assert sorted(made) == sorted(set(INGESTED) - {"gaps"})


def test_the_progress_of_a_pipeline_that_is_down_counts_every_built_in_table() -> None:
    assert set(FILLED_TABLES) == {step.table.name for step in steps.built_in()} | {"agents", "alerts"}


def test_a_retention_needs_a_table_whose_rows_have_a_time() -> None:
    timeless = replace(ENVELOPES, name="own", schema=pa.schema({"journal": pa.string()}), partition_by=())
    every = [*steps.built_in(), steps.Step(timeless, lambda batch: batch.events)]
    steps.check_retention(every, list(FILLED_TABLES))
    with pytest.raises(steps.StepError, match="has no table `mine`") as caught:
        steps.check_retention(every, ["mine"])
    assert "queue_minutes" in (caught.value.hint or "")
    with pytest.raises(steps.StepError, match="`own` have no time"):
        steps.check_retention(every, ["own"])


@pytest.mark.promise(
    "Spark: pipeline", "payloads with a schema are tables with its columns, which evolve by its versions"
)
def test_typed_payloads_follow_the_envelopes_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of any size, never ahead of the table that they are read from, and without a JVM."""
    schemas, data = tmp_path / "schemas" / "shop", tmp_path / "data"
    schemas.mkdir(parents=True)
    (schemas / "order@v1.json").write_text('{"properties": {"n": {"type": "integer"}}}')
    story = JournalBuilder(data)
    for number in range(12):
        schema = {"schema": "shop/order@v1.2"} if number % 3 else {}
        story.send("orders", f"o-{number}", "ann", payload={"n": number}, **schema)
    story.close()
    journal = location.open_one(data)
    table = LakeTable(data / "lake", ENVELOPES)
    made = steps.only([*steps.built_in(), *steps.typed(tmp_path / "schemas")], ["types_shop_order_v1"])
    monkeypatch.setattr("penstock.spark.pipeline.ingest.CHUNK_ROWS", 5)
    for end in (7, journal.bounds().end):
        first = table.progress(APP) or 0
        rows = pa.Table.from_batches(map(envelope_rows, journal.batches(first, end)))
        table.append(rows, {APP: Progress(first, end)})
        ingest = Ingest(cast("Any", None), journal, data / "lake", made)
        ingest.backfill()
        ingest.close()
        assert ingest.table("types_shop_order_v1").progress(APP) == end
    found = ingest.table("types_shop_order_v1").rows(["offset", "n"]).to_pylist()
    assert sorted(row["n"] for row in found) == [number for number in range(12) if number % 3]
