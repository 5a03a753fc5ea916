"""Typed queries and bodies, and rejections as replies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.errors import Refusal
from penstock.dialects.courier.operations.queries import PeekRequest
from penstock.dialects.courier.sessions.pull import PullRequest
from penstock.server.http import routes
from penstock.server.http.request import AnyQuery, NoQuery, Request, error_reply, parse_body, parse_query


def test_a_query_is_read_as_its_type_without_the_token() -> None:
    query = parse_query({"stream": "q", "max": "3", "access_token": "t"}, PeekRequest)
    assert query == PeekRequest("q", max=3)
    assert parse_query({}, NoQuery) == NoQuery()
    assert parse_query({"access_token": "t"}, NoQuery) == NoQuery()
    assert isinstance(parse_query({"x": "1"}, AnyQuery), AnyQuery)


@pytest.mark.parametrize("given", [{}, {"stream": "q", "more": "1"}, {"stream": "q", "max": "many"}])
def test_a_query_that_does_not_fit_is_refused(given: dict[str, str]) -> None:
    refusal = parse_query(given, PeekRequest)
    assert isinstance(refusal, Refusal) and refusal.code == "InvalidRequest"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"stream": 1}', "InvalidRequest"),
        (b'{"stream": "q", "more": 1}', "InvalidRequest"),
        (b"[]", "InvalidRequest"),
        (b"", "InvalidJSON"),
        (b"{", "InvalidJSON"),
        (b'{"stream": "\xff"}', "InvalidJSON"),
        (b'{"stream": "q", "stream": "r"}', "InvalidJSON"),
        (b'{"x":' + b"[" * 100_000, "InvalidRequest"),
    ],
    ids=["type", "unknown", "array", "empty", "cut", "utf-8", "twice", "deep"],
)
def test_a_body_that_does_not_fit_is_refused(data: bytes, code: str) -> None:
    refusal = parse_body(data, PullRequest)
    assert isinstance(refusal, Refusal) and refusal.code == code


def test_a_request_is_parsed_by_its_route_and_the_query_comes_first() -> None:
    def asked(data: bytes, **parameters: str) -> Any:
        found = routes.find("POST", "/v1/pull")
        assert found is not None
        request = Request(*found, parameters, {}, "peer", data=data)
        return request.parse(), request.body

    assert asked(b'{"stream": "q"}') == (None, PullRequest("q"))
    refusal, body = asked(b"{", x="1")
    assert refusal.code == "InvalidRequest" and body is None
    assert asked(b"{")[0].code == "InvalidJSON"


def test_a_refusal_says_when_to_try_again_and_how_to_sign_in() -> None:
    full = error_reply(Refusal("QuotaExceeded", "full", retry_after_ms=1_001))
    assert (full.status, full.headers) == (429, {"Retry-After": "2"})
    assert msgspec.json.decode(full.body)["error"]["retryAfterMs"] == 1_001
    assert error_reply(Refusal("Draining", "bye")).headers == {"Retry-After": "1"}
    assert error_reply(Refusal("Unauthorized", "who?")).headers == {"WWW-Authenticate": "Bearer"}
    assert error_reply(Refusal("Forbidden", "no")).headers == {}
