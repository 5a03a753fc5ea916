"""Filters of a query as bounds: what a batch read may skip. Spark still evaluates every filter, so bounds may be wider than these.

Spark 4.3 keeps the last plan of a Python source with the DataFrame that `load` returned, and reads with it in a later query on the same
DataFrame that has no filter, or in another branch of the same query. The plan of a filtered query would then lose rows, so the
readers use filters only if the option `pushdown` says that the DataFrame is for one filtered query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from penstock.spark.errors import HintedError

OPTION = "pushdown"
Bounds = dict[str, tuple[Any, Any]]
"""The least and the greatest value of a column, either may be None."""


def is_asked(options: Mapping[str, str], name: str = OPTION) -> bool:
    """Whether an option is true."""
    given = options.get(name, "false").strip().lower()
    if given not in ("true", "false"):
        raise HintedError(f"`{name}` is `{given}`", "it is one of true, false")
    return given == "true"


def format_bounds(bounds: Bounds) -> str:
    """Bounds as the text of an option."""
    return msgspec.json.encode({name: pair for name, pair in bounds.items() if pair != (None, None)}).decode()


def parse_bounds(text: str) -> Bounds:
    """Bounds from the text of an option; a text as a bound is a time."""
    try:
        return msgspec.json.decode(text, type=dict[str, tuple[int | datetime | None, int | datetime | None]])
    except msgspec.DecodeError as error:
        raise HintedError(f"`within` is `{text}`: {error}", 'write it as `{"offset": [10, null]}`') from error


def bounds_of(filters: Iterable[Filter], schema: pa.Schema) -> Bounds:
    """Bounds that contain every row that passes all filters, of columns with numbers, texts, dates and times."""
    found: Bounds = {}
    for one in filters:
        match one:
            case EqualTo(attribute=(column,), value=value):
                _narrow(found, column, value, value)
            case GreaterThan(attribute=(column,), value=value) | GreaterThanOrEqual(attribute=(column,), value=value):
                _narrow(found, column, value, None)
            case LessThan(attribute=(column,), value=value) | LessThanOrEqual(attribute=(column,), value=value):
                _narrow(found, column, None, value)
            case In(attribute=(column,), value=values) if names := [value for value in values if value is not None]:
                _narrow(found, column, min(names), max(names))
            case _:
                pass
    kinds = {field.name: field.type for field in schema}
    return {
        column: pair
        for column, pair in found.items()
        if column in kinds and all(value is None or _fits(value, kinds[column]) for value in pair)
    }


def _narrow(found: Bounds, column: str, least: Any, greatest: Any) -> None:
    low, high = found.get(column, (None, None))
    found[column] = (
        least if low is None else low if least is None else max(low, least),
        greatest if high is None else high if greatest is None else min(high, greatest),
    )


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a value compares with those of a column: a time without a zone does not compare with one that has it."""
    if isinstance(value, datetime):
        return pa.types.is_timestamp(kind) and (kind.tz is None) == (value.tzinfo is None)
    if isinstance(value, bool):
        return False
    return (
        (isinstance(value, int) and pa.types.is_integer(kind))
        or (isinstance(value, str) and pa.types.is_string(kind))
        or (isinstance(value, date) and pa.types.is_date(kind))
    )


def names_of(filters: Iterable[Filter], column: str) -> tuple[str, ...]:
    """The names, or the pattern with `*`, that a column of text is filtered by; empty if it may be any."""
    for one in filters:
        match one:
            case EqualTo(attribute=(name,), value=str() as value) if name == column and "*" not in value:
                return (value,)
            case In(attribute=(name,), value=values) if name == column:
                texts = tuple(value for value in values if isinstance(value, str))
                if texts and not any("*" in text for text in texts):
                    return texts
            case StringStartsWith(attribute=(name,), value=value) if name == column and "*" not in value:
                return (f"{value}*",)
            case _:
                pass
    return ()
