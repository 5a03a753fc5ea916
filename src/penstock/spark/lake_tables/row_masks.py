"""The conditions of tables on journal rows as Arrow masks: what they say in SQL, for a batch that needs no Spark.

Spark takes longer to plan a query than Arrow takes to answer it for a few hundred rows. A mask is found by the SQL of its condition and
is false where the SQL is null, so both select the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake_tables.deliveries import SETTLED
from penstock.spark.lake_tables.envelopes import INBOXES, SENT
from penstock.spark.lake_tables.expressions import MEW, OUTCOMES, OWN_SENDER, TOUCHED
from penstock.spark.lake_tables.frames import FANNED, FRAMED
from penstock.spark.lake_tables.minutes import TRIGGERED
from penstock.spark.lake_tables.token_streams import PASSED, RELAYED

Mask: TypeAlias = pa.ChunkedArray
"""A boolean for each row."""


def is_one_of(rows: pa.Table, column: str, values: Iterable[str]) -> Mask:
    """Whether a text is one of these; false for null."""
    return pc.is_in(rows.column(column), value_set=pa.array(list(values), pa.string()))


def without_own_rows(rows: pa.Table) -> pa.Table:
    """Leave out the rows of envelopes that the pipeline itself sent."""
    return rows.filter(pc.invert(is_one_of(rows, "sender", [OWN_SENDER])))


def talk_of(rows: pa.Table) -> pa.ChunkedArray:
    """The conversation of each row, as `TOUCHED`; null for none."""
    begins = pc.and_(is_one_of(rows, "event", ["envelope"]), is_one_of(rows, "door", [MEW]))
    return pc.coalesce(rows.column("corr"), pc.if_else(begins, rows.column("id"), None))


def unmet(rows: pa.Table, conditions: Iterable[str]) -> tuple[list[str], list[str]]:
    """The conditions that no row meets, and those that have no mask here."""
    known = [condition for condition in conditions if condition in MASKS]
    return (
        [condition for condition in known if not pc.any(MASKS[condition](rows)).as_py()],
        [condition for condition in conditions if condition not in MASKS],
    )


def meeting(rows: pa.Table, condition: str) -> pa.Table:
    """The rows that meet a condition with a mask."""
    return rows.filter(MASKS[condition](rows))


def _are(rows: pa.Table, door: str | None = None, events: Iterable[str] | None = None) -> Mask:
    masks = [] if door is None else [is_one_of(rows, "door", [door])]
    masks += [] if events is None else [is_one_of(rows, "event", events)]
    return masks[0] if len(masks) == 1 else pc.and_(*masks)


def _are_sent(rows: pa.Table) -> Mask:
    return pc.or_(_are(rows, "courier", ["enqueue"]), _are(rows, MEW, ["envelope"]))


def _are_new_in_inboxes(rows: pa.Table) -> Mask:
    is_inbox = pc.fill_null(pc.match_like(rows.column("channel"), "agents/%/inbox"), False)
    is_moved = is_one_of(rows, "meta", ['{"moved":true}'])
    return pc.and_(pc.and_(_are(rows, events=["enqueue"]), is_inbox), pc.invert(is_moved))


def _all(rows: pa.Table) -> Mask:
    return pc.is_valid(rows.column("offset"))


MASKS: Mapping[str, Callable[[pa.Table], Mask]] = {
    "true": _all,
    SENT: _are_sent,
    SETTLED: partial(_are, events=OUTCOMES),
    FRAMED: partial(_are, door=MEW, events=["frame"]),
    FANNED: partial(_are, door=MEW, events=["frame", "frame_counts"]),
    PASSED: partial(_are, door="streamservice", events=["chunk", "chunk_counts"]),
    RELAYED: partial(_are, door="streamservice"),
    TRIGGERED: partial(_are, door="courier", events=["trigger"]),
    INBOXES: _are_new_in_inboxes,
    f"{TOUCHED} is not null": lambda rows: pc.is_valid(talk_of(rows)),
}
"""By the SQL of the condition."""
