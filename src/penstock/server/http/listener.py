"""The HTTP door: between the aiohttp listener and the API, it checks who comes in and opens sockets."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import NOBODY, Principal
from penstock.dialects.courier.sessions import subscribe, view_feed
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery, SubscribeSession, error_message
from penstock.dialects.courier.sessions.view_feed import LiveQuery
from penstock.server.auth.tokens import subprotocol
from penstock.server.courier.event_streams import EventStream, LiveUpgrade, open_events
from penstock.server.courier.frame_recorder import open_control
from penstock.server.engine.connections import Connection
from penstock.server.engine.runtime import Runtime
from penstock.server.http import cors
from penstock.server.http.messages import Request, error_reply
from penstock.server.http.queue_routes import Api
from penstock.server.http.routes import Match, methods
from penstock.server.logging import logs
from penstock.server.relay.supervisor import listen
from penstock.server.spaces.listener import SpaceEndpoint, is_for_spaces
from penstock.transports import content_encoding
from penstock.transports.http import (
    BodyMalformedError,
    BodyTooLargeError,
    Exchange,
    Reply,
    StreamingReply,
    Upgrade,
)
from penstock.transports.outbox import WebSocketTransport

SMALL_BODY = 64 * 1024
"""Bound on bodies of routes that take no envelopes."""
LARGE = ("enqueue", "send", "stage_part", "stage_commit", "space_send")
"""Routes whose bodies may be larger."""


class SubscribeUpgrade(Upgrade):
    """Opens a subscribe socket, or one that only says why it is refused."""

    def __init__(
        self,
        runtime: Runtime,
        principal: Principal,
        query: SubscribeQuery,
        refusal: Refusal | None,
        peer: str,
    ) -> None:
        self.message_max = runtime.machine.limits.message_max
        self._runtime = runtime
        self._principal = principal
        self._query = query
        self._refusal = refusal
        self._peer = peer

    def open(self, wire: WebSocketTransport) -> Connection | None:
        session = SubscribeSession(self._runtime, self._query)
        connection = self._refusal or self._runtime.open(session, wire, self._principal, self._peer)
        if isinstance(connection, Refusal):
            wire.send([error_message(connection)])
            wire.close(connection.kind.close or 1008, connection.code)
            return None
        session.open(self._runtime.scheduler.now())
        self._runtime.touch(connection)
        return connection


class ControlUpgrade(Upgrade):
    """Opens a WebSocket that carries Control v1 lines."""

    merge = True

    def __init__(self, api: Api, principal: Principal, peer: str) -> None:
        self.message_max = api.runtime.machine.limits.frame_max
        self._api = api
        self._principal = principal
        self._peer = peer

    def open(self, wire: WebSocketTransport) -> Connection | None:
        api = self._api
        connection = open_control(api.runtime, api.recorder, wire, self._principal, self._peer)
        if isinstance(connection, Refusal):
            wire.send([error_message(connection)])
            wire.close(connection.kind.close or 1008, connection.code)
            return None
        return connection


class HttpEndpoint:
    """The HTTP port: Courier's routes, and the spaces below `/participants`."""

    def __init__(self, api: Api, spaces: SpaceEndpoint, *, is_loopback_bind: bool) -> None:
        self._api = api
        self._runtime = api.runtime
        self._spaces = spaces
        self._is_loopback_bind = is_loopback_bind

    @property
    def body_max(self) -> int:
        return max(self._runtime.machine.limits.frame_max, self._spaces.body_max)

    async def handle(self, exchange: Exchange) -> Reply | StreamingReply | Upgrade:
        """Answer one request."""
        if is_for_spaces(
            exchange
        ):  # the errors of a space have MEW's format, so its paths are not in the table
            return await self._spaces.handle(exchange)
        answer = await self._answer(exchange)
        return self._with_cors(exchange, answer) if isinstance(answer, Reply) else answer

    def failed(self, exchange: Exchange, error: Exception) -> Reply:
        """The answer to a request whose handling raised."""
        if isinstance(error, BodyMalformedError):
            reply = self.malformed(str(error))
        elif is_for_spaces(exchange):
            return self._spaces.failed(exchange, error)
        elif isinstance(error, BodyTooLargeError):
            reply = _too_large(self._runtime.machine.limits.frame_max)
        elif isinstance(error, TimeoutError):
            reply = error_reply(Refusal("Timeout", "the body did not arrive in time"))
        elif isinstance(error, ValueError) and exchange.is_upgrade:
            reply = error_reply(Refusal("InvalidRequest", str(error)))
        else:
            logs.error("http.failed", exc=error, path=exchange.path)
            reply = error_reply(Refusal("Internal", "the request failed; the log says why"))
        return self._with_cors(exchange, reply)

    def malformed(self, reason: str) -> Reply:
        """The answer to bytes that are not an HTTP request."""
        return error_reply(Refusal("InvalidRequest", f"this is not a proper HTTP request: {reason}"))

    def _with_cors(self, exchange: Exchange, reply: Reply) -> Reply:
        more = cors.answer_headers(self._api.guard, exchange.headers)
        # A copy: replies to an Idempotency-Key are kept, and another site may repeat the request.
        return msgspec.structs.replace(reply, headers={**reply.headers, **more}) if more else reply

    async def _answer(self, exchange: Exchange) -> Reply | StreamingReply | Upgrade:
        if exchange.is_upgrade:
            return self._upgrade(exchange)
        if cors.is_preflight(exchange.method, exchange.headers):
            preflight = self._preflight(exchange)
            if preflight is not None:
                return preflight
        checked = self._check(exchange)
        if isinstance(checked, Reply):
            return checked
        request, match, principal = checked
        route = match.route
        if route.upgrade and not route.events:
            hint = f"open `{request.path}` as a WebSocket"
            return error_reply(Refusal("InvalidRequest", "this route is a WebSocket", hint=hint))
        bound = self._runtime.machine.limits.frame_max if route.name in LARGE else SMALL_BODY
        refused = _body_refusal(exchange, bound)
        if refused is not None:
            return refused
        body = _inflate(exchange, await exchange.read(), bound)
        if isinstance(body, Reply):
            return body
        request.body = body
        if route.events:
            return self._events(exchange, request, principal)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def done(reply: Reply) -> None:
            if not future.done():
                future.set_result(reply)

        cancel = self._api.handle(request, match, principal, done)
        try:
            return await future
        except asyncio.CancelledError:
            if cancel is not None:
                cancel()
            raise

    def _preflight(self, exchange: Exchange) -> Reply | None:
        """The answer to a CORS preflight, which carries no token; None for pages of this server."""
        headers = exchange.headers
        refusal = self._api.guard.check_headers(headers.get("Host"), headers.get("Origin"))
        if refusal is not None:
            return error_reply(refusal)
        if not self._api.guard.is_listed(headers["Origin"]) or not methods(exchange.path):
            return None
        return cors.preflight(exchange.path)

    def _check(self, exchange: Exchange) -> tuple[Request, Match, Principal] | Reply:
        pairs = exchange.query_pairs
        query = dict(pairs)
        exchange.peer = self._api.guard.client_address(exchange.peer, exchange.headers)
        request = Request(
            exchange.method, exchange.path, query, exchange.headers, exchange.peer, self._is_loopback_bind
        )
        match = self._api.route(request)
        if isinstance(match, Refusal):
            reply = error_reply(match)
            if match.code == "MethodNotAllowed":
                reply.headers = {"Allow": ", ".join(methods(request.path))}
            return reply
        principal = self._api.identify(request, match)
        if isinstance(principal, Refusal):
            return error_reply(principal)
        if len(query) != len(pairs):
            return error_reply(Refusal("InvalidRequest", "a query parameter is given twice"))
        return request, match, principal

    def _events(self, exchange: Exchange, request: Request, principal: Principal) -> EventStream | Reply:
        query = self._api.query(request, LiveQuery)
        if isinstance(query, Refusal):
            return error_reply(query)
        last = exchange.headers.get("Last-Event-ID")
        stream = open_events(self._runtime, principal, query, last, exchange.peer)
        if isinstance(stream, Refusal):
            return error_reply(stream)
        return stream if exchange.method == "GET" else Reply(200, b"", "text/event-stream")

    def _upgrade(self, exchange: Exchange) -> Upgrade | Reply:
        checked = self._check(exchange)
        offered = subprotocol(exchange.headers.get("Sec-WebSocket-Protocol"))
        plan: Upgrade
        soft = dict(exchange.query_pairs).get("softAuth") == "1"
        if isinstance(checked, Reply):
            if not soft or checked.status not in (401, 403):
                return checked
            refusal = Refusal(
                "Unauthorized" if checked.status == 401 else "Forbidden", "the token is not accepted"
            )
            plan = SubscribeUpgrade(self._runtime, NOBODY, SubscribeQuery(""), refusal, exchange.peer)
            plan.subprotocol = offered
            return plan
        request, match, principal = checked
        if match.route.name == "control":
            plan = ControlUpgrade(self._api, principal, exchange.peer)
        elif match.route.name == "subscribe":
            query = self._api.query(request, SubscribeQuery)
            if isinstance(query, Refusal):
                return error_reply(query)
            refused = subscribe.check(self._runtime, principal, query)
            if refused is not None and not (soft and refused.status in (401, 403)):
                return error_reply(refused)
            plan = SubscribeUpgrade(self._runtime, principal, query, refused, exchange.peer)
        elif match.route.name == "live":
            follow = self._api.query(request, LiveQuery)
            if isinstance(follow, Refusal):
                return error_reply(follow)
            seen = view_feed.check(self._runtime.machine, principal, follow)
            if isinstance(seen, Refusal) and not (soft and seen.status in (401, 403)):
                return error_reply(seen)
            plan = LiveUpgrade(self._runtime, principal, follow, seen, exchange.peer)
        elif match.route.name == "relay":
            listening = listen(self._api.relay, principal, exchange.peer)
            if isinstance(listening, Refusal):
                return error_reply(listening)
            plan = listening
        else:
            return error_reply(Refusal("InvalidRequest", f"`{request.path}` is not a WebSocket"))
        plan.subprotocol = offered
        return plan


def _body_refusal(exchange: Exchange, bound: int) -> Reply | None:
    """Why a body is not read."""
    if exchange.size is not None and exchange.size > bound:
        return _too_large(bound)
    name = content_encoding.coding(exchange.headers.get("Content-Encoding"))
    if name is not None and name not in content_encoding.KNOWN:
        message = f"unsupported Content-Encoding `{name[:40]}`; use gzip or deflate"
        reply = error_reply(Refusal("UnsupportedEncoding", message))
        reply.headers = {"Accept-Encoding": "gzip, deflate"}
        return reply
    return None


def _inflate(exchange: Exchange, body: bytes, bound: int) -> bytes | Reply:
    """The body without its content encoding."""
    name = content_encoding.coding(exchange.headers.get("Content-Encoding"))
    if name is None or not body:
        return body
    try:
        return content_encoding.inflate(body, name, bound)
    except content_encoding.OversizeError:
        return _too_large(bound)
    except content_encoding.EncodingError as error:
        return error_reply(Refusal("InvalidRequest", str(error), ref="Content-Encoding"))


def _too_large(bound: int) -> Reply:
    return error_reply(Refusal("TooLarge", f"the body is over the bound of {bound} bytes"))
