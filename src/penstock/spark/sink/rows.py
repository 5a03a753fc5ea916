"""Rows of a DataFrame as lines of JSON, one envelope each: the columns of the sink and their types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from penstock.core.errors import PenstockError, Refusal
from penstock.dialects.courier.wire.envelopes import inbox
from penstock.dialects.courier.wire.staged_envelopes import SPACE_FORM

TEXTS = ("to", "type", "id", "corr", "schema")
LISTS = ("refs", "tags")
COLUMNS = (*TEXTS, *LISTS, "headers", "payload")
ADDRESSES_MAX = 10_000
"""Addresses that a task caches."""
STREAM_FORM = "stream:"

Encode = Callable[[pa.RecordBatch], Iterator[bytes]]
Plain = Callable[[Any], Any]

_encoder = msgspec.json.Encoder(decimal_format="number")
_any = msgspec.json.Decoder()


def sink_error(message: str, hint: str) -> PenstockError:
    """A mistake in the use of the sink, with a hint."""
    return PenstockError(Refusal("InvalidRequest", message, hint=hint))


@lru_cache(maxsize=ADDRESSES_MAX)
def address(to: str) -> str:
    """Resolve a `to`: `sam` is an inbox, `agents/sam/inbox` and `stream:jobs` are streams, `space:demo/averages` is one of a space."""
    if to.startswith(SPACE_FORM):
        space, _, stream = to.removeprefix(SPACE_FORM).rpartition("/")
        if not space or not stream:
            raise sink_error(f"`{to}` is not the stream of a space", "use `space:<space>/<stream>`")
        return to
    if to.startswith(STREAM_FORM) and len(to) > len(STREAM_FORM):
        return to.removeprefix(STREAM_FORM)
    if not to or ":" in to:
        raise sink_error(
            f"`{to}` is not an address", "use `sam`, `agents/sam/inbox`, `stream:jobs` or `space:demo/averages`"
        )
    return inbox(to)


def check_columns(schema: StructType, *, to: str | None, has_type: bool) -> None:
    """Refuse columns that an envelope does not have, missing ones, and wrong types.

    `to` is the default destination. What goes to a space has no type; if each row names its own destination, its task checks that.
    """
    unknown = [name for name in schema.names if name not in COLUMNS]
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        hint = 'put them into the payload: `select(to_json(struct("…")).alias("payload"))`; an envelope has '
        raise sink_error(f"an envelope has no column {names}", hint + ", ".join(COLUMNS))
    if "payload" not in schema.names:
        raise sink_error("the column `payload` is missing", 'name one: `select(to_json(struct("*")).alias("payload"))`')
    needs_no_type = has_type or "to" in schema.names or (to is not None and to.startswith(SPACE_FORM))
    for name, is_given in (("to", to is not None), ("type", needs_no_type)):
        if name not in schema.names and not is_given:
            raise sink_error(
                f"the column `{name}` is missing", f'add it, or give all rows one: `option("{name}", "…")`'
            )
    for field in schema.fields:
        expected = _expected(field.name, field.dataType)
        if expected is not None:
            raise sink_error(f"the column `{field.name}` is {field.dataType.simpleString()}", f"make it {expected}")


def _expected(name: str, kind: DataType) -> str | None:
    """The type that a column should have; None if it has it."""
    if name in TEXTS and not isinstance(kind, StringType):
        return "a string"
    if name in LISTS and not (isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)):
        return "an array of strings"
    is_map = isinstance(kind, MapType) and isinstance(kind.keyType, StringType)
    if name == "headers" and not (is_map or isinstance(kind, StructType)):
        return "a map with strings as keys, or a struct"
    return None


def encoder_for(to: str | None, kind: str | None, *, is_text: bool) -> Encode:
    """A function that encodes Arrow batches as lines; `to` and `kind` are the defaults for rows without their own."""

    def encode(rows: pa.RecordBatch) -> Iterator[bytes]:
        names = rows.schema.names
        columns = [_values(rows.column(index), name, is_text=is_text) for index, name in enumerate(names)]
        for values in zip(*columns, strict=True):
            line = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            line = _addressed(line, to, kind)
            if is_text and line["to"].startswith(SPACE_FORM) and isinstance(line["payload"], str):
                line["payloadAs"] = "text"
            yield _encoder.encode(line)

    return encode


def _addressed(line: dict[str, Any], to: str | None, kind: str | None) -> dict[str, Any]:
    if "to" in line:
        line["to"] = address(line["to"])
    for name, given in (("to", to), ("type", kind)):
        if name not in line and not (name == "type" and line["to"].startswith(SPACE_FORM)):
            if given is None:
                raise sink_error(f"a row has no `{name}`", f'fill it, or give such rows one: `option("{name}", "…")`')
            line[name] = given
    line.setdefault("payload", None)
    return line


def _values(column: pa.Array, name: str, *, is_text: bool) -> list[Any]:
    values = column.to_pylist()
    if name == "payload" and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return values if is_text else [None if value is None else _json(value) for value in values]
    plain = to_plain(column.type)
    return values if plain is None else [None if value is None else plain(value) for value in values]


def _json(text: str) -> msgspec.Raw:
    """A payload that is already JSON, on one line."""
    try:
        _any.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        hint = '`option("payloadAs", "text")` sends strings as they are; `to_json(…)` makes JSON of columns'
        raise sink_error(f"a row's `payload` is not JSON: {error}", hint) from None
    if "\n" in text:
        text = msgspec.json.format(text, indent=-1)
    return msgspec.Raw(text.encode())


def to_plain(kind: pa.DataType) -> Plain | None:
    """A function from Arrow's Python values of a type to JSON's; None if they are the same."""
    if pa.types.is_map(kind):
        inner = to_plain(kind.item_type)
        if inner is None:
            return lambda pairs: {str(key): value for key, value in pairs}
        return lambda pairs: {str(key): None if value is None else inner(value) for key, value in pairs}
    if pa.types.is_struct(kind):
        inners = {field.name: to_plain(field.type) for field in kind}
        if not any(inners.values()):
            return None
        return lambda struct: {name: _apply(inners[name], value) for name, value in struct.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = to_plain(kind.value_type)
        return None if item is None else lambda values: [_apply(item, value) for value in values]
    return None


def _apply(plain: Plain | None, value: Any) -> Any:
    return value if plain is None or value is None else plain(value)
