"""The SQL expressions that several tables share, evaluated by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.lake_tables.expressions import agent_of, date_of, minute_of, ms_between, owner_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_times_are_cut_in_utc_before_and_after_1970(spark: SparkSession) -> None:
    for moment, minute in (("2026-03-01 23:59:59.999999", "23:59"), ("1969-12-31 00:00:30", "00:00")):
        given = f"timestamp '{moment} UTC'"
        [row] = spark.sql(
            f"select cast({date_of(given)} as string), date_format({minute_of(given)}, 'HH:mm:ss')"
        ).collect()
        assert tuple(row) == (moment[:10], f"{minute}:00")


def test_a_duration_is_never_negative_and_unknown_if_a_time_is(spark: SparkSession) -> None:
    first, last = "timestamp '2026-01-01 00:00:00'", "timestamp '2026-01-01 00:00:01.5'"
    spans = [ms_between(first, last), ms_between(last, first), ms_between("cast(null as timestamp)", last)]
    assert tuple(spark.sql(f"select {', '.join(spans)}").collect()[0]) == (1500.0, 0.0, None)


def test_agents_are_found_in_senders_and_inboxes(spark: SparkSession) -> None:
    senders = {"agents/sam": "sam", "agents/sam/inbox": "sam", "sam": "sam", "operator": None, "anonymous": None}
    channels = {"agents/sam/inbox": "sam", "agents/sam": None, "jobs": None}
    columns = [agent_of(f"'{name}'") for name in senders] + [owner_of(f"'{name}'") for name in channels]
    assert list(spark.sql(f"select {', '.join(columns)}").collect()[0]) == [*senders.values(), *channels.values()]
