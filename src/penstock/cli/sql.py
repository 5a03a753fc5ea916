"""`penstock sql`: a question to the tables, answered without Spark and without a server."""

from __future__ import annotations

import base64
import csv
import re
import sys
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from penstock.cli.journal import PLACE, Place
from penstock.cli.lake import NO_TABLES_HINT, speaking
from penstock.cli.output import print_note, print_table
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = 1_000
"""Rows that are printed unless --limit says otherwise; a table may hold millions."""
_READING = {"select", "with", "explain", "show", "describe", "desc", "values", "table"}
_EXPLAIN_WORDS = {"explain", "analyze", "verbose", "format", "tree", "indent", "pgjson", "graphviz"}
_CHANGING = {
    "insert",
    "update",
    "delete",
    "copy",
    "create",
    "drop",
    "alter",
    "truncate",
    "merge",
    "set",
    "into",
}
_QUOTED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"", re.DOTALL)
_WORD = re.compile(r"[a-z_][a-z0-9_]*")
_NO_TABLE = re.compile(r"table '(?:\w+\.)*([^']+)' not found")


def sql(
    query: Annotated[str, Parameter(help="What to ask: SELECT, WITH, EXPLAIN, SHOW or DESCRIBE.")],
    *,
    limit: Annotated[int, Parameter(help="Rows to print; 0 prints all.")] = LIMIT,
    as_csv: Annotated[bool, Parameter(name="--csv", negative="", help="Print CSV.")] = False,
    place: Place = PLACE,
) -> int:
    """Ask the tables something in SQL. Needs no server, no Spark and no Java; changes nothing.

    With --json each row is an object on a line of its own. Names and columns of
    the tables: `penstock lake ls`, `describe envelopes`.

    For example:

      penstock sql "select channel, sum(enqueued) from queue_minutes group by channel"
      penstock sql "select * from alerts where state = 'firing'" --json
      penstock sql "describe deliveries"
    """
    _check_reading(query)
    with speaking():
        names, batches = _ask(place.data / "lake", query)
        rows: list[list[Any]] = []
        is_cut = False
        for row in batches:
            if limit and len(rows) >= limit:
                is_cut = True
                break
            rows.append(row)
    if place.as_json:
        encoder = msgspec.json.Encoder()
        shown = [dict(zip(names, [_plain(value) for value in row], strict=True)) for row in rows]
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
    return 0


def _check_reading(query: str) -> None:
    """Refuse what is not a question. The engine could also write files."""
    words = _WORD.findall(_QUOTED.sub(" ", query).lower())
    hint = "this command only reads: begin with SELECT, WITH, EXPLAIN, SHOW or DESCRIBE"
    if not words:
        raise PenstockError(Refusal("InvalidRequest", "the query is empty", hint=hint))
    verb = next((word for word in words if word not in _EXPLAIN_WORDS), words[0])
    if words[0] not in _READING or verb not in _READING:
        raise PenstockError(Refusal("InvalidRequest", f"`{verb}` is not a question", hint=hint))
    if verb == "with":
        found = [word for word in words if word in _CHANGING]
        if found:
            hint += '; a column of that name goes in double quotes, as in "set"'
            raise PenstockError(Refusal("InvalidRequest", f"`{found[0]}` changes something", hint=hint))


def _ask(folder: Path, query: str) -> tuple[list[str], Iterator[list[Any]]]:
    """The columns of the answer, and its rows as they come."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder
    from deltalake.exceptions import DeltaError

    from penstock.spark.catalog import table_names

    known = table_names(folder)
    if not known:
        message = f"there are no tables in `{folder.parent}` yet"
        raise PenstockError(Refusal("InvalidRequest", message, hint=NO_TABLES_HINT))
    text = query.lower()
    if text.split() in (["show", "tables"], ["show", "tables;"]):  # the engine would name its own as well
        return ["table"], iter([[name] for name in known])
    wants_all = "information_schema" in text or text.lstrip().startswith("show")
    engine = QueryBuilder({"datafusion.catalog.information_schema": "true"})
    try:
        for name in known:
            if wants_all or name.lower() in text:  # opening one takes a few milliseconds
                engine.register(name, DeltaTable(str(folder / name)))
        reader = engine.execute(query)
        names = [field.name for field in pa.schema(reader.schema)]
    except DeltaError as error:
        raise _refused(error, known) from None

    def rows() -> Iterator[list[Any]]:
        try:
            for batch in reader:
                columns = [column.to_pylist() for column in pa.record_batch(batch).columns]
                yield from (list(row) for row in zip(*columns, strict=True))
        except DeltaError as error:
            raise _refused(error, known) from None

    return names, rows()


def _refused(error: Exception, known: list[str]) -> PenstockError:
    message = " ".join(str(error).split())
    missing = _NO_TABLE.search(message)
    if missing is not None:
        hint = f"there are: {', '.join(known)}"
        return PenstockError(Refusal("InvalidRequest", f"there is no table `{missing[1]}`", hint=hint))
    hint = '`penstock sql "describe TABLE"` lists the columns of one; words in capitals need double quotes'
    return PenstockError(Refusal("InvalidRequest", message, hint=hint))


def _plain(value: Any) -> Any:
    """A value for JSON: times as text, bytes as text where they are, pairs of a map as an object."""
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return {str(key): _plain(one) for key, one in value}
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _cell(value: Any) -> Any:
    plain = _plain(value)
    if isinstance(value, datetime):
        return plain[:23] + "Z"
    return msgspec.json.encode(plain).decode() if isinstance(plain, (list, dict)) else plain
