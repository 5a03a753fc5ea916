"""The public surface as OpenAPI 3.1, printed from the route table and the types of the requests."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.errors import TABLE
from penstock.server.http.openapi_schemas import ANSWERS, ANSWERS_OF, ENVELOPE, JUDGED, NAMES
from penstock.server.http.routes import ROUTES, Route, variables

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "status", "retryable", "hint"],
            "properties": {
                "code": {"enum": sorted(TABLE)},
                "message": {"type": "string"},
                "status": {"type": "integer"},
                "retryable": {"type": "boolean"},
                "hint": {"type": "string"},
                "ref": {"type": "string"},
                "retryAfterMs": {"type": "integer"},
            },
        }
    },
}

_ROWS_HEADERS = {
    name: {"description": text, "required": True, "schema": {"type": "integer"}}
    for name, text in (
        ("X-Penstock-Next", "Where to go on: the offset behind the last row of this answer"),
        ("X-Penstock-End", "How far the journal reached"),
        ("X-Penstock-Epoch", "Grows when a recovery lost rows"),
    )
}


LINES = "application/x-ndjson"


def document(version: str) -> bytes:
    """The document, encoded once."""
    kinds = [kind for route in ROUTES for kind in (route.body, route.query) if kind is not None]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    _describe_envelopes(schemas)
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Penstock",
                "version": version,
                "description": "A queue for envelopes with credits, leases and dead letters.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "paths": paths,
            "components": {
                "schemas": {**schemas, "Error": _ERROR, **ANSWERS},
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{}, {"bearer": []}],
        }
    )


def _describe_envelopes(schemas: dict[str, Any]) -> None:
    """An envelope is raw bytes to us; readers want to know what is in it."""
    schemas["Envelope"] = ENVELOPE
    reference = {"$ref": "#/components/schemas/Envelope"}
    enqueue = schemas["EnqueueRequest"]["properties"]
    enqueue["envelope"] = reference
    enqueue["envelopes"] = {"type": "array", "items": reference, "minItems": 1}
    schemas["TryRequest"]["properties"]["envelope"] = reference
    schemas["ValidateRequest"]["properties"]["envelope"] = JUDGED
    schemas["EnqueueRequest"]["oneOf"] = [{"required": ["envelope"]}, {"required": ["envelopes"]}]


def _answer(route: Route) -> dict[str, Any]:
    content_type = route.content_type.split(";")[0]
    schema: dict[str, Any] = {"type": "object"} if content_type == "application/json" else {"type": "string"}
    if route.name in ANSWERS_OF:
        schema = {"$ref": f"#/components/schemas/{ANSWERS_OF[route.name]}"}
    answer: dict[str, Any] = {"description": "Done", "content": {content_type: {"schema": schema}}}
    if route.name == "journal_rows":
        answer["headers"] = _ROWS_HEADERS
    return answer


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    problem = {
        "description": "Refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    responses: dict[str, Any] = {
        str(status): problem for status in sorted({kind.status for kind in TABLE.values()})
    }
    if route.upgrade:
        responses["101"] = {"description": "Switching to WebSocket"}
        if route.events:
            text = {"text/event-stream": {"schema": {"type": "string"}}}
            responses["200"] = {"description": "Events, without an end", "content": text}
    else:
        responses["200"] = _answer(route)
    if route.name == "welcome":  # words for those who take no HTML, and where there is no console
        responses["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    if route.name == "console_sign_out":
        responses["204"] = {"description": "Signed out"}
        del responses["200"]
    if route.name == "health":
        responses["503"] = {**_answer(route), "description": "Shutting down"}
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "responses": responses}
    parameters = []
    for name in variables(route.path):
        shape = NAMES.get(name, {"type": "string"})
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
        lines = {
            "type": "string",
            "description": "Envelopes with their `to`, one a line; `id` and `ts` are filled",
        }
        operation["requestBody"] = {"required": True, "content": {LINES: {"schema": lines}}}
    return operation
