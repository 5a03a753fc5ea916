"""Exported journal rows, and the values that the recomputed tables share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
MINUTE_US = 60_000_000
LATE_US = 10_000_000
"""A gauge may arrive this much after its minute; then the minute is final."""
OWN = "pipeline/penstock"
"""What the pipeline sends: in `events` and in no other table."""
EVENTS = {
    "courier": "enqueue ack nack dead drop purge move deliver release extend timeout trigger gauge "
    "leased read expired receipt_owed agent wake parcel arrived applied",
    "mew": "envelope stream_open stream_close grant revoke invite kick join leave frame frame_counts",
    "streamservice": "register expire chunk chunk_counts subscribe unsubscribe resume",
    "server": "start stop tick epoch repair",
}
OUTCOMES = {"ack": "acked", "dead": "dead", "drop": "dropped", "purge": "purged"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain(table: pa.Table) -> list[Row]:
    """Rows with times as microseconds since 1970, and maps as dictionaries."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            column = table.column(number).cast(pa.timestamp("us", field.type.tz)).cast(pa.int64())
            table = table.set_column(number, field.name, column)
    maps = [field.name for field in table.schema if pa.types.is_map(field.type)]
    rows: list[Row] = table.to_pylist()
    for row in rows if maps else ():
        row.update({name: dict(row[name]) for name in maps if row[name] is not None})
    return rows


def day(us: int) -> date:
    return (EPOCH + timedelta(microseconds=us)).date()


def minute_of(us: int) -> int:
    return us // MINUTE_US * MINUTE_US


def ms(first: int | None, last: int | None) -> float | None:
    """Milliseconds between two times; 0 if the clock was set back."""
    return None if first is None or last is None else max(last - first, 0) / 1000


def percentile(values: list[float], part: float) -> float | None:
    """Exact, by linear interpolation between the two nearest."""
    if not values:
        return None
    values = sorted(values)
    at = part * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def agent_of(name: str | None) -> str | None:
    """The agent of a sender or holder: `agents/sam` and `agents/sam/…` are `sam`."""
    if name is None or name in {"anonymous", "nobody", "operator"}:
        return None
    found = re.fullmatch(r"agents/([^/]+)(/.*)?", name)
    return found[1] if found else name


def owner_of(channel: str) -> str | None:
    """The agent whose inbox a stream is."""
    found = re.fullmatch(r"agents/([^/]+)/inbox", channel)
    return found[1] if found else None


def meta_of(row: Row) -> Row:
    return json.loads(row["meta"]) if row["meta"] else {}


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


class Journal:
    """The exported rows of one journal, checked: dense offsets, times that never decrease, known events."""

    def __init__(self, table: pa.Table) -> None:
        self.all = sorted(plain(table), key=lambda row: row["offset"])
        assert [row["offset"] for row in self.all] == list(range(len(self.all))), "offsets are not dense from 0"
        assert all(one["recorded_at"] <= two["recorded_at"] for one, two in pairwise(self.all)), "time goes back"
        (self.id,) = {row["journal"] for row in self.all}
        for row in self.all:
            assert row["event"] == "erased" or row["event"] in EVENTS[row["door"]].split(), row
        self.until = self.all[-1]["recorded_at"]
        self.rows = [row for row in self.all if row["door"] is not None and row["sender"] != OWN]
        """Without what the pipeline sent."""

    def of(self, door: str, *events: str) -> list[Row]:
        return [row for row in self.rows if row["door"] == door and row["event"] in events]

    def enqueued_at(self, settle: Row) -> int:
        """When the record that a row settles was enqueued: the time of that row itself."""
        return int(self.all[settle["ref_offset"]]["recorded_at"])

    def is_final(self, minute: int) -> bool:
        return bool(self.until >= minute + MINUTE_US + LATE_US)
