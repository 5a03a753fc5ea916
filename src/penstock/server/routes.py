"""The HTTP routes as one table: what is served, what is documented, and what each needs.

`api.py` answers from it, `openapi.py` prints it, and an unknown path is told the nearest of it.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated

import msgspec

from penstock.dialects.courier.operations import (
    EnqueueRequest,
    PullRequest,
    RedriveRequest,
    SendRequest,
    SettleRequest,
    StreamRequest,
)
from penstock.dialects.courier.subscribe import SubscribeQuery

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class PeekQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/peek`."""

    stream: str
    state: str = "ready"
    max: int = 10


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A query that only names a stream."""

    stream: str


class JournalQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/journal/rows`: rows `from` to `to - 1`; what is left out reaches as far as there is."""

    shard: int = 0
    first: Offset | None = msgspec.field(default=None, name="from")
    end: Offset | None = msgspec.field(default=None, name="to")
    columns: str | None = None
    """Names separated by commas; else all of them."""
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A query without parameters."""


class Route(msgspec.Struct, frozen=True):
    """One method on one path. A path may end its fixed part with `{name}`, which takes slashes too."""

    method: str
    path: str
    name: str
    summary: str
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] = NoQuery
    is_open: bool = False
    """Served without a token."""
    upgrade: bool = False
    """A WebSocket."""
    content_type: str = "application/json"


ROUTES = (
    Route("POST", "/v1/enqueue", "enqueue", "Append one envelope, or an array of them", EnqueueRequest),
    Route("POST", "/v1/send", "send", "Send a message: id, ts and from are filled", SendRequest),
    Route("POST", "/v1/pull", "pull", "Take envelopes, waiting for the first", PullRequest),
    Route("POST", "/v1/settle", "settle", "Ack, nack, release, term or extend a lease", SettleRequest),
    Route("POST", "/v1/redrive", "redrive", "Send dead letters back to their stream", RedriveRequest),
    Route("POST", "/v1/purge", "purge", "Drop what waits in a stream (admin)", StreamRequest),
    Route("GET", "/v1/stats", "stats", "Figures of one stream", query=StreamQuery),
    Route("GET", "/v1/metrics", "metrics", "Figures and counters of every stream"),
    Route("GET", "/v1/peek", "peek", "Look at envelopes without taking them", query=PeekQuery),
    Route("GET", "/v1/envelopes/{id}", "where", "Where an envelope is"),
    Route("GET", "/v1/streams/{stream}/explain", "explain", "Why nothing flows in a stream"),
    Route("GET", "/v1/journal", "journal", "How far the journal reaches, and its columns (operator)"),
    Route("GET", "/v1/journal/rows", "journal_rows", "Rows of the journal as an Arrow IPC stream (operator)",
          query=JournalQuery, content_type="application/vnd.apache.arrow.stream"),
    Route("POST", "/v1/journal/seal", "journal_seal", "Move what is committed to the Delta table now (operator)"),
    Route("GET", "/v1/subscribe", "subscribe", "WebSocket: deliveries of one stream",
          query=SubscribeQuery, upgrade=True),
    Route("GET", "/v1/control", "control", "WebSocket: Control v1 lines", upgrade=True),
    Route("GET", "/health", "health", "Whether the server is well", is_open=True),
    Route("GET", "/metrics", "prometheus", "Metrics for Prometheus",
          content_type="text/plain; version=0.0.4; charset=utf-8"),
    Route("GET", "/openapi.json", "openapi", "This surface as OpenAPI 3.1", is_open=True),
    Route("GET", "/", "welcome", "A word for people", is_open=True, content_type="text/plain; charset=utf-8"),
)  # fmt: skip

_EXACT = {(route.method, route.path): route for route in ROUTES if "{" not in route.path}
_TEMPLATES = tuple(
    (route, route.path.partition("{")[0], route.path.partition("}")[2])
    for route in ROUTES
    if "{" in route.path
)
_PATHS = tuple(dict.fromkeys(route.path for route in ROUTES))


class Match(msgspec.Struct, frozen=True):
    """A route and the variable part of the path."""

    route: Route
    value: str = ""


def find(method: str, path: str) -> Match | None:
    """The route of a request. HEAD is GET; the transport leaves the body out."""
    method = "GET" if method == "HEAD" else method
    route = _EXACT.get((method, path))
    if route is not None:
        return Match(route)
    for template, before, after in _TEMPLATES:
        if method == template.method and path.startswith(before) and path.endswith(after):
            value = path[len(before) : len(path) - len(after) or None]
            if value:
                return Match(template, value)
    return None


def methods(path: str) -> list[str]:
    """The methods that a path takes."""
    return [method for method in ("GET", "HEAD", "POST") if find(method, path) is not None]


def nearest(path: str) -> str | None:
    """The route somebody may have meant."""
    close = get_close_matches(path, _PATHS, n=1, cutoff=0.5)
    return close[0] if close else None
