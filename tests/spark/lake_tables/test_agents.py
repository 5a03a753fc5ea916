"""The last event of each agent, and when agents were active."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.queue.policy import Policy
from penstock.spark.lake.schemas import AGENTS
from penstock.spark.lake_tables.agents import agents, turns
from penstock.spark.lake_tables.expressions import OWN_SENDER, without_own
from tests.spark.journaled import COMMIT_US, Journaled, holder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def picked(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_an_agent_is_known_by_what_it_sends_and_what_it_settles(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bench = Journaled(Policy(max_deliveries=1))
    bench.send("jobs", "1", "agents/kim")
    bench.send("jobs", "2", "kim")
    bench.send("jobs", "3", "lee")
    sam = bench.subscribe("jobs", 1, link=bench.connect(holder("sam")))
    bench.ack(sam, "1")
    hung = bench.subscribe("jobs", 1, lease_ms=1_000, link=bench.connect(holder("hung")))
    bench.advance(1_500)
    assert not hung.leases
    bench.send("agents/ann/inbox", "4")
    bench.term(bench.subscribe("agents/ann/inbox", 1), "4")  # by the operator, which is no agent
    bench.send("agents/bob/inbox", "5")
    unnamed = bench.connect(holder("anonymous"))
    bench.ack(bench.subscribe("agents/bob/inbox", 1, link=unnamed), "5")
    bench.send("jobs", "6", OWN_SENDER)
    bench.send("jobs", "7", "anonymous")
    made = agents(without_own(spark.createDataFrame(bench.events)))
    assert made.schema.simpleString() == from_arrow_schema(AGENTS.schema).simpleString()
    found = {row["agent"]: picked(row, "event", "channel", "offset") for row in made.toArrow().to_pylist()}
    offsets = {(row.event, row.id): row.offset for row in bench.rows if row.channel != "dlq/jobs"}
    assert found == {
        "kim": ("enqueue", "jobs", offsets["enqueue", "2"]),
        "lee": ("enqueue", "jobs", offsets["enqueue", "3"]),
        "sam": ("ack", "jobs", offsets["ack", "1"]),
        "bob": ("ack", "agents/bob/inbox", offsets["ack", "5"]),
    }


def test_an_agents_acts_are_one_turn_until_a_long_pause(spark: SparkSession) -> None:
    bench = Journaled()
    start_us = bench.now.wall_us + COMMIT_US
    for number, pause_ms in enumerate([100, 100, 1_000, 1_001, 10, 10]):
        bench.send("jobs", str(number), "sam")
        bench.send("other", str(number), None if number else "kim")
        bench.advance(pause_ms)
    bench.send("jobs", "last", "sam")
    kept = [tuple(row) for row in turns(spark.createDataFrame(bench.events), 1_000).collect()]
    assert kept == [
        ("sam", start_us, start_us + 1_200_000),
        ("kim", start_us, start_us),
        ("sam", start_us + 2_201_000, start_us + 2_221_000),
    ]
