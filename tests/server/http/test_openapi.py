"""The OpenAPI document as a tree: it loses nothing that clients rely on, and every route describes its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.server.http.openapi import document
from penstock.server.http.request import Route
from penstock.server.http.routes import ROUTES

OLD = Path(__file__).parent / "fixtures" / "openapi.json"
"""The document before answers became structs, as `outline` shows it."""


def outline(tree: dict[str, Any]) -> dict[str, Any]:
    """Each operation: its parameters, the fields of its body and of its answers, with their types; references resolved."""
    found: dict[str, Any] = {}
    for path, methods in tree["paths"].items():
        for method, operation in methods.items():
            schemas = tree["components"]["schemas"]
            body = operation.get("requestBody", {}).get("content", {})
            found[f"{method.upper()} {path}"] = {
                "id": operation["operationId"],
                "parameters": {
                    f"{one['in']} {one['name']}": fields(one["schema"], schemas) | {"required": one["required"]}
                    for one in operation.get("parameters", [])
                },
                "body": {kind: fields(one["schema"], schemas) for kind, one in body.items()},
                "responses": {
                    status: {
                        "content": {
                            kind: fields(one["schema"], schemas) for kind, one in response.get("content", {}).items()
                        },
                        "headers": sorted(response.get("headers", {})),
                    }
                    for status, response in operation["responses"].items()
                    if status < "300"
                },
            }
    return found


def fields(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Every field by its path: its types, and whether it is always there."""
    found: dict[str, Any] = {}
    _walk(schema, schemas, "", found)
    return {path: sorted(kinds) for path, kinds in sorted(found.items())}


def _walk(schema: dict[str, Any], schemas: dict[str, Any], path: str, found: dict[str, set[str]]) -> None:
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    kinds = found.setdefault(path, set())
    for one in [*schema.get("anyOf", []), *schema.get("allOf", [])]:
        _walk(one, schemas, path, found)
    types = schema.get("type", [])
    kinds.update([types] if isinstance(types, str) else types)
    if "enum" in schema:
        kinds.discard("string")
        kinds.update(f"={value}" for value in schema["enum"])
    for name, inner in schema.get("properties", {}).items():
        _walk(inner, schemas, f"{path}.{name}", found)
        if name in schema.get("required", []) and path.count(".") < 8:
            found[f"{path}.{name}"].add("required")
    if isinstance(schema.get("items"), dict):
        _walk(schema["items"], schemas, f"{path}[]", found)
    if isinstance(schema.get("additionalProperties"), dict):
        _walk(schema["additionalProperties"], schemas, f"{path}.*", found)


NEW = outline(msgspec.json.decode(document("", ROUTES)))


@pytest.mark.parametrize("name", msgspec.json.decode(OLD.read_bytes()))
def test_an_operation_keeps_its_parameters_fields_and_types(name: str) -> None:
    old = msgspec.json.decode(OLD.read_bytes())[name]
    new = NEW[name]
    assert new["id"] == old["id"] and new["parameters"] == old["parameters"] and new["body"] == old["body"]
    assert new["responses"].keys() == old["responses"].keys()
    for status, response in old["responses"].items():
        assert new["responses"][status]["headers"] == response["headers"]
        assert new["responses"][status]["content"].keys() == response["content"].keys()
        for kind, was in response["content"].items():
            now = new["responses"][status]["content"][kind]
            assert {path: now.get(path) for path in was} == was, status


def test_no_operation_came_or_went() -> None:
    assert NEW.keys() == msgspec.json.decode(OLD.read_bytes()).keys()


def test_a_lost_field_and_a_changed_type_are_noticed() -> None:
    tree = msgspec.json.decode(document("", ROUTES))
    del tree["components"]["schemas"]["Sent"]["properties"]["seq"]
    tree["components"]["schemas"]["Purged"]["properties"]["purged"]["type"] = "string"
    changed = outline(tree)
    for name in ("POST /v1/send", "POST /v1/purge"):
        assert changed[name] != NEW[name]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_route_that_answers_json_says_what_it_answers(route: Route) -> None:
    if route.content_type == "application/json" and route.socket is None:
        assert route.answer is not None or route.name in ("openapi", "console_sign_out")
    assert route.handler is not None or route.socket is not None


def test_the_names_of_routes_and_their_paths_are_unique() -> None:
    assert len({route.name for route in ROUTES}) == len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
