"""Routes and requests as values: what the handlers are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.scopes import UNAUTHENTICATED, Principal
from penstock.dialects.courier.wire.envelopes import json_problem, to_refusal
from penstock.transports import content_encoding
from penstock.transports.exchanges import Exchange
from penstock.transports.http_replies import Reply, Upgrade, json_reply

if TYPE_CHECKING:
    from penstock.server.http.services import HttpServices

Done = Callable[[Reply], None]


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A query without parameters."""


class AnyQuery(msgspec.Struct):
    """A query that is ignored."""


class Route(msgspec.Struct, frozen=True):
    """One method on one path, which may hold names in braces; `{id}` and `{stream}` match slashes too."""

    method: str
    path: str
    name: str
    summary: str
    handler: Callable[[HttpServices, Request], Any] | None
    """Returns an `Outcome` of the queue, a reply, an answer to encode as JSON, or an awaitable of one of the last two.

    None: the route is a WebSocket only."""
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] = NoQuery
    answer: type[msgspec.Struct] | tuple[type[msgspec.Struct], ...] | None = None
    """What the JSON of a 200 looks like; several where it depends on the request."""
    socket: Callable[[HttpServices, Request], Upgrade | Refusal] | None = None
    """Opens a WebSocket."""
    is_open: bool = False
    """Served without a token."""
    is_admin: bool = False
    """Served to the operator and to tokens with `admin:*` only."""
    is_idempotent: bool = False
    """Honours `Idempotency-Key`. A pull does not: an old answer would hand out leases that have ended."""
    is_large: bool = False
    """The body may be as large as `limits.frame_max`."""
    takes_lines: bool = False
    """The body is JSON lines."""
    content_type: str = "application/json"

    @property
    def has_events(self) -> bool:
        """A plain request to this WebSocket route gets server-sent events."""
        return self.socket is not None and self.handler is not None


class Request(msgspec.Struct):
    """A request that found its route."""

    route: Route
    values: tuple[str, ...]
    """The variable parts of the path."""
    parameters: Mapping[str, str]
    """The query as it came."""
    headers: Mapping[str, str]
    peer: str
    is_head: bool = False
    principal: Principal = UNAUTHENTICATED
    now: Now = Now(0, 0)
    data: bytes = b""
    """The body as it came, without its content encoding."""
    is_checked: bool = False
    """Whether the JSON of the body has passed `check_request`."""
    query: Any = None
    """The query as the route's type."""
    body: Any = None
    """The body as the route's type."""

    def parse(self) -> Refusal | None:
        """Fill `query` and `body`; returns what is wrong with them."""
        route = self.route
        self.query = parse_query(self.parameters, route.query)
        if isinstance(self.query, Refusal):
            return self.query
        if route.body is not None:
            self.body = parse_body(self.data, route.body, is_checked=self.is_checked)
            if isinstance(self.body, Refusal):
                return self.body
        return None


_NO_QUERY = NoQuery()


def parse_query(parameters: Mapping[str, str], kind: type[msgspec.Struct]) -> Any:
    """The query as its type, or what is wrong with it."""
    if not parameters and kind is NoQuery:
        return _NO_QUERY
    given = {key: value for key, value in parameters.items() if key != "access_token"}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        return to_refusal(error)


def parse_body(data: bytes, kind: type[msgspec.Struct], *, is_checked: bool = False) -> Any:
    """A JSON body as its type, or what is wrong with it."""
    try:
        body = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        return to_refusal(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Refusal("InvalidJSON", f"the body is not JSON: {error}")
    problem = None if is_checked else json_problem(data)
    return body if problem is None else problem


def error_reply(refusal: Refusal, headers: dict[str, str] | None = None) -> Reply:
    if refusal.status in (429, 503):
        wait_ms = refusal.retry_after_ms or 1_000
        headers = {"Retry-After": str(ceil(wait_ms / 1000))}
    elif refusal.status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    return json_reply(refusal.status, {"error": refusal.wire()}, headers)


def body_refusal(exchange: Exchange, bound: int) -> Reply | None:
    """Why a body is not read."""
    if exchange.size is not None and exchange.size > bound:
        return too_large(bound)
    name = content_encoding.coding(exchange.headers.get("Content-Encoding"))
    if name is not None and name not in content_encoding.KNOWN:
        message = f"unsupported Content-Encoding `{name[:40]}`; use gzip or deflate"
        return error_reply(Refusal("UnsupportedEncoding", message), {"Accept-Encoding": "gzip, deflate"})
    return None


def inflate(body: bytes, name: str, bound: int) -> bytes | Reply:
    """The body without its content encoding."""
    try:
        return content_encoding.inflate(body, name, bound)
    except content_encoding.OversizeError:
        return too_large(bound)
    except content_encoding.EncodingError as error:
        return error_reply(Refusal("InvalidRequest", str(error), ref="Content-Encoding"))


def too_large(bound: int) -> Reply:
    return error_reply(Refusal("TooLarge", f"the body is over the bound of {bound} bytes"))
