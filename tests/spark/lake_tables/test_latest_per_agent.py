"""The newest envelope of each inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.spark.lake.schemas import LATEST_PER_AGENT
from penstock.spark.lake_tables.envelopes import INBOXES, envelopes, latest_per_agent
from tests.spark.journaled import Journaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def picked(row: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


@pytest.mark.promise("Spark: pipeline", "`latest_per_agent` has the newest envelope of each inbox")
def test_the_newest_of_each_inbox_is_what_the_live_view_shows(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    bench = Journaled()
    for number, to in enumerate(["agents/sam/inbox", "agents/kim/inbox", "agents/sam/inbox", "jobs"]):
        bench.send(to, f"e{number}", "lee", corr="c")
    for to in ("agents/sam/inbox/more", "agents//inbox", "x/agents/sam/inbox", "agents/sam/outbox"):
        bench.send(to, "elsewhere")
    kim = bench.subscribe("agents/kim/inbox", 1)
    bench.term(kim, "e1")  # its letter is in the dead letters, and no newer envelope of the inbox
    bench.send("agents/kim/inbox", "e4", "lee")
    bench.machine.redrive(bench.now, "agents/kim/inbox", 1)  # nor is it one when it is back
    bench.apply()
    bench.commit()
    rows = spark.createDataFrame(bench.events).repartition(2).where(INBOXES)
    made = latest_per_agent(envelopes(rows))
    assert made.schema.simpleString() == from_arrow_schema(LATEST_PER_AGENT.schema).simpleString()
    found = {row["address"]: row for row in made.toArrow().to_pylist()}
    assert {address: picked(row, "agent", "id", "seq", "sender") for address, row in found.items()} == {
        "agents/sam/inbox": ("sam", "e2", 2, "lee"),
        "agents/kim/inbox": ("kim", "e4", 2, "lee"),
    }
    live = bench.machine.views.latest.rows
    assert {address: msgspec.json.decode(row.data)["id"] for address, row in live.items()} == {
        address: row["id"] for address, row in found.items()
    }
    assert picked(found["agents/sam/inbox"], "offset", "payload", "corr") == (2, '{"n":"e2"}', "c")
