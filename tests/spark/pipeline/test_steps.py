"""Steps: their order, and tables of users that cannot be built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.ipc.pipeline import FILLED_TABLES
from penstock.spark.lake.schemas import DELIVERIES, ENVELOPES
from penstock.spark.pipeline import steps
from tests.spark.journal_builder import (
    INGESTED,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_users_table_that_cannot_be_made_says_what_to_change(spark: SparkSession, tmp_path: Path) -> None:
    cases = {
        "absent.py": (None, "does not exist"),
        "empty.py": ("", "marks no function"),
        "clash.py": ("import penstock.spark as p\n@p.table()\ndef events(e): return e", "is built in"),
        "keyless.py": (
            "import penstock.spark as p\n@p.table(key=['journal', 'who'])\ndef mine(e): return e",
            "no column `who`",
        ),
    }
    for name, (text, said) in cases.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(steps.StepError, match=said):
            steps.load(spark, [tmp_path / name])


def test_users_tables_that_clash_or_do_not_load_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    mark = "import penstock.spark as p\n@p.table()\ndef {}(e): return e"
    for texts, said in (
        ([mark.format("_hidden")], "cannot be a table's name"),
        (["import no_such_module_anywhere"], "line 1, cannot be loaded: ModuleNotFoundError"),
        (
            [mark.format("early").replace("return e", "\n    raise KeyError('x')")],
            r"`early` of .*file0.py`, line 4: KeyError: 'x'",
        ),
        (
            [mark.format("absent").replace("return e", "return None")],
            r"`absent` of .*file0.py`, line 2: AttributeError",
        ),
        ([mark.format("errors"), mark.format("errors")], r"file1.*there is already a table `errors`"),
    ):
        files = [tmp_path / f"file{number}.py" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        with pytest.raises(steps.StepError, match=said):
            steps.load(spark, files)


# Without a JVM


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


def test_a_mark_keeps_the_function_and_says_how_rows_are_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from penstock.spark import table\n"
        "@table()\ndef plain(events): return events\n"
        "@table('renamed', key=['journal', 'who'], window='minute')\ndef counted(events): return events\n"
        "@table(newest='offset')\ndef latest(events): return events\n"
        "assert plain(1) == 1, 'the function is still a function'\n"
    )
    assert [(one.name, one.write, one.key) for one in steps._marks(file)] == [
        ("plain", "append", ("journal", "offset")),
        ("renamed", "merge", ("journal", "who")),
        ("latest", "merge", ("journal", "offset")),
    ]


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
