"""Which minutes new rows can change, and when a minute is final."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark import location
from penstock.spark.lake.schemas import TRIGGER_MINUTES
from penstock.spark.lake_tables.expressions import OWN_SENDER, without_own
from penstock.spark.lake_tables.minutes import (
    GRACE_US,
    MINUTE_US,
    TRIGGERED,
    floor_minute,
    from_us,
    is_final,
    reach_us,
    trigger_minutes,
)
from penstock.spark.pipeline.batch import JournalBatch
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.steps import Step, built_in
from tests.spark.journal_builder import JournalBuilder, rule
from tests.spark.journaled import MINUTE_0, Journaled, events_of
from tests.spark.pipeline.queried import batch_between

times = st.integers(MINUTE_0, MINUTE_0 + 20 * MINUTE_US)


@given(last_us=times, later_us=times, back_us=st.integers(0, MINUTE_US + GRACE_US - 1))
def test_no_row_changes_a_minute_before_the_reach_nor_a_final_one(last_us: int, later_us: int, back_us: int) -> None:
    """A row counts for its own minute or, as a gauge, for one that ended less than the grace before it."""
    at_us = max(last_us, later_us)
    for minute_us in (floor_minute(at_us), floor_minute(at_us - back_us)):
        if at_us < minute_us + MINUTE_US + GRACE_US:
            assert minute_us >= reach_us(last_us)
            assert not is_final(minute_us, last_us) or at_us == last_us


@given(last_us=times)
def test_the_reach_covers_every_minute_that_is_not_final_and_not_many_more(last_us: int) -> None:
    reach = reach_us(last_us)
    assert reach % MINUTE_US == 0
    assert is_final(reach - MINUTE_US, last_us)
    assert last_us - reach < 2 * MINUTE_US + GRACE_US


if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


COPY = {
    "id": "copy",
    "when": {"to": "jobs/*"},
    "do": [{"action": "route", "to": "copies"}, {"action": "notify", "to": "told"}],
    "limits": {"cooldownMs": 5_000},
}
HALF = {
    "id": "half",
    "when": {"to": "jobs/*"},
    "strict": True,
    "do": [
        {"action": "emit", "to": "told", "type": "x", "payload": "${env.payload.absent}"},
        {"action": "notify", "to": "told"},
    ],
}
SUMMARY = {
    "id": "summary",
    "hook": "on_ack",
    "when": {"to": "jobs/*"},
    "do": [{"action": "notify", "to": "told"}],
    "limits": {"cooldownMs": 5_000, "trailing": True},
}


@pytest.mark.promise(
    "Spark: pipeline",
    "`trigger_minutes` counts each firing; batches without one close its minute at no other cost",
)
def test_a_minute_holds_what_each_trigger_did_in_it(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bench = Journaled()
    rule(bench, COPY, HALF, SUMMARY)
    bench.send("jobs/a", "1", "kim")
    bench.send("jobs/b", "own", OWN_SENDER)
    bench.send("jobs/b", "2", "kim")  # both copies are suppressed, which is reported when the cooldown ends
    bench.ack(bench.subscribe("jobs/b", 2), "own", "2")  # the second ack is in the summary
    bench.wait(50)
    rule(bench, COPY | {"hook": "on_ack"}, HALF)
    bench.ack(bench.subscribe("jobs/a", 1), "1")
    bench.wait(10)
    until = {"": bench.now.wall_us}
    events = without_own(spark.createDataFrame(events_of(bench.rows)))
    made = trigger_minutes(events, until)
    assert made.schema.simpleString() == from_arrow_schema(TRIGGER_MINUTES.schema).simpleString()
    found = {}
    for row in made.toArrow().to_pylist():
        minute = (int(row["minute"].timestamp()) * 1_000_000 - MINUTE_0) // MINUTE_US
        assert row["date"] == row["minute"].date()
        named = ("hook", "fired", "failed", "suppressed", "sent", "streams", "final")
        found[row["trigger"], minute] = tuple(row[name] for name in named)
    assert found == {
        ("copy", 0): ("on_insert", 1, 0, 2, 2, 2, True),
        ("half", 0): ("on_insert", 0, 2, 0, 2, 2, True),
        ("summary", 0): ("on_ack", 1, 0, 1, 1, 1, True),
        ("copy", 1): ("on_ack", 1, 0, 0, 2, 1, False),
    }


@dataclass
class Made:
    """What Spark hands back."""

    rows: pa.Table

    def toArrow(self) -> pa.Table:
        return self.rows


def counted(part: JournalBatch) -> pa.Table:
    """The rows of the table for a stretch, counted without Spark."""
    [(one, rows_of)] = part.ranges.items()
    first, since_us = rows_of.reach
    names = ["recorded_at", "event", "peer"]
    batches = rows_of.journal.batches(first, rows_of.end, names)
    found: dict[tuple[int, str], int] = {}
    for row in pa.Table.from_batches(batches).cast(_PLAIN).to_pylist():
        minute_us = floor_minute(row["recorded_at"])
        if row["event"] == "trigger" and minute_us >= floor_minute(since_us):
            found[minute_us, row["peer"]] = found.get((minute_us, row["peer"]), 0) + 1
    rows = [
        {
            "journal": one,
            "date": from_us(minute_us).date(),
            "minute": minute_us,
            "trigger": rule,
            "fired": count,
            "final": is_final(minute_us, rows_of.until_us),
        }
        for (minute_us, rule), count in found.items()
    ]
    return pa.Table.from_pylist(rows, TRIGGER_MINUTES.schema)


_PLAIN = pa.schema([("recorded_at", pa.int64()), ("event", pa.string()), ("peer", pa.string())])


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trigger that acts now and then, in a queue that has other things to do meanwhile."""
    data = tmp_path_factory.mktemp("quiet")
    story = JournalBuilder(data)
    rule(story, {"id": "copy", "when": {"to": "jobs"}, "do": COPY["do"]})
    for number, wait_s in enumerate((5, 50, 20, 100, 200)):
        story.send("jobs", f"job-{number}", "ann")
        story.wait(wait_s / 2)
        story.send("other", f"other-{number}", "ann")
        story.wait(wait_s / 2)
    for number in range(10):
        story.send("other", f"more-{number}", "ann")
    story.close()
    return data


def brought(data: Path, lake: Path, cuts: Sequence[int]) -> tuple[list[dict[str, Any]], list[int]]:
    """The table after batches that end at these rows, and the batches for which rows were asked for."""
    journal = location.open_one(data)
    asked = []

    def rows(part: JournalBatch) -> DataFrame:
        asked.extend(part.ends.values())
        return cast("DataFrame", Made(counted(part)))

    [shipped] = [step for step in built_in() if step.table is TRIGGER_MINUTES]
    step = Step(TRIGGER_MINUTES, rows, when=shipped.when, by_minute=shipped.by_minute)
    ingest = Ingest(cast("SparkSession", None), journal, lake, [step])
    first = 0
    for end in cuts:
        events = pa.Table.from_batches(journal.batches(first, end, ["event"])).column("event").to_pylist()
        unmet = () if "trigger" in events else (TRIGGERED,)
        ingest.advance(batch_between(ingest, first, end, unmet))
        first = end
    ingest.close()
    found = ingest.table("trigger_minutes").rows().to_pylist()
    return sorted(found, key=lambda row: row["minute"]), asked


@pytest.mark.promise(
    "Spark: pipeline",
    "`trigger_minutes` counts each firing; batches without one close its minute at no other cost",
)
@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_batch_without_firings_closes_the_minutes_of_earlier_ones_and_asks_no_more(
    quiet: Path, tmp_path: Path, size: int
) -> None:
    end = location.open_one(quiet).bounds().end
    whole, _ = brought(quiet, tmp_path / "whole", [end])
    assert [(row["fired"], row["final"]) for row in whole] == [(2, True), (2, True), (1, True)]
    made, asked = brought(quiet, tmp_path / "cut", [*range(size, end, size), end])
    assert made == whole
    assert asked == [last for first, last in pairwise([*range(0, end, size), end]) if is_needed(quiet, first, last)]
    assert max(asked) < end


def is_needed(data: Path, first: int, end: int) -> bool:
    """Whether a batch has a firing, or comes after one whose minute was not closed before."""
    journal = location.open_one(data)
    rows = pa.Table.from_batches(journal.batches(0, end, list(_PLAIN.names))).cast(_PLAIN).to_pylist()
    since_us = reach_us(rows[first - 1]["recorded_at"]) if first else 0
    fired = [place for place, row in enumerate(rows) if row["event"] == "trigger"]
    return any(place >= first or rows[place]["recorded_at"] >= since_us for place in fired)
