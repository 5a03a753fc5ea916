"""Steps: their order."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.ipc.pipeline import FILLED_TABLES
from penstock.spark.lake.schemas import DELIVERIES, ENVELOPES
from penstock.spark.pipeline import steps
from tests.spark.journal_builder import (
    INGESTED,
)


def names(rounds: list[list[steps.Step]]) -> list[list[str]]:
    return [[step.table.name for step in one] for one in rounds]


def test_a_step_runs_in_a_round_after_the_tables_that_it_reads() -> None:
    first, second = names(steps.ordered(steps.built_in()))
    assert second == ["conversations"] and {"envelopes", "deliveries"} <= set(first)
    assert first[0] == "queue_minutes", "the console shows it"
    chain = [
        steps.Step(one, lambda batch: batch.events, after)
        for one, after in ((ENVELOPES, ("deliveries",)), (DELIVERIES, ()))
    ]
    assert names(steps.ordered(chain)) == [["deliveries"], ["envelopes"]]
    assert steps.ordered([]) == []


def test_a_step_that_reads_a_table_without_a_step_is_refused() -> None:
    conversations = [step for step in steps.built_in() if step.after]
    with pytest.raises(steps.StepError, match="`conversations` reads a table that no step writes"):
        steps.ordered(conversations)


def test_some_steps_are_taken_in_the_given_order_without_their_sources() -> None:
    chosen = steps.only(steps.built_in(), ["conversations", "frames"])
    assert names([chosen]) == [["conversations", "frames"]] and chosen[0].after == ()
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
