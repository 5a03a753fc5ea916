"""The table `agents`: the last thing each agent did, by which the silence rule finds agents that stopped."""

# size: one table, one module

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.lake_tables.expressions import agent_of, owner_of, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def agents(events: DataFrame) -> DataFrame:
    """The newest row of each agent: what it sent or settled last."""
    return query(_AGENTS, acts(events))


_AGENTS = """
select journal, agent, newest.* from (
  select journal, agent, max_by(struct(offset, recorded_at as last_at, event, channel), offset) as newest
  from {rows} group by journal, agent
)
"""


def acts(events: DataFrame) -> DataFrame:
    """Rows in which an agent sent or settled something, with its name as `agent`.

    The name of a settler is that of its token. Without tokens, the owner of an inbox is taken as the settler of its records.
    """
    acted = events.where("door = 'courier' and not (channel like 'dlq/%' and event = 'enqueue')")
    return acted.selectExpr("*", f"{_AGENT} as agent").where("agent is not null")


# Not `dead` by too many attempts: the holder may hang, and must not count as active.
_SETTLES = "(event in ('ack', 'nack') or (event = 'dead' and reason = 'term'))"
_AGENT = f"""case when event = 'enqueue' then {agent_of("sender")}
  when {_SETTLES} and peer = 'anonymous' then {owner_of("channel")}
  when {_SETTLES} then {agent_of("peer")} end"""


def turns(events: DataFrame, pause_ms: int) -> DataFrame:
    """When agents were active, as (agent, from, to) in microseconds, in order; pauses up to `pause_ms` are bridged."""
    return query(_TURNS, acts(events), pause_us=pause_ms * 1000)


_TURNS = """
with moments as (
  select agent, offset, unix_micros(recorded_at) as at_us,
    unix_micros(recorded_at) - lag(unix_micros(recorded_at)) over (partition by agent order by offset) as paused_us
  from {rows}
), numbered as (
  select *, sum(if(paused_us is null or paused_us > :pause_us, 1, 0)) over (partition by agent order by offset) as turn
  from moments
)
select agent, min(at_us) as from_us, max(at_us) as to_us from numbered group by agent, turn order by min(offset)
"""
