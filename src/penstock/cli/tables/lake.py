"""`penstock lake ls|history|compact|vacuum`: inspect and maintain the files of the tables; `penstock sql`: query them without Spark."""

from __future__ import annotations

import csv
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from penstock.cli.history.journal import DATA_DEFAULT, NAME_DATA, DataOption
from penstock.cli.options import flag
from penstock.cli.output import ago, print_json, print_line, print_lines, print_note, print_rows, print_table
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.plain_values import iso, plain

if TYPE_CHECKING:
    from penstock.journal.lake_location import LakePath
    from penstock.spark.lake.table import LakeTable


NO_TABLES_HINT = "`penstock pipeline run --once` fills the tables from the journal; name another directory with --data"
DAMAGED_HINT = "`penstock doctor` names the table; restore a backup, or move its directory away and run `penstock pipeline rebuild`"

OneTable = Annotated[str | None, Parameter(help="Only this table.")]

lake = App(name="lake", help="Manage the tables: sizes, versions, small files, old files.")
lake.command("penstock.cli.tables.erase:erase", name="erase")


@lake.command
def ls(*, place: DataOption = DATA_DEFAULT) -> None:
    """List the tables with rows, files, position, age of the last change and retention.

    For example:

      penstock lake ls
      penstock lake ls --data /var/lib/penstock --json
    """
    from penstock.journal.delta_log import table_names
    from penstock.spark.lake.catalog import summary

    with speaking():
        folder = lake_in(place.data)
        found = [summary(folder, name) for name in table_names(folder)]
    if place.as_json:
        rows = [{**vars(one), "at": iso(one.at_ms * 1000)} for one in found]
        print_json({"tables": [{name: row[name] for name in row if name != "at_ms"} for row in rows]})
    elif not found:
        print_note(f"there are no tables in `{place.data}` yet; {NO_TABLES_HINT}")
    else:
        columns = ("table", "rows", "files", "bytes", "version", "offset", "changed", "retention")
        now_s = time.time()
        cells = [(*list(vars(one).values())[:6], ago(now_s - one.at_ms / 1000), one.retention or "") for one in found]
        print_table(columns, cells)


@lake.command
def history(
    table: Annotated[str, Parameter(help="Name of the table.")],
    *,
    limit: Annotated[int, Parameter(help="Newest versions to show.")] = 20,
    place: DataOption = DATA_DEFAULT,
) -> None:
    """List the versions of a table, newest first, with the range of rows that each added.

    Versions that can still be read are marked: `penstock_delta` reads them with `versionAsOf`.

    For example:

      penstock lake history envelopes
      penstock lake history queue_minutes --limit 100 --json
    """
    from penstock.spark.lake.catalog import open_table

    with speaking():
        opened = open_table(lake_in(place.data), table)
        kept = opened.log.kept()
        rows = [
            (one.version, iso(one.at_ms * 1000), one.operation, one.app, one.first, one.end, one.version in kept)
            for one in opened.history(limit)
        ]
    columns = ("version", "at", "operation", "app", "from", "to", "readable")
    versions = [dict(zip(columns, row, strict=True)) for row in rows]
    print_rows({"table": table, "versions": versions}, columns, rows, as_json=place.as_json)


@lake.command
def compact(*, table: OneTable = None, place: DataOption = DATA_DEFAULT) -> None:
    """Merge small files into larger ones now; the pipeline also does so every few minutes.

    Waits for the current writer of the table, and changes no row. The files that are
    replaced stay until `vacuum` finds them old.

    For example:

      penstock lake compact
      penstock lake compact --table envelopes
    """
    _maintain(place, table, lambda one: dict(zip(("merged", "into"), one.compact_files(files_min=2), strict=True)))


@lake.command
def vacuum(*, table: OneTable = None, place: DataOption = DATA_DEFAULT) -> None:
    """Remove rows that are older than the table's retention, and files without a version after an hour.

    The pipeline also does so. Versions that `history` shows as readable stay readable.

    For example:

      penstock lake vacuum
      penstock lake vacuum --table alerts --json
    """

    def work(one: LakeTable) -> dict[str, int]:
        expired = one.expire()
        count, size = one.log.sweep(time.time())
        return {"removed": count, "bytes": size, "expired_rows": expired}

    _maintain(place, table, work)


def lake_in(data: Path) -> LakePath:
    """The lake of a data directory. Another directory is refused: there, no pipeline would ever fill tables."""
    from penstock.journal.lake_location import LAKE, RECORD, lake_of

    if not any((data / name).exists() for name in ("journal", LAKE, RECORD)):
        raise PenstockError(Refusal("InvalidRequest", f"`{data}` is not a data directory", hint=NAME_DATA))
    return lake_of(data)


def _tables(data: Path, name: str | None) -> list[LakeTable]:
    from penstock.journal.delta_log import table_names
    from penstock.spark.lake.catalog import EVENTS, open_table

    if name == EVENTS:
        hint = "sealing maintains it; run `penstock log seal` to seal now"
        raise PenstockError(Refusal("InvalidRequest", f"`{EVENTS}` is not the pipeline's table", hint=hint))
    folder = lake_in(data)
    names = [name] if name is not None else [one for one in table_names(folder) if one != EVENTS]
    return [open_table(folder, one) for one in names]


def _maintain(place: DataOption, table: str | None, work: Callable[[LakeTable], dict[str, int]]) -> None:
    """Do the work on every table under its lock, shorten its log, and print what was done."""
    from penstock.spark.lake import rewrite

    done: dict[str, dict[str, int]] = {}
    with speaking():
        for one in _tables(place.data, table):
            with one.writing():
                entries = rewrite.shorten(one)
                done[one.name] = {**work(one), "log_entries_removed": entries}
    if place.as_json:
        print_json({"tables": [{"table": name, **counts} for name, counts in done.items()]})
        return
    for name, counts in done.items():
        facts = ", ".join(f"{what.replace('_', ' ')} {count}" for what, count in counts.items())
        print_line(f"{name}: {facts if any(counts.values()) else 'nothing to do'}")
    if not done:
        print_note(f"there are no tables in `{place.data}` to maintain yet; {NO_TABLES_HINT}")


@contextmanager
def speaking() -> Iterator[None]:
    """Report errors of a table with their error codes."""
    from deltalake.exceptions import DeltaError

    from penstock.spark.lake.table_reader import LakeError

    try:
        yield
    except PenstockError:
        raise
    except DeltaError as error:
        text = f"a table cannot be read: {' '.join(str(error).split())}"
        raise PenstockError(Refusal("JournalDamaged", text, hint=DAMAGED_HINT)) from None
    except LakeError as error:
        raise PenstockError(Refusal("InvalidRequest", error.message, hint=error.hint or NO_TABLES_HINT)) from None
    except OSError as error:
        hint = "the directory must be readable, and writable to change something"
        text = f"cannot use `{error.filename}`: {error.strerror}"
        raise PenstockError(Refusal("InvalidRequest", text, hint=hint)) from None


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
