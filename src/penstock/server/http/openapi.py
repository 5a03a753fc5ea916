"""The HTTP API as OpenAPI 3.1, printed from the route table and the types of queries, bodies and answers into `templates/openapi.json`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import TABLE
from penstock.server.http.answers import CHECKED_ENVELOPE, ENVELOPE
from penstock.server.http.request import Route

_ROWS_HEADERS = {
    name: {"description": text, "required": True, "schema": {"type": "integer"}}
    for name, text in (
        ("X-Penstock-Next", "Where to go on: the offset behind the last row of this answer"),
        ("X-Penstock-End", "How far the journal reached"),
        ("X-Penstock-Epoch", "Grows when a recovery lost rows"),
    )
}


_TEMPLATE = Path(__file__).parent / "templates" / "openapi.json"
LINES = "application/x-ndjson"
_SCHEMA = "#/components/schemas/"
_FILE_NAME = "^[A-Za-z0-9._-]{1,%d}$"
_PATH_TYPES: dict[str, dict[str, Any]] = {
    "app": {"type": "string", "pattern": _FILE_NAME % 64},
    "batch": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    "part": {"type": "string", "pattern": _FILE_NAME % 128},
    "rule": {"type": "string", "pattern": _FILE_NAME % 128},
    "name": {"type": "string", "pattern": _FILE_NAME % 64},
}
"""Variable parts of paths that are more than any text."""


def document(version: str, routes: Iterable[Route]) -> bytes:
    """The document, encoded once."""
    kinds: list[type[msgspec.Struct]] = [ENVELOPE, CHECKED_ENVELOPE]
    for route in routes:
        kinds += [kind for kind in (route.body, route.query, *_answers(route)) if kind is not None]
    _, made = msgspec.json.schema_components(kinds, ref_template=_SCHEMA + "{name}")
    schemas = _rename(made)
    _describe_envelopes(schemas)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    tree = msgspec.json.decode(_TEMPLATE.read_bytes())
    tree["info"]["version"], tree["paths"] = version, paths
    error = tree["components"]["schemas"].pop("Error")
    error["properties"]["error"]["properties"]["code"]["enum"] = sorted(TABLE)
    tree["components"]["schemas"] = {**schemas, "Error": error}
    return msgspec.json.encode(tree)


def _answers(route: Route) -> tuple[type[msgspec.Struct], ...]:
    if route.answer is None:
        return ()
    return route.answer if isinstance(route.answer, tuple) else (route.answer,)


def _short(name: str) -> str:
    """The name of a type in the document: without `Reply`, which only sets it apart in Python."""
    return name.removesuffix("Reply")


def _rename(made: dict[str, Any]) -> dict[str, Any]:
    text = msgspec.json.encode({_short(name): schema for name, schema in made.items()}).decode()
    renamed: dict[str, Any] = msgspec.json.decode(
        re.sub(rf'"{_SCHEMA}(\w+)"', lambda found: f'"{_SCHEMA}{_short(found[1])}"', text)
    )
    return renamed


def _describe_envelopes(schemas: dict[str, Any]) -> None:
    """To the server an envelope is raw bytes, so its schema is put in here."""
    reference = {"$ref": "#/components/schemas/Envelope"}
    enqueue = schemas["EnqueueRequest"]["properties"]
    enqueue["envelope"] = reference
    enqueue["envelopes"] = {"type": "array", "items": reference, "minItems": 1}
    schemas["TryRequest"]["properties"]["envelope"] = reference
    schemas["ValidateRequest"]["properties"]["envelope"] = {"$ref": _SCHEMA + "CheckedEnvelope"}
    schemas["EnqueueRequest"]["oneOf"] = [{"required": ["envelope"]}, {"required": ["envelopes"]}]


def _answer(route: Route) -> dict[str, Any]:
    content_type = route.content_type.split(";")[0]
    schema: dict[str, Any] = {"type": "object"} if content_type == "application/json" else {"type": "string"}
    references = [{"$ref": _SCHEMA + _short(kind.__name__)} for kind in _answers(route)]
    if references:
        schema = references[0] if len(references) == 1 else {"anyOf": references}
    answer: dict[str, Any] = {"description": "Done", "content": {content_type: {"schema": schema}}}
    if route.name == "journal_rows":
        answer["headers"] = _ROWS_HEADERS
    return answer


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    problem = {
        "description": "Refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    responses: dict[str, Any] = {str(status): problem for status in sorted({kind.status for kind in TABLE.values()})}
    if route.socket is not None:
        responses["101"] = {"description": "Switching to WebSocket"}
        if route.has_events:
            text = {"text/event-stream": {"schema": {"type": "string"}}}
            responses["200"] = {"description": "Events, without an end", "content": text}
    else:
        responses["200"] = _answer(route)
    if route.name == "welcome":
        responses["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    if route.name == "console_sign_out":
        responses["204"] = {"description": "Signed out"}
        del responses["200"]
    if route.name == "health":
        responses["503"] = {**_answer(route), "description": "Shutting down"}
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "responses": responses}
    parameters = []
    for name in re.findall(r"\{(\w+)\}", route.path):
        shape = _PATH_TYPES.get(name, {"type": "string"})
        parameters.append({"name": name, "in": "path", "required": True, "schema": shape})
    query = schemas.get(route.query.__name__, {})
    for name, shape in query.get("properties", {}).items():
        required = name in query.get("required", [])
        parameters.append({"name": name, "in": "query", "required": required, "schema": shape})
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        reference = {"$ref": f"#/components/schemas/{route.body.__name__}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    elif route.takes_lines:
        lines = {"type": "string", "description": "Envelopes with their `to`, one a line; `id` and `ts` are filled"}
        operation["requestBody"] = {"required": True, "content": {LINES: {"schema": lines}}}
    return operation
