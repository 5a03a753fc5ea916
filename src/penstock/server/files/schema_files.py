"""The directory of JSON Schemas: read, checked and compiled at start, never fetched from elsewhere.

A file that is not a JSON Schema, has a wrong name, or refers outside itself is a config problem, reported with its path.
The result is plain functions; the dialect decides when to call them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from penstock.core.json_checks import depth_problem
from penstock.dialects.courier.operations.payload_schemas import (
    MESSAGE_MAX,
    PROBLEMS_MAX,
    Compiled,
    Problem,
    Version,
    parse_version,
)
from penstock.dialects.courier.wire.envelopes import json_problem

if TYPE_CHECKING:
    import jsonschema_rs

FILES_MAX = 10_000
"""Schemas of one directory: each is compiled twice and kept."""
FILE_MAX = 1024 * 1024
"""Bytes of one schema."""
DEPTH_MAX = 64
"""Nesting of one schema: the same as of a payload."""
DETAILED_MAX = 500
"""Values of a payload whose problems are listed: each wrong value costs about 20 µs, even beyond `PROBLEMS_MAX`."""
PATH_MAX = 200
"""Characters of a path in a payload, whose keys the sender chooses."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OPEN_KEYS = ("additionalProperties", "unevaluatedProperties")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLES = ("items", "contains", "if", "then", "else", "additionalProperties", "unevaluatedProperties")


def read_schemas(folder: str | Path) -> tuple[dict[Version, Compiled], list[str]]:
    """The compiled schemas of a directory, and the problems of the others."""
    root = Path(folder)
    if not root.is_dir():
        return {}, [f"`{folder}` is not a directory"]
    shelf: dict[Version, Compiled] = {}
    problems: list[str] = []
    paths = sorted(islice(root.rglob("*.json"), FILES_MAX + 1))
    if len(paths) > FILES_MAX:
        return {}, [f"`{folder}` holds more than {FILES_MAX} schemas"]
    for path in paths:
        name = path.relative_to(root).as_posix()
        version = parse_version(name.removesuffix(".json"))
        if version is None:
            problems.append(f"`{name}` is not called `<namespace>/<name>@v<number>.json`")
        elif version in shelf:
            problems.append(f"`{name}` is the same version as another file: `{version}`")
        else:
            compiled = compile_schema(path)
            if isinstance(compiled, str):
                problems.append(f"`{name}`: {compiled}")
            else:
                shelf[version] = compiled
    return shelf, problems


def compile_schema(path: Path) -> Compiled | str:
    """Compile one file, or return what is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if len(data) > FILE_MAX:
        return f"has more than {FILE_MAX} bytes"
    problem = json_problem(data) or depth_problem(data, DEPTH_MAX)
    if problem is not None:
        return f"is not JSON: {problem.message}"
    schema = msgspec.json.decode(data)
    foreign = next(_foreign(schema), None)
    if foreign is not None:
        return f"refers to `{foreign}`, but a schema may only refer to itself, with `#…`"
    import jsonschema_rs

    try:
        strict = jsonschema_rs.validator_for(schema, offline=True)
        tolerant = jsonschema_rs.validator_for(opened(schema), offline=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return f"is not a JSON Schema: {' '.join(str(error).split())[:MESSAGE_MAX]}"
    has_details = not is_recursive(schema)
    return Compiled(_checker(strict, has_details), _checker(tolerant, has_details))


def _foreign(node: Any) -> Iterator[str]:
    """References that leave the file. Data that only looks like one is refused too; it is rare."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
                yield value
            yield from _foreign(value)
    elif isinstance(node, list):
        for value in node:
            yield from _foreign(value)


def opened(schema: Any) -> Any:
    """The schema with every closed object opened, so that a newer minor version may add fields."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _OPEN_KEYS and value is False:
            continue
        if key in _MAPS and isinstance(value, dict):
            result[key] = {name: opened(item) for name, item in value.items()}
        elif key in _LISTS and isinstance(value, list):
            result[key] = [opened(item) for item in value]
        elif key in _SINGLES:
            result[key] = [opened(item) for item in value] if isinstance(value, list) else opened(value)
        else:
            result[key] = value
    return result


def is_recursive(schema: Any) -> bool:
    """Whether a reference leads back to a schema that contains it. An anchor counts as one that does."""
    leads_to = {ref: set(_references(_target(schema, ref))) for ref in _references(schema)}
    while leads_to:
        ends = [ref for ref, found in leads_to.items() if not found & leads_to.keys()]
        if not ends:
            return True
        for ref in ends:
            del leads_to[ref]
    return False


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key in _REFERENCES and isinstance(value, str))
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _references(value)


def _target(schema: Any, ref: str) -> Any:
    """What a reference refers to; for an anchor, the reference itself."""
    for step in ref.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        schema = schema.get(name) if isinstance(schema, dict) else schema  # all items of a list
    return schema if ref == "#" or ref.startswith("#/") else {"$ref": ref}


def _checker(validator: jsonschema_rs.Validator, has_details: bool) -> Callable[[Any], list[Problem]]:
    def check(payload: Any) -> list[Problem]:
        if validator.is_valid(payload):
            return []
        if not has_details:  # they would cost time exponential in the depth of the payload
            return [Problem("payload", "#", "does not match; a schema that refers to itself gives no details")]
        if sum(map(msgspec.json.encode(payload).count, (b",", b"[", b"{"))) > DETAILED_MAX:
            message = f"does not match; a payload of more than {DETAILED_MAX} values gets no details"
            return [Problem("payload", "#", message)]
        errors = islice(validator.iter_errors(payload), PROBLEMS_MAX + 1)
        return [
            Problem(_path(error.instance_path), "/".join(["#", *map(str, error.schema_path)]), _short(error.message))
            for error in errors
        ]

    return check


def _path(steps: list[str | int]) -> str:
    text = "payload" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return _short(text, PATH_MAX)


def _short(text: str, length: int = MESSAGE_MAX) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[:length] + "…"
