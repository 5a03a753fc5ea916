"""The table `latest_per_agent`: the newest envelope of each inbox, as in the live view of that name."""

# size: one table, one module

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.lake_tables.expressions import owner_of, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def latest_per_agent(envelopes: DataFrame) -> DataFrame:
    """The newest of these rows of the table `envelopes` for each inbox."""
    return query(_LATEST, envelopes)


_LATEST = f"""
select journal, channel as address, {owner_of("channel")} as agent, newest.* from (
  select journal, channel,
    max_by(struct(offset, seq, id, type, sender, corr, recorded_at, payload), offset) as newest
  from {{rows}} where {owner_of("channel")} is not null group by journal, channel
)
"""
