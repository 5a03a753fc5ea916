"""What a small batch computes without Spark is, in every cell, what Spark's SQL computes: on random rows, nulls and odd names included."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.spark.lake_tables.conversations import conversations, talks_of
from penstock.spark.lake_tables.deliveries import SETTLED, deliveries, settled_rows
from penstock.spark.lake_tables.envelopes import (
    INBOXES,
    SENT,
    agents,
    envelopes,
    latest,
    latest_per_agent,
    newest_acts,
    newest_in_inboxes,
    sent_rows,
)
from penstock.spark.lake_tables.expressions import TOUCHED, agent_named, agent_of, owner_named, owner_of, without_own
from penstock.spark.lake_tables.row_masks import MASKS, meeting, talk_of, unmet, without_own_rows
from penstock.spark.pipeline import steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_500
START_US = 1_700_000_000_000_000
SENDERS = (
    "ann", "agents/ann", "agents/bob/inbox", "agents/bob", "agents//x", "agents/a/b/c", "anonymous", "nobody", "operator",
    "pipeline/penstock", "pipeline/other", "", None,
)  # fmt: skip
CHANNELS = (
    "jobs", "agents/ann/inbox", "agents/bob/inbox", "agents/a/b/inbox", "agents//inbox", "agents/ann/inbox/x", "dlq/jobs",
    "dlq/agents/ann/inbox", "demo", "demo/stream-1", "",
)  # fmt: skip
DOORS = ("courier", "courier", "courier", "mew", "streamservice", "server")
EVENTS = (
    "enqueue", "enqueue", "enqueue", "ack", "nack", "dead", "drop", "purge", "move", "trigger", "gauge", "envelope", "frame",
    "frame_counts", "chunk", "chunk_counts", "register", "tick",
)  # fmt: skip
BODIES = (
    None, b"", b"{", b'{"payload":1}', b'{"payload":{"a":"\\u00e9"},"refs":["e-1","e-2"],"tags":["t"],"headers":{"h":"1","n":2}}',
    b'{"to":"x","ts":"2026-01-01T00:00:00Z","payload":null,"schema":"s@v1","more":[1]}', b'{"to":["a","b"],"kind":"chat"}', b"\xff",
)  # fmt: skip


def traffic(seed: int) -> pa.Table:
    """Rows of two journals whose values have nothing to do with one another, in order."""
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = []
    at_us, ends = START_US, {"a" * 32: 0, "b" * 32: 0}
    for number in range(ROWS):
        journal = chance.choice(list(ends))
        at_us += chance.choice((0, 1, 999, 40_000_000))
        door, event = chance.choice(DOORS), chance.choice(EVENTS)
        moments = [None, at_us, at_us - 1_500, at_us + 7, at_us - 3_600_000_000]
        rows.append(
            {
                "journal": journal,
                "shard": 0,
                "epoch": 1,
                "offset": ends[journal],
                "recorded_at": at_us,
                "door": door,
                "event": "enqueue" if door == "courier" and chance.random() < 0.3 else event,
                "channel": chance.choice(CHANNELS),
                "seq": number // 3,
                "id": chance.choice([f"e-{number}", f"e-{number // 2}"]),
                "kind": chance.choice(["task", "note", None]),
                "sender": chance.choice(SENDERS),
                "peer": chance.choice(SENDERS),
                "corr": chance.choice([None, "talk", f"talk-{number // 40}", f"e-{number // 2}"]),
                "attempt": chance.choice([None, 1, 2]),
                "bytes": chance.choice([None, 0, 300]),
                "recipients": chance.choice([None, 3]),
                "reason": chance.choice([None, "term", "expired", "fired"]),
                "ref_offset": None,
                "ref_at": chance.choice(moments),
                "first_at": chance.choice(moments),
                "meta": chance.choice([None, '{"moved":true}', '{"moved":false}', "{}"]),
                "body": chance.choice(BODIES),
            }
        )
        ends[journal] += 1
    return pa.Table.from_pylist(rows, FILE_SCHEMA)


def cells(rows: pa.Table | DataFrame, key: Sequence[str]) -> list[dict[str, Any]]:
    """Rows as plain values in the order of a key."""
    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
    return sorted(table.to_pylist(), key=lambda row: [(row[name] is None, row[name]) for name in key])


@pytest.fixture(scope="module", params=[1, 2])
def rows(request: pytest.FixtureRequest) -> pa.Table:
    return traffic(request.param)


@pytest.fixture(scope="module")
def events(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows)


def test_every_condition_of_a_built_in_table_has_a_mask() -> None:
    assert {step.when for step in steps.built_in()} <= MASKS.keys()


def test_masks_select_the_rows_of_their_sql(events: DataFrame, rows: pa.Table) -> None:
    places = [f"coalesce({condition}, false) as c{number}" for number, condition in enumerate(MASKS)]
    found = events.selectExpr(*places).toArrow()
    for number, condition in enumerate(MASKS):
        mask = MASKS[condition](rows).to_pylist()
        assert mask == found.column(number).to_pylist(), condition
        assert any(mask) and (condition == "true" or not all(mask))


def test_unmet_conditions_are_named_and_unknown_ones_left_to_spark(rows: pa.Table) -> None:
    few = meeting(rows, SETTLED)
    assert unmet(few, [SETTLED, SENT, "attempt > 1", INBOXES]) == ([SENT, INBOXES], ["attempt > 1"])
    assert unmet(few.slice(0, 0), ["true"]) == (["true"], [])


def test_own_rows_and_conversations_are_those_of_sql(events: DataFrame, rows: pa.Table) -> None:
    assert cells(without_own_rows(rows), ["journal", "offset"]) == cells(without_own(events), ["journal", "offset"])
    assert talk_of(rows).to_pylist() == events.selectExpr(f"{TOUCHED} as talk").toArrow().column(0).to_pylist()


def test_agents_and_owners_are_those_of_sql(spark: SparkSession) -> None:
    names = [*SENDERS, *CHANNELS, "agents/", "agents/x/inbox/", "xagents/ann/inbox", "agents/ann/inboxes"]
    given = spark.createDataFrame(pa.table({"name": pa.array(names)}))
    found = given.selectExpr(f"{agent_of('name')} as agent", f"{owner_of('name')} as owner").toArrow()
    assert [agent_named(name) for name in names] == found.column(0).to_pylist()
    assert [owner_named(name) for name in names] == found.column(1).to_pylist()


@pytest.mark.promise(
    "Spark: pipeline", "what the driver computes for a small batch is, in every cell, what Spark computes"
)
def test_envelopes_and_deliveries_are_those_of_spark(events: DataFrame, rows: pa.Table) -> None:
    key = ["journal", "offset"]
    sent = sent_rows(meeting(rows, SENT))
    assert sent.num_rows > ROWS // 10 and cells(sent, key) == cells(envelopes(events), key)
    ended = settled_rows(meeting(rows, SETTLED))
    assert ended.num_rows > ROWS // 20 and cells(ended, key) == cells(deliveries(events), key)


def test_the_newest_envelopes_of_inboxes_are_those_of_spark(events: DataFrame, rows: pa.Table) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    key = ["journal", "address"]
    newest = newest_in_inboxes(meeting(rows, INBOXES))
    made = latest(events).mapInArrow(latest_per_agent, from_arrow_schema(newest.schema))
    assert newest.num_rows == 4 and cells(newest, key) == cells(made, key)


def test_the_last_acts_of_agents_are_those_of_spark(events: DataFrame, rows: pa.Table) -> None:
    newest = newest_acts(rows, "c")
    assert newest.num_rows > 4 and cells(newest, ["agent"]) == cells(agents(events, "c"), ["agent"])


@pytest.mark.promise(
    "Spark: pipeline", "what the driver computes for a small batch is, in every cell, what Spark computes"
)
def test_conversations_are_those_of_spark(spark: SparkSession, rows: pa.Table) -> None:
    sent, ended = sent_rows(meeting(rows, SENT)), settled_rows(meeting(rows, SETTLED))
    made = cells(conversations(spark.createDataFrame(sent), spark.createDataFrame(ended), "c"), ["corr"])
    talks = {row["corr"] for row in made}
    assert len(talks) > 30 and cells(talks_of(sent, ended, "c", talks), ["corr"]) == made
    some = set(sorted(talks)[:7])
    assert cells(talks_of(sent, ended, "c", some), ["corr"]) == [row for row in made if row["corr"] in some]
