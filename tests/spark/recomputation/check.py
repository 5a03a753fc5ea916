"""An independent recomputation: every table again, in plain Python from exported journal rows, compared cell by cell.

It follows `docs/reference/tables.md` and `docs/reference/journal.md` and shares no code with the pipeline: deltalake reads the tables,
and each table is a loop over the rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.spark.recomputation import alerts, conversations, gold, silver
from tests.spark.recomputation.rows import Journal, Row, day, plain

TABLES: dict[str, tuple[Sequence[str], Callable[[Journal], Iterable[Row]]]] = {
    "envelopes": (("offset",), silver.envelopes),
    "deliveries": (("channel", "seq"), silver.deliveries),
    "frames": (("offset",), silver.frames),
    "token_chunks": (("offset",), silver.token_chunks),
    "gaps": (("from_offset",), lambda _: ()),
    "queue_minutes": (("channel", "minute"), gold.queue_minutes),
    "trigger_minutes": (("trigger", "minute"), gold.trigger_minutes),
    "fanout_minutes": (("space", "minute"), gold.fanout_minutes),
    "latest_per_agent": (("address",), gold.latest_per_agent),
    "token_streams": (("topic_hash", "started_at"), gold.token_streams),
    "conversations": (("cluster", "corr"), conversations.conversations),
    "agents": (("cluster", "agent"), alerts.agents),
}
"""The key of each table after `journal`, and what it should hold."""
SHOWN = 8
"""Differences in the text of a failure."""


def lake_tables(lake: str, options: Mapping[str, str] | None = None) -> Callable[[str], list[Row]]:
    """A function that reads a table of a lake, as a person with another program would; no rows if there is none."""

    def read(name: str) -> list[Row]:
        try:
            table = DeltaTable(f"{lake}/{name}", storage_options=dict(options) if options else None)
        except TableNotFoundError:
            return []
        return plain(pa.table(table.to_pyarrow_table()))

    return read


def check(
    exported: pa.Table,
    read: Callable[[str], list[Row]],
    names: Iterable[str] = TABLES,
    rules: Sequence[Row] = (),
    now_us: int | None = None,
) -> dict[str, int]:
    """Compare tables with what the journal gives; returns the number of cells of each. With rules, the alerts too."""
    journal = Journal(exported)
    expected = {name: (TABLES[name][0], list(TABLES[name][1](journal))) for name in names}
    if rules:
        expected["alerts"] = ("id",), list(alerts.alerts(journal, rules, now_us))
    return {name: compare(name, key, read(name), made) for name, (key, made) in expected.items()}


def check_events(exported: pa.Table, read: Callable[[str], list[Row]]) -> int:
    """Compare the sealed table with rows that were exported in another way."""
    made = [row | {"date": day(row["recorded_at"])} for row in Journal(exported).all]
    return compare("events", ("offset",), read("events"), made)


def compare(name: str, key: Sequence[str], found: list[Row], made: list[Row]) -> int:
    """Compare every cell; raises with the first differences, returns the number of cells."""
    there, wanted = _by_key(name, key, found), _by_key(name, key, made)
    wrong = [f"{name} {one}: the table lacks it" for one in wanted.keys() - there.keys()]
    wrong += [f"{name} {one}: the journal does not have it" for one in there.keys() - wanted.keys()]
    cells = 0
    for one in there.keys() & wanted.keys():
        row, other = there[one], wanted[one]
        if row.keys() != other.keys():
            wrong.append(f"{name} {one}: other columns: {sorted(row.keys() ^ other.keys())}")
            continue
        cells += len(row)
        wrong += [
            f"{name} {one} {column}: the table has {row[column]!r}, the journal gives {other[column]!r}"
            for column in row
            if not _is_same(column, row[column], other[column])
        ]
    assert not wrong, f"{len(wrong)} differences:\n" + "\n".join(wrong[:SHOWN])
    return cells


def _by_key(name: str, key: Sequence[str], rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        one = tuple(row[part] for part in key)
        assert one not in found, f"a key of `{name}` is there twice: {one}"
        found[one] = row
    return found


def _is_same(column: str, found: Any, made: Any) -> bool:
    if column == "extra" and found is not None:  # JSON text, whose spaces may differ
        found = json.loads(found)
    if isinstance(found, float) and isinstance(made, int | float):  # the order of additions may differ
        return math.isclose(found, made, rel_tol=1e-9)
    return bool(found == made) and (found is None) == (made is None)
