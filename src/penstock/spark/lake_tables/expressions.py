"""SQL expressions that several tables share: times, agents and the parties of an envelope.

Expressions are SQL text because a batch runs every second: building the same plan from Python costs one call into the JVM for each
word. Times and dates are computed in UTC whatever the time zone of the session is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.scopes import PIPELINE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWN_SENDER = PIPELINE
"""The sender of the pipeline's own envelopes. They are excluded from its input, otherwise alerts would trigger alerts."""
DEAD_PREFIX = "dlq/"
"""Streams of dead letters."""
OUTCOMES = {"ack": "acked", "dead": "dead", "drop": "dropped", "purge": "purged"}
"""Events that settle a record, and the outcome of each. A `move` settles nothing: the record continues in another stream."""
UNNAMED_PEERS = ("anonymous", "nobody", "operator")
"""Names of senders and holders that are not agents."""
MEW = "mew"
"""The door of spaces."""
BEGUN = "if(door = 'mew', id, null)"
"""The conversation that an envelope without a `corr` begins: in a space, answers name the id of what they answer."""
TOUCHED = f"coalesce(corr, if(event = 'envelope', {BEGUN}, null))"
"""The conversation that a journal row belongs to."""

_DAY_US = 86_400_000_000
_MINUTE_US = 60_000_000
_AGENT = "^agents/([^/]+)(/.*)?$"
_INBOX = "^agents/([^/]+)/inbox$"


def query(text: str, rows: DataFrame, **values: int | str | Mapping[str, int] | None) -> DataFrame:
    """Run a query over rows, which it calls `{rows}`. A mapping becomes a map from journals to numbers."""
    from pyspark.sql import functions as f

    args = {
        name: f.expr(f"map({', '.join(f'{key!r}, {number}L' for key, number in value.items())})")
        if isinstance(value, Mapping)
        else value
        for name, value in values.items()
    }
    return rows.sparkSession.sql(text, args=args, rows=rows)


def of_journal(name: str) -> str:
    """The number of a row's journal in a map, or the one for all journals."""
    return f"coalesce(try_element_at(:{name}, journal), try_element_at(:{name}, ''))"


def without_own(events: DataFrame) -> DataFrame:
    """Leave out the rows of envelopes that the pipeline itself sent."""
    return events.where(f"sender is null or sender != '{OWN_SENDER}'")


def ms_between(first: str, last: str) -> str:
    """Milliseconds between two times; 0 if the clock was set back."""
    passed_us = f"(unix_micros({last}) - unix_micros({first}))"
    # Not `greatest`: it ignores nulls and would return 0 for an unknown time.
    return f"case when {passed_us} < 0 then 0D else {passed_us} / 1000 end"


def date_of(moment: str) -> str:
    """The date of a time, in UTC."""
    return f"date_from_unix_date(cast({_floor_us(moment, _DAY_US)} / {_DAY_US} as int))"


def minute_of(moment: str) -> str:
    """The start of the minute of a time."""
    return f"timestamp_micros({_floor_us(moment, _MINUTE_US)})"


def _floor_us(moment: str, step_us: int) -> str:
    return f"(unix_micros({moment}) - pmod(unix_micros({moment}), {step_us}))"


def agent_of(sender: str) -> str:
    """The agent of a `from` or a token name: `agents/sam` and `agents/sam/inbox` are `sam`; null for `UNNAMED_PEERS`."""
    return f"case when {sender} not in {UNNAMED_PEERS} then regexp_replace({sender}, '{_AGENT}', '$1') end"


def owner_of(channel: str) -> str:
    """The agent that owns an inbox; null for other streams."""
    return f"case when {channel} rlike '{_INBOX}' then regexp_replace({channel}, '{_INBOX}', '$1') end"


NAMES_MAX = 10_000
"""Names whose agents are cached."""


@lru_cache(NAMES_MAX)
def agent_named(sender: str | None) -> str | None:
    """`agent_of` without Spark."""
    return None if sender is None or sender in UNNAMED_PEERS else re.sub(_AGENT, r"\1", sender)


@lru_cache(NAMES_MAX)
def owner_named(channel: str | None) -> str | None:
    """`owner_of` without Spark."""
    found = None if channel is None else re.search(_INBOX, channel)
    return None if found is None else found[1]


WAIT_MS = ms_between("ref_at", "first_at")
"""Of a settle row: how long the record waited for its first delivery."""
TOTAL_MS = ms_between("ref_at", "recorded_at")
"""Of a settle row: from the enqueue to the settle."""


def dates(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates of times, in UTC."""
    return moments.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.date32())


def passed_ms(first: pa.ChunkedArray, last: pa.ChunkedArray) -> pa.ChunkedArray:
    """Milliseconds between times; 0 if the clock was set back, null if one is unknown."""
    passed = pc.divide(pc.subtract(last.cast(pa.int64()), first.cast(pa.int64())).cast(pa.float64()), 1000.0)
    return pc.if_else(pc.less(passed, 0.0), 0.0, passed)
