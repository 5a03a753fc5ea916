"""Compares a tree of plain values with a type and finds every error, where a decoder stops at the first.

It reads the types through msgspec, so the classes of `sections.py` are the only schema.
"""

# Not jsonschema-rs: it reports `streams.retry` as one `anyOf` error without the key inside, and it accepts 1.0 as an integer, which
# msgspec rejects. Its import took 195 ms (measured once, on a loaded machine).

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from msgspec import inspect

from penstock.server.files.yaml_tree import KeyPath

FieldError: TypeAlias = tuple[KeyPath, str]

SHOWN_MAX = 40


def find_errors(
    value: Any, kind: inspect.Type, path: KeyPath, is_secret: Callable[[KeyPath], bool]
) -> Iterator[FieldError]:
    """Find every mismatch between a value and a type; secret values are never quoted."""
    match kind:
        case inspect.StructType():
            if isinstance(value, dict):
                yield from _struct(value, kind, path, is_secret)
                return
        case inspect.DictType(value_type=value_type):
            if isinstance(value, dict):
                for key, item in value.items():
                    if not key:
                        yield path, "holds an empty key"
                    yield from find_errors(item, value_type, (*path, key), is_secret)
                return
        case inspect.VarTupleType(item_type=item_type, min_length=least):
            if isinstance(value, list):
                if len(value) < (least or 0):
                    yield path, f"holds {len(value)} entries, expected {least} or more"
                for index, item in enumerate(value):
                    yield from find_errors(item, item_type, (*path, index), is_secret)
                return
        case inspect.UnionType(types=types):
            yield from _union(value, types, path, is_secret)
            return
    if _fits_scalar(value, kind):
        return
    shown = "a value" if is_secret(path) else shorten(value)
    yield path, f"got {shown}, expected {describe(kind)}"


def _struct(
    value: dict[str, Any], kind: inspect.StructType, path: KeyPath, is_secret: Callable[[KeyPath], bool]
) -> Iterator[FieldError]:
    fields = {field.encode_name: field for field in kind.fields}
    for key, item in value.items():
        if key in fields:
            yield from find_errors(item, fields[key].type, (*path, key), is_secret)
        elif kind.forbid_unknown_fields:
            yield (*path, key), "unknown key" + suggestion(key, list(fields))
    for name, field in fields.items():
        if field.required and name not in value:
            yield (*path, name), f"missing, expected {describe(field.type)}"


def _union(
    value: Any, types: tuple[inspect.Type, ...], path: KeyPath, is_secret: Callable[[KeyPath], bool]
) -> Iterator[FieldError]:
    kinds = {kind.tag: kind for kind in types if isinstance(kind, inspect.StructType) and kind.tag_field}
    if kinds and isinstance(value, dict):
        yield from _tagged(value, kinds, path, is_secret)
        return
    found = [list(find_errors(value, kind, path, is_secret)) for kind in types]
    if not all(found):
        return
    # A container is compared with the one type that is a container too, so that errors have deep paths.
    for kind, errors in zip(types, found, strict=True):
        if _is_container(value, kind):
            yield from errors
            return
    shown = "a value" if is_secret(path) else shorten(value)
    yield path, f"got {shown}, expected {' or '.join(describe(kind) for kind in types)}"


def _tagged(
    value: dict[Any, Any], kinds: dict[Any, inspect.StructType], path: KeyPath, is_secret: Callable[[KeyPath], bool]
) -> Iterator[FieldError]:
    """One of several kinds of mapping, distinguished by a tag."""
    key = next(iter(kinds.values())).tag_field
    assert key is not None
    named = ", ".join(f"`{name}`" for name in kinds)
    if key not in value:
        yield (*path, key), f"missing, expected one of {named}"
    elif value[key] not in list(kinds):
        yield (*path, key), f"got {shorten(value[key])}, expected one of {named}"
    else:
        rest = {name: item for name, item in value.items() if name != key}
        yield from find_errors(rest, kinds[value[key]], path, is_secret)


def _is_container(value: Any, kind: inspect.Type) -> bool:
    match kind:
        case inspect.StructType() | inspect.DictType():
            return isinstance(value, dict)
        case inspect.VarTupleType():
            return isinstance(value, list)
        case _:
            return False


def _fits_scalar(value: Any, kind: inspect.Type) -> bool:
    match kind:
        case inspect.AnyType():
            return True
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType(ge=least, le=most):
            return isinstance(value, int) and not isinstance(value, bool) and _within(value, least, most)
        case inspect.FloatType(ge=least, le=most):
            return isinstance(value, int | float) and not isinstance(value, bool) and _within(value, least, most)
        case inspect.StrType(min_length=shortest):
            return isinstance(value, str) and len(value) >= (shortest or 0)
        case inspect.LiteralType(values=values):
            return value in values
        case _:
            return False


def _within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def describe(kind: inspect.Type) -> str:
    """A type in words; also the type column of the reference."""
    match kind:
        case inspect.IntType(ge=least):
            return "a whole number" + ("" if least is None else f" of {least} or more")
        case inspect.FloatType(ge=least, le=most):
            return "a number" + ("" if least is None or most is None else f" from {least:g} to {most:g}")
        case inspect.StrType(min_length=shortest):
            return "a text that is not empty" if shortest else "a text"
        case inspect.BoolType():
            return "`true` or `false`"
        case inspect.NoneType():
            return "nothing"
        case inspect.LiteralType(values=values):
            named = ", ".join(f"`{value}`" for value in values)
            return f"one of {named}" if len(values) > 1 else named
        case inspect.VarTupleType(item_type=item):
            return f"a list, each entry {describe(item)}"
        case inspect.StructType() | inspect.DictType():
            return "a mapping"
        case inspect.UnionType(types=types):
            return " or ".join(describe(kind) for kind in types)
        case _:
            return "any value"


def shorten(value: Any) -> str:
    """A value quoted for a message, truncated when it is long."""
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case bool():
            return f"`{str(value).lower()}`"
    text = repr(value) if isinstance(value, str) and not value.isprintable() else str(value)
    return f"`{text}`" if len(text) <= SHOWN_MAX else f"`{text[:SHOWN_MAX]}…`"


def suggestion(key: str, known: list[str]) -> str:
    """The nearest valid key, as the end of a message; ignores case, `_` and `-`."""
    plain = {_plain(name): name for name in known}
    near = difflib.get_close_matches(_plain(key), plain, n=1)
    if near:
        return f"; did you mean `{plain[near[0]]}`?"
    return "; known keys are " + ", ".join(f"`{name}`" for name in known)


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")
