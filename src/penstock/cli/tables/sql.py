"""`penstock sql`: queries on the tables, without Spark and without a server."""

from __future__ import annotations

import csv
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from penstock.cli.history.journal import DATA_DEFAULT, DataOption
from penstock.cli.options import flag
from penstock.cli.output import print_lines, print_note
from penstock.cli.tables.lake import lake_in, speaking
from penstock.core.errors import PenstockError
from penstock.journal.plain_values import plain

LIMIT = 1_000
"""Rows that are printed by default; a table may hold millions."""


def sql(
    query: Annotated[str, Parameter(help="A statement: SELECT, WITH, EXPLAIN, SHOW or DESCRIBE.")],
    *,
    limit: Annotated[int, Parameter(help="Rows to print; 0 prints all.")] = LIMIT,
    wide: Annotated[bool, flag("Print a table, even if it is wider than the terminal.")] = False,
    as_csv: Annotated[bool, Parameter(name="--csv", negative="", help="Print CSV.")] = False,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """Query the tables with SQL, read-only. Needs no server, no Spark and no Java.

    A result that is wider than the terminal is printed as records: a line for each column. With --json each
    row is an object on a line of its own. Names and columns of the tables: `penstock lake ls`,
    `describe envelopes`.

    For example:

      penstock sql "select channel, sum(enqueued) from queue_minutes group by channel"
      penstock sql "select * from alerts where state = 'firing'" --json
      penstock sql "select * from deliveries" --wide | less -S
      penstock sql "describe deliveries"
    """
    from penstock.journal.sql import ask

    with speaking():
        try:
            answer = ask(lake_in(place.data), query)
        except PenstockError as error:
            _point_at(query, error.refusal.ref)
            raise
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
        room = None if wide or not sys.stdout.isatty() else shutil.get_terminal_size().columns
        print_lines(
            _lines(names, [["-" if value is None else str(_cell(value)) for value in row] for row in rows], room)
        )
    if is_cut:
        print_note(f"there are more rows than {limit}; --limit 0 prints all")
    elif not rows:
        print_note("no rows")


def _lines(names: list[str], rows: list[list[str]], room: int | None) -> Iterator[str]:
    """A table if it fits into `room` columns, else a record for each row."""
    from rich.cells import cell_len, set_cell_size

    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    if room is None or sum(widths) + 2 * (len(widths) - 1) <= room:
        for row in (names, *rows):
            cells = [set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)]
            yield "  ".join(cells).rstrip()
        return
    width = max(map(cell_len, names))
    for number, row in enumerate(rows, 1):
        yield f"row {number}"
        for name, cell in zip(names, row, strict=True):
            first, *more = cell.splitlines() or [""]
            yield f"  {set_cell_size(name, width)}  {first}".rstrip()
            yield from (f"  {' ' * width}  {line}" for line in more)


def _point_at(query: str, ref: str | None) -> None:
    """Show the line of the query that an error is about, with a mark below its column."""
    line, _, column = (ref or "").partition(":")
    if line.isdecimal() and column.isdecimal():
        text = query.split("\n")[int(line) - 1].replace("\t", " ")
        print_note(f"  {text}")
        print_note(f"  {' ' * (int(column) - 1)}^")


def _cell(value: Any) -> Any:
    shown = plain(value)
    if isinstance(value, datetime):
        return shown[:23] + "Z"
    return msgspec.json.encode(shown).decode() if isinstance(shown, (list, dict)) else shown
