"""Prints the reference pages and the effective config from the types, so that they cannot drift."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from string import Template
from typing import Any

import msgspec
from msgspec import NODEFAULT, UNSET
from msgspec.inspect import DictType, StructType, Type, UnionType, VarTupleType, type_info

from penstock.core.errors import TABLE
from penstock.server.config import environment, validation
from penstock.server.config.load import Config
from penstock.server.config.sections import Sections
from penstock.server.files import yaml_tree

MASK = "********"

_TEMPLATES = Path(__file__).parent / "templates"
"""The texts before the printed tables."""

_SENTENCES = {
    "triggers[]": "A rule that is tried on every new envelope. Rules are checked by this version, but not run yet.",
    "journal.retention": "How long sealed history is kept. Zero means no limit.",
    "spaces[]": "One MEW space: the path of a `space.yaml`, relative to the directory of this file, or a mapping of the same "
    "shape. Keys that are not listed here are ignored, except under `streams`. See `docs/how-to/gateway.md`.",
    "limits": "The bounds of the server, with the reason for each default.",
    "journal": "How records become durable, and how long they are kept. Not used with `--data none`.",
}


def to_plain(config: Config) -> dict[str, Any]:
    """The effective config as it is written in a file, with its tokens masked."""
    plain: dict[str, Any] = msgspec.to_builtins(config)
    for name in ("source", "notices", "serves_courier"):
        del plain[name]
    for token in plain["auth"]["tokens"]:
        token["token"] = MASK
    for space in plain["spaces"]:
        for one in (space.get("participants") or {}).values() if isinstance(space, dict) else ():
            if one and one["tokens"]:
                one["tokens"] = [MASK] * len(one["tokens"])
    return plain


def to_yaml(config: Config) -> str:
    """The effective config as YAML that loads again, except for its tokens, which are masked."""
    return yaml_tree.dump(to_plain(config))


def reference() -> str:
    """The reference of the config file, in Markdown."""
    table = "".join(f"| `{name}` | {text} |\n" for name, text in environment.NAMES.items())
    head = Template((_TEMPLATES / "config_page.txt").read_text("utf-8"))
    parts = [head.substitute(environment=table)]
    for field in msgspec.structs.fields(Sections):
        kind = type_info(field.type)
        if _structs_in(kind):
            parts.append(_section(_step(field.encode_name, kind), kind, 2))
        else:  # one value, without keys of its own
            parts.append(f"## `{field.encode_name}`\n\n{field_docs(Sections)[field.name]}\n")
    return "\n".join(parts)


def error_reference() -> str:
    """The reference of all error codes, in Markdown."""
    rows = [
        f"| `{kind.code}` | {kind.status} | {kind.close or ''} | {'yes' if kind.retryable else 'no'} "
        f"| {kind.meaning} | {kind.hint} |\n"
        for kind in TABLE.values()
    ]
    return (_TEMPLATES / "errors_page.txt").read_text("utf-8") + "".join(rows)


def field_docs(struct: type) -> dict[str, str]:
    """The texts under the fields of a class, by field name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = " ".join(doc.split())
            case _:
                pass
    return docs


def _section(path: str, kind: Type, level: int) -> str:
    """One type as a heading, a sentence and a table, followed by the types of its fields."""
    struct = _structs_in(kind)[0]
    ancestry = [kind for kind in reversed(struct.cls.__mro__) if kind.__module__.startswith("penstock.")]
    docs = {name: text for kind in ancestry for name, text in field_docs(kind).items()}
    sentence = _SENTENCES.get(path) or (inspect.getdoc(struct.cls) or "").splitlines()[0]
    lines = [f"{'#' * level} `{path}`", "", sentence, ""]
    lines += ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    if struct.tag:
        lines.append(f"| `{struct.tag_field}` | `{struct.tag}` | required | the kind of the entry |")
    nested = []
    for field in struct.fields:
        meaning = docs.get(field.name, f"as `streams.{field.encode_name}`")
        value = "a whole number of 1 or more" if path == "limits" else _value(field.type)
        if any(_is_repeated(path, inner) for inner in _structs_in(field.type)):
            value = f"as `streams.{'retry' if field.encode_name == 'retry' else 'rate'}`"
        lines.append(f"| `{field.encode_name}` | {value} | {_default(field)} | {meaning} |")
        for inner in _structs_in(field.type):
            if not _is_repeated(path, inner):
                step = f"{path}.{_step(field.encode_name, field.type)}"
                nested.append(_section(step + (f" {inner.tag}" if inner.tag else ""), inner, 3))
    return "\n".join(lines) + "\n" + "".join("\n" + text for text in nested)


def _value(kind: Type) -> str:
    """The type column; structs have their own tables."""
    words = validation.describe(kind).replace("a text that is not empty", "a text").removesuffix(" or nothing")
    structs = _structs_in(kind)
    if not structs:
        return words
    words = words.replace(" or ".join(["a mapping"] * len(structs)), "a mapping")
    return words.replace("each entry a mapping", "see below").replace("a mapping", "see below")


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default if field.default_factory is NODEFAULT else field.default_factory()
    if value in (NODEFAULT, UNSET, None) or isinstance(value, msgspec.Struct):
        return ""
    if isinstance(value, tuple | list | dict):
        shown = msgspec.json.encode(value).decode()
        return "none" if not value else f"`{shown}`"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _structs_in(kind: Type) -> list[StructType]:
    """The structs of a field, whether optional, in a list or by name; several when they have a tag."""
    match kind:
        case StructType():
            return [kind]
        case VarTupleType(item_type=inner) | DictType(value_type=inner):
            return _structs_in(inner)
        case UnionType(types=types):
            found = [struct for inner in types for struct in _structs_in(inner)]
            return found if all(struct.tag for struct in found) else found[:1]
        case _:
            return []


def _step(name: str, kind: Type) -> str:
    match kind:
        case VarTupleType():
            return f"{name}[]"
        case DictType():
            return f"{name}.<pattern>"
        case _:
            return name


def _is_repeated(path: str, struct: StructType) -> bool:
    """Whether the type already has a table under `streams`: `retry` of a pattern is `retry` of all streams."""
    return path != "streams" and struct.cls.__name__ in ("RetrySettings", "RateSettings")
