"""Validates a topology file by the rules of the kernel's host, before the host starts it.

`schemas/topology.json` has the rules for single values; those between nodes and connections are here. Takes the parsed document and
returns every problem with its path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import jsonschema_rs

SCHEMA = Path(__file__).parents[1] / "schemas" / "topology.json"


def topology_problems(document: Any) -> list[str]:
    """All problems of a topology; empty when the host can start it."""
    import jsonschema_rs

    if isinstance(document, dict) and isinstance(document.get("topology"), dict):
        document = document["topology"]
    schema = msgspec.json.decode(SCHEMA.read_bytes())
    errors = jsonschema_rs.validator_for(schema, offline=True).iter_errors(document)
    return [*(_problem(error, schema) for error in errors), *_unknown_or_repeated(document)]


def _problem(error: jsonschema_rs.ValidationError, schema: Any) -> str:
    path = [*error.instance_path]
    for extra in getattr(error.kind, "unexpected", ()):
        return f"{_show([*path, extra])}: an external process has no such setting"
    if missing := getattr(error.kind, "property", None):
        return f"{_show([*path, missing])}: is missing"
    expected = schema["description"]
    for step in error.schema_path:
        schema = schema[step]
        expected = schema.get("description", expected) if isinstance(schema, dict) else expected
    return f"{_show(path)}: expected {expected}"


def _unknown_or_repeated(document: Any) -> Iterator[str]:
    nodes, links = ([*_mappings(document, name)] for name in ("nodes", "connections"))
    known: dict[str, int] = {}
    for number, node in nodes:
        if isinstance(id_ := node.get("id"), str) and (first := known.setdefault(id_, number)) != number:
            yield f"nodes[{number}].id: `{id_}` is also the id of nodes[{first}]"
    for number, link in links:
        for end in ("from", "to"):
            name, dot, _ = str(link.get(end)).partition(".")
            if name and dot and name not in known:
                yield f"connections[{number}].{end}: there is no node `{name}`"


def _mappings(document: Any, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    listed = document.get(name) if isinstance(document, dict) else None
    for number, one in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(one, dict):
            yield number, one


def _show(path: Sequence[str | int]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".") or "the document"
