"""The route table: which route a path finds, and the error for an unknown path."""

from __future__ import annotations

import pytest

from penstock.server.http import routes


def found(method: str, path: str) -> tuple[str, tuple[str, ...]] | None:
    match = routes.find(method, path)
    return None if match is None else (match[0].name, match[1])


@pytest.mark.parametrize(
    ("method", "path", "name", "values"),
    [
        ("POST", "/v1/enqueue", "enqueue", ()),
        ("GET", "/v1/envelopes/a/b c", "where", ("a/b c",)),
        ("GET", "/v1/streams/agents/sam/inbox/explain", "explain", ("agents/sam/inbox",)),
        ("POST", "/v1/triggers/try", "trigger_try", ()),
        ("PUT", "/v1/triggers/try", "trigger_put", ("try",)),
        ("GET", "/v1/triggers/r/explain", "trigger_explain", ("r",)),
        ("POST", "/v1/stage/app/7/parts/p", "stage_part", ("app", "7", "p")),
        ("HEAD", "/health", "health", ()),
        ("GET", "/", "welcome", ()),
    ],
)
def test_a_path_finds_its_route_and_its_variable_parts(
    method: str, path: str, name: str, values: tuple[str, ...]
) -> None:
    assert found(method, path) == (name, values)


@pytest.mark.parametrize(
    "path",
    ["/v1/enqueue/", "/v1/triggers/a/b", "/v1/stage/a/b/c/parts/d", "/v1/envelopes/", "/console/a/b", "//"],
)
def test_a_path_with_too_many_or_too_few_parts_finds_none(path: str) -> None:
    assert all(found(method, path) is None for method in ("GET", "POST", "PUT", "DELETE"))


def test_the_methods_of_a_path_are_those_of_its_routes() -> None:
    assert routes.methods("/v1/triggers/r") == ["GET", "HEAD", "PUT", "DELETE"]
    assert routes.methods("/v1/pull") == ["POST"]
    assert routes.methods("/nothing") == []


def test_a_typo_gets_the_nearest_path_as_a_hint() -> None:
    assert routes.nearest("/v1/enqeue") == "/v1/enqueue"
    assert routes.nearest("/completely/else/where/and/long") is None


def test_only_routes_that_repeat_safely_keep_their_replies() -> None:
    kept = {route.name for route in routes.ROUTES if route.is_idempotent}
    assert kept == {"enqueue", "send", "settle", "redrive", "purge", "drop"}


def test_an_open_route_is_never_an_administrators() -> None:
    assert not [route.name for route in routes.ROUTES if route.is_open and route.is_admin]
