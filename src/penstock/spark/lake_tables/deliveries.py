"""The table `deliveries`: one row for each settled record, with how long it waited and how long the work took."""
# size: one table, one module

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.lake_tables.expressions import OUTCOMES, TOTAL_MS, WAIT_MS, date_of, ms_between

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SETTLED = f"event in {tuple(OUTCOMES)}"
"""Rows that settle a record, as SQL."""


def deliveries(events: DataFrame) -> DataFrame:
    """One row for each settled record.

    `wait_ms` is from the enqueue to the first delivery, `work_ms` from there to the settle, `total_ms` the sum. The first two are
    null for a record that was never delivered. If the clock was set back in between, the time is 0.
    """
    return events.where(f"door <=> 'courier' and {SETTLED}").selectExpr(*_DELIVERY)


_CASES = " ".join(f"when '{event}' then '{outcome}'" for event, outcome in OUTCOMES.items())
_DELIVERY = (
    "journal", "offset", f"{date_of('recorded_at')} as date", "channel", "seq", "id", "kind as type", "sender", "peer as holder", "corr",
    "ref_at as enqueued_at", "first_at as first_delivered_at", "recorded_at as settled_at", "attempt as attempts",
    f"{WAIT_MS} as wait_ms", f"{ms_between('first_at', 'recorded_at')} as work_ms", f"{TOTAL_MS} as total_ms",
    f"case event {_CASES} end as outcome", "reason",
)  # fmt: skip
