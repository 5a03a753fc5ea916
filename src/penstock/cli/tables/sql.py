"""`penstock sql`: queries on the tables, without Spark and without a server."""

from __future__ import annotations

import csv
import sys
from datetime import datetime
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption
from penstock.cli.output import print_note, print_table
from penstock.cli.tables.lake import speaking
from penstock.journal.plain_values import plain

LIMIT = 1_000
"""Rows that are printed by default; a table may hold millions."""


def sql(
    query: Annotated[str, Parameter(help="A statement: SELECT, WITH, EXPLAIN, SHOW or DESCRIBE.")],
    *,
    limit: Annotated[int, Parameter(help="Rows to print; 0 prints all.")] = LIMIT,
    as_csv: Annotated[bool, Parameter(name="--csv", negative="", help="Print CSV.")] = False,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """Query the tables with SQL, read-only. Needs no server, no Spark and no Java.

    With --json each row is an object on a line of its own. Names and columns of
    the tables: `penstock lake ls`, `describe envelopes`.

    For example:

      penstock sql "select channel, sum(enqueued) from queue_minutes group by channel"
      penstock sql "select * from alerts where state = 'firing'" --json
      penstock sql "describe deliveries"
    """
    from penstock.journal.sql import ask

    with speaking():
        answer = ask(place.data / "lake", query)
        names = answer.names
        rows: list[list[Any]] = []
        is_cut = False
        for row in answer.rows:
            if limit and len(rows) >= limit:
                is_cut = True
                break
            rows.append(row)
    if place.as_json:
        encoder = msgspec.json.Encoder()
        shown = [dict(zip(names, [plain(value) for value in row], strict=True)) for row in rows]
        sys.stdout.write(encoder.encode_lines(shown).decode())
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([["" if value is None else _cell(value) for value in row] for row in rows])
    else:
        print_table(names, [[_cell(value) for value in row] for row in rows])
    if is_cut:
        print_note(f"there are more rows than {limit}; --limit 0 prints all")
    elif not rows:
        print_note("no rows")


def _cell(value: Any) -> Any:
    shown = plain(value)
    if isinstance(value, datetime):
        return shown[:23] + "Z"
    return msgspec.json.encode(shown).decode() if isinstance(shown, (list, dict)) else shown
