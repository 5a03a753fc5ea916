"""SQL over the tables with DataFusion, without Spark and Java.

Read-only. Whether a query reads is not guessed from its words, which comments and quotes can hide: the engine plans it first, and a plan
that writes, creates, drops or sets anything is rejected before it runs. The engine only knows the tables of one lake, no other files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import QueryBuilder

from penstock.core.errors import PenstockError, Refusal
from penstock.journal.delta_log import table_names
from penstock.journal.lake_location import LakePath, open_delta

NO_TABLES_HINT = "the pipeline fills them from the journal: `penstock pipeline run --once` does so now"
HINT = "this only reads: begin with SELECT, WITH, EXPLAIN, SHOW or DESCRIBE"
PARSE_HINT = "check the word at this place, and what stands before it"
SETTINGS = {"datafusion.catalog.information_schema": "true"}
_SHOW_TABLES = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)
_EXPLAIN = re.compile(r"\s*explain\b(?:\s+analyze\b)?(?:\s+verbose\b)?(?:\s+format\s+\w+\b)?", re.IGNORECASE)
_PLAN = "explain format indent\n"
"""Plans what follows and runs none of it. After a format, `analyze`, which would run it, is no longer a word of EXPLAIN."""
_WRITING = ("CopyTo", "Dml")
"""How plans begin that write and could run; whatever else changes something has no plan that could."""
_WRAPPED = re.compile(r'SQL error: \w+\("(.*)"\)')
_POSITION = re.compile(r" at Line: (\d+), Column: (\d+)")
_NO_TABLE = re.compile(r"table '(?:\w+\.)*([^']+)' not found")


class QueryResult(msgspec.Struct):
    """The columns of an answer, and its rows as they come."""

    names: list[str]
    types: list[str]
    rows: Iterator[list[Any]]


def ask(lake: LakePath, query: str) -> QueryResult:
    """Run a query on the tables of a lake; raises `PenstockError` with the reason if it is invalid."""
    if not query.strip():
        raise _refused("the query is empty")
    known = table_names(lake)
    if _SHOW_TABLES.fullmatch(query):  # the engine would name its own as well
        return QueryResult(["table"], ["string"], iter([[name] for name in known]))
    if not known:
        raise _refused("there are no tables yet", NO_TABLES_HINT)
    text = query.lower()
    wants_all = "information_schema" in text or "show" in text
    engine = QueryBuilder(SETTINGS)
    try:
        for name in known:
            if wants_all or name.lower() in text:  # opening one takes a few milliseconds
                engine.register(name, open_delta(lake / name))
        _check_reading(engine, query, known)
        reader = engine.execute(query)
        fields = list(pa.schema(reader.schema))
    except PenstockError:
        raise
    except Exception as error:  # the engine has no class of its own for what goes wrong in it
        raise _misunderstood(error, known) from None

    def rows() -> Iterator[list[Any]]:
        try:
            for batch in reader:
                columns = [column.to_pylist() for column in pa.record_batch(batch).columns]
                yield from (list(row) for row in zip(*columns, strict=True))
        except Exception as error:
            raise _misunderstood(error, known) from None

    return QueryResult(
        [field.name for field in fields], [str(field.type).removesuffix("_view") for field in fields], rows()
    )


def _check_reading(engine: QueryBuilder, query: str, known: list[str]) -> None:
    """Reject a query that does not only read, by the plan of the engine."""
    # Spaces in place of EXPLAIN, and a line of our own above, so that an error names the right line and column.
    asked = _EXPLAIN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), query, count=1)
    try:
        plan = engine.execute(_PLAN + asked)
    except Exception as error:  # the engine has no class of its own for what goes wrong in it
        raise _misunderstood(error, known, lines_above=1) from None
    plans = {row["plan_type"]: row["plan"] for batch in plan for row in pa.record_batch(batch).to_pylist()}
    logical = plans.get("logical_plan", "")
    if "physical_plan" not in plans or logical.startswith(_WRITING):
        verb = re.split(r"\W", logical, maxsplit=1)[0] or "this"
        raise _refused(f"this is no question: it would change something (`{verb}`)")


def _refused(message: str, hint: str = HINT) -> PenstockError:
    return PenstockError(Refusal("InvalidRequest", message, hint=hint))


def _misunderstood(error: Exception, known: list[str], lines_above: int = 0) -> PenstockError:
    message = " ".join(str(error).removeprefix("External error: ").split())
    message = _WRAPPED.sub(r"\1", message)
    position = _POSITION.search(message)
    if position is not None:
        line, column = int(position[1]) - lines_above, int(position[2])
        message = f"{message[: position.start()]} (line {line}, column {column})"
        return PenstockError(Refusal("InvalidRequest", _lowered(message), ref=f"{line}:{column}", hint=PARSE_HINT))
    missing = _NO_TABLE.search(message)
    if missing is not None:
        return _refused(f"there is no table `{missing[1]}`", f"there are: {', '.join(known)}")
    hint = "`describe TABLE` lists the columns of one; words in capitals need double quotes"
    return _refused(_lowered(message), hint)


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
