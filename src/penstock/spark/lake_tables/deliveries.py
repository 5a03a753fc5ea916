"""The table `deliveries`: one row for each settled record, with how long it waited and how long the work took."""
# size: one table, one module

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.schemas import DELIVERIES
from penstock.spark.lake_tables.expressions import OUTCOMES, TOTAL_MS, WAIT_MS, date_of, dates, ms_between, passed_ms

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


def settled_rows(rows: pa.Table) -> pa.Table:
    """The same rows of the table, from journal rows in memory."""
    is_settled = pc.is_in(rows.column("event"), value_set=pa.array(list(OUTCOMES)))
    rows = rows.filter(pc.and_(is_settled, pc.equal(rows.column("door"), "courier")))
    outcomes = [OUTCOMES[event] for event in rows.column("event").to_pylist()]
    made = {
        "date": dates(rows.column("recorded_at")),
        "type": rows.column("kind"),
        "holder": rows.column("peer"),
        "enqueued_at": rows.column("ref_at"),
        "first_delivered_at": rows.column("first_at"),
        "settled_at": rows.column("recorded_at"),
        "attempts": rows.column("attempt"),
        "wait_ms": passed_ms(rows.column("ref_at"), rows.column("first_at")),
        "work_ms": passed_ms(rows.column("first_at"), rows.column("recorded_at")),
        "total_ms": passed_ms(rows.column("ref_at"), rows.column("recorded_at")),
        "outcome": pa.array(outcomes, pa.string()),
    }
    columns = [made[name] if name in made else rows.column(name) for name in DELIVERIES.schema.names]
    return pa.table(columns, schema=DELIVERIES.schema)
