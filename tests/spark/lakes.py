"""Small tables for the tests of the lake."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from penstock.spark.lake.schemas import TableDefinition

START = datetime(2026, 3, 1, tzinfo=UTC)
APP = "j1/0"

NOTES = TableDefinition(
    "notes",
    pa.schema(
        {
            "journal": pa.string(),
            "offset": pa.int64(),
            "date": pa.date32(),
            "recorded_at": pa.timestamp("us", tz="UTC"),
            "tags": pa.list_(pa.string()),
            "headers": pa.map_(pa.string(), pa.string()),
            "text": pa.string(),
        }
    ),
    ("journal", "offset"),
    "append",
    ("date",),
)
COUNTS = TableDefinition(
    "counts",
    pa.schema(
        {
            "journal": pa.string(),
            "date": pa.date32(),
            "minute": pa.timestamp("us", tz="UTC"),
            "channel": pa.string(),
            "n": pa.int64(),
        }
    ),
    ("journal", "channel", "minute"),
    "merge",
    ("date",),
)
LATEST = TableDefinition(
    "latest",
    pa.schema({"journal": pa.string(), "address": pa.string(), "offset": pa.int64(), "tags": pa.list_(pa.string())}),
    ("journal", "address"),
    "merge",
    newest="offset",
)


def notes(first: int, end: int, *, step_s: float = 1.0) -> pa.Table:
    """Rows with offsets `first` to `end - 1`, a step apart in time."""
    rows = []
    for offset in range(first, end):
        at = START + timedelta(seconds=offset * step_s)
        rows.append(
            {
                "journal": "j1",
                "offset": offset,
                "date": at.date(),
                "recorded_at": at,
                "tags": [f"t{offset % 3}"],
                "headers": [("k", str(offset))],
                "text": f"note {offset}",
            }
        )
    return pa.Table.from_pylist(rows, NOTES.schema)


def counts(values: dict[tuple[str, int], int]) -> pa.Table:
    """Rows by channel and number of the minute."""
    rows = []
    for (channel, number), n in values.items():
        minute = START + timedelta(minutes=number)
        rows.append({"journal": "j1", "date": minute.date(), "minute": minute, "channel": channel, "n": n})
    return pa.Table.from_pylist(rows, COUNTS.schema)


def counted(rows: pa.Table) -> dict[tuple[str, int], int]:
    """The same, back; fails where a key is there twice."""
    found = {}
    for row in rows.to_pylist():
        key = row["channel"], round((row["minute"] - START) / timedelta(minutes=1))
        assert key not in found, f"{key} is there twice"
        found[key] = row["n"]
    return found


def offsets(rows: pa.Table) -> list[int]:
    return sorted(rows.column("offset").to_pylist())
