"""The entry of every HTTP request: finds its route, checks who asks, reads the body, calls the handler, waits for the commit.

Access is checked before the body is read, so a stranger cannot make the server buffer or parse one.

CORS: pages of the sites in `listen.origins` may read answers. A listed site is echoed exactly, never as `*`, and credentials are not
allowed: a page sends a token like any client. Requests from other sites are refused earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from types import CoroutineType
from typing import Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.queue.settle import Denied
from penstock.core.scopes import UNAUTHENTICATED, Principal
from penstock.core.steps import STEP_BYTES
from penstock.dialects.courier.operations.outcomes import Result
from penstock.dialects.courier.wire.request_checks import check_request
from penstock.server.admin.journal import permit
from penstock.server.admin.reload import REVOKED
from penstock.server.auth.tokens import Guard, bearer, subprotocol
from penstock.server.engine.schedulers import checked
from penstock.server.http import idempotency, routes, sockets
from penstock.server.http.request import Done, Request, Route, body_refusal, error_reply, inflate, too_large
from penstock.server.http.services import HttpServices
from penstock.server.logging import logs
from penstock.server.spaces.listener import SpaceEndpoint, is_for_spaces
from penstock.transports import content_encoding
from penstock.transports.exchanges import Answer, Answered, BodyMalformedError, BodyTooLargeError, Exchange
from penstock.transports.http_replies import Reply, StreamingReply, Upgrade, json_reply
from penstock.transports.transport import Admission, UnreadBytes, Upload

MAX_AGE_S = 600
"""How long a browser may cache a preflight."""
REQUEST_HEADERS = "Authorization, Content-Encoding, Content-Type, Idempotency-Key, Last-Event-ID"
EXPOSED_HEADERS = (
    "Allow, Idempotency-Replayed, Retry-After, WWW-Authenticate, X-Penstock-End, X-Penstock-Epoch, X-Penstock-Next"
)


def answer_headers(guard: Guard, headers: Mapping[str, str]) -> dict[str, str]:
    """The CORS headers of a reply."""
    if not guard.origins:
        return {}
    origin = headers.get("Origin")
    if origin is None or not guard.is_listed(origin):
        return {"Vary": "Origin"}
    return {"Vary": "Origin", "Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED_HEADERS}


def preflight(allowed: list[str]) -> Reply:
    """The methods and headers that a listed site may use on a path."""
    return Reply(
        204,
        b"",
        headers={
            "Access-Control-Allow-Methods": ", ".join(allowed),
            "Access-Control-Allow-Headers": REQUEST_HEADERS,
            "Access-Control-Max-Age": str(MAX_AGE_S),
        },
    )


SMALL_BODY = 64 * 1024
"""Bound on bodies of routes that take no envelopes."""
METRICS = ("metrics", "prometheus")
"""Routes that `auth.protectMetrics` covers."""
GATEWAY_HINT = "`penstock up` with the same space under `spaces` in its config serves both"
_FAILED = Refusal("Internal", "the request failed; the log says why")


class HttpEndpoint:
    """One HTTP port: the routes of the table, and the spaces below `/participants`."""

    def __init__(self, services: HttpServices, spaces: SpaceEndpoint, *, is_loopback_bind: bool) -> None:
        self._services = services
        self._runtime = services.runtime
        self._spaces = spaces
        self._is_loopback_bind = is_loopback_bind

    @property
    def body_max(self) -> int:
        return max(self._runtime.machine.limits.frame_max, self._spaces.body_max)

    def admit(self, peer: str, close: Callable[[], None]) -> Admission | Reply:
        admitted = self._services.admission.admit(peer, close)
        return error_reply(admitted) if isinstance(admitted, Refusal) else admitted

    def note_unread(self, reader: UnreadBytes, size: int) -> None:
        self._runtime.peers.outboxes.note(reader, size)

    def note_input(self, upload: Upload, size: int) -> None:
        self._runtime.peers.inputs.note(upload, size)

    async def handle(self, exchange: Exchange) -> Answer:
        """Answer one request."""
        if is_for_spaces(exchange):  # the errors of a space have MEW's format, so its paths are not in the table
            return await self._spaces.handle(exchange)
        request = self._admit(exchange)
        answer = await self._complete(exchange, request) if isinstance(request, Request) else request
        return self._with_cors(exchange, answer) if isinstance(answer, Reply) else answer

    def begin(self, exchange: Exchange, body: bytes, done: Answered) -> Coroutine[Any, Any, Answer] | None:
        """Answer one request whose body is here. Only what waits for nothing but the journal needs no task."""
        headers = exchange.headers
        is_encoded = "Content-Encoding" in headers or len(body) > STEP_BYTES
        if is_encoded or idempotency.HEADER in headers or self._services.guard.origins or is_for_spaces(exchange):
            return self.handle(exchange)
        request = self._admit(exchange)
        if isinstance(request, Request):
            request.data = body
            return self._perform(request, done)
        assert isinstance(request, Reply)  # a request whose body is here is no upgrade
        done(request)
        return None

    def failed(self, exchange: Exchange, error: Exception) -> Reply:
        """The answer to a request whose handling raised."""
        if isinstance(error, BodyMalformedError):
            reply = self.malformed(str(error))
            if is_for_spaces(exchange):  # CORS is for the routes of the table
                return reply
        elif is_for_spaces(exchange):
            return self._spaces.failed(exchange, error)
        elif isinstance(error, BodyTooLargeError):
            reply = self._count(too_large(self._runtime.machine.limits.frame_max))
        elif isinstance(error, TimeoutError):
            reply = error_reply(Refusal("Timeout", "the body did not arrive in time"))
        elif isinstance(error, ValueError) and exchange.is_upgrade:
            reply = error_reply(Refusal("InvalidRequest", str(error)))
        else:
            logs.error("http.failed", exc=error, path=exchange.path)
            reply = error_reply(_FAILED)
        return self._with_cors(exchange, reply)

    def malformed(self, reason: str) -> Reply:
        """The answer to bytes that are not an HTTP request."""
        return error_reply(Refusal("InvalidRequest", f"this is not a proper HTTP request: {reason}"))

    def _with_cors(self, exchange: Exchange, reply: Reply) -> Reply:
        more = answer_headers(self._services.guard, exchange.headers)
        # A copy: replies to an Idempotency-Key are kept, and another site may repeat the request.
        return msgspec.structs.replace(reply, headers={**reply.headers, **more}) if more else reply

    def _admit(self, exchange: Exchange) -> Request | Reply | Upgrade:
        """Who asks for what, or the answer where the body does not matter."""
        self._runtime.inputs += (exchange.size or 0) <= STEP_BYTES
        headers = exchange.headers
        is_options = exchange.method == "OPTIONS" and not exchange.is_upgrade
        if is_options and "Origin" in headers and "Access-Control-Request-Method" in headers:
            preflight = self._preflight(exchange)
            if preflight is not None:
                return preflight
        found = routes.find(exchange.method, exchange.path)
        if found is None:
            return _unknown_route(exchange.path)
        route, values = found
        pairs = exchange.query_pairs
        parameters = dict(pairs)
        peer = self._services.guard.client_address(exchange.peer, exchange.headers)
        request = Request(route, values, parameters, exchange.headers, peer, exchange.method == "HEAD")
        principal = self._identify(request)
        if isinstance(principal, Refusal):
            if exchange.is_upgrade and sockets.is_soft(request, principal):
                return _offer(exchange, sockets.refuse_softly(self._services, request, principal))
            return error_reply(principal)
        if len(parameters) != len(pairs):
            return error_reply(Refusal("InvalidRequest", "a query parameter is given twice"))
        request.principal = exchange.holder = principal
        if principal is not UNAUTHENTICATED:
            exchange.known()
        if exchange.is_upgrade:
            return self._upgrade(exchange, request)
        if route.handler is None:
            hint = f"open `{exchange.path}` as a WebSocket"
            return error_reply(Refusal("InvalidRequest", "this route is a WebSocket", hint=hint))
        if (refused := body_refusal(exchange, self._bound(route))) is not None:
            return self._count(refused)
        return request

    def _bound(self, route: Route) -> int:
        """Bytes of the largest body."""
        return self._runtime.machine.limits.frame_max if route.is_large else SMALL_BODY

    async def _complete(self, exchange: Exchange, request: Request) -> Reply | StreamingReply:
        """Read the body of a request that was let in, and carry it out."""
        route, principal = request.route, request.principal
        tokens, changes = self._services.tokens, self._services.tokens.changes
        body = await exchange.read()
        name = content_encoding.coding(exchange.headers.get("Content-Encoding"))
        # In a thread: zlib lets the loop run meanwhile.
        data = body if name is None or not body else await asyncio.to_thread(inflate, body, name, self._bound(route))
        if isinstance(data, Reply):
            return data
        request.data = data
        exchange.holds(len(body) + len(data) * (name is not None))
        if len(data) > STEP_BYTES and route.body is not None:
            refusal = await checked(self._runtime.survey, check_request(data, self._runtime.machine.limits))
            if refusal is not None:
                return error_reply(self._counted(refusal))
            request.is_checked = True
        if tokens.changes != changes and not route.is_open and tokens.renewed(principal) is None:
            return error_reply(REVOKED)
        if route.is_idempotent and idempotency.HEADER in request.headers:
            request.now = self._runtime.scheduler.now()
            return await self._answer_once(request)
        future, done = _promise()
        work = self._perform(request, done)
        return await (future if work is None else work)

    def _perform(self, request: Request, done: Answered) -> Coroutine[Any, Any, Reply | StreamingReply] | None:
        """Carry a request out. The reply comes through `done`, or from the coroutine."""
        request.now = self._runtime.scheduler.now()
        outcome = self._run(request)
        if isinstance(outcome, CoroutineType):
            return self._await(request, outcome)
        self._reply(outcome, done)
        return None

    async def _await(self, request: Request, work: Coroutine[Any, Any, Any]) -> Reply | StreamingReply:
        future, done = _promise()
        self._reply(await self._finish(request, work), done)
        reply: Reply | StreamingReply = await future
        return reply

    def _reply(self, outcome: Any, done: Answered) -> None:
        if isinstance(outcome, (Result, Denied, Refusal)):
            self._reply_when_durable(outcome, done)
        else:
            done(outcome if isinstance(outcome, (Reply, StreamingReply)) else json_reply(200, outcome))

    def _preflight(self, exchange: Exchange) -> Reply | None:
        """The answer to a CORS preflight, which carries no token; None for pages of this server."""
        headers, guard = exchange.headers, self._services.guard
        refusal = guard.check_headers(headers.get("Host"), headers.get("Origin"))
        if refusal is not None:
            return error_reply(refusal)
        allowed = routes.methods(exchange.path) if guard.is_listed(headers["Origin"]) else []
        return preflight(allowed) if allowed else None

    def _identify(self, request: Request) -> Principal | Refusal:
        """Who asks, or why the request is refused."""
        services, headers, route = self._services, request.headers, request.route
        auth = services.config.auth
        refusal = services.guard.check_headers(headers.get("Host"), headers.get("Origin"))
        if refusal is not None:
            return refusal
        query_token = request.parameters.get("access_token") if auth.query_token else None
        token = bearer(headers.get("Authorization"), headers.get("Sec-WebSocket-Protocol"), query_token)
        principal = services.tokens.resolve(token)
        if token is None and services.console is not None:
            principal = services.console.resolve(headers) or principal
        if principal is None and (token is not None or not route.is_open):
            services.tokens.refused(token, request.peer)
        if route.is_open:
            return principal or UNAUTHENTICATED
        if principal is None:
            return Refusal("Unauthorized", "the token is not known" if token else "a token is needed")
        if not (services.config.serves_courier or principal.operator):
            message = "this is a gateway of spaces: Courier is not served here"
            return Refusal("UnknownRoute", message, hint=GATEWAY_HINT)
        if principal.anonymous:
            refusal = services.guard.check_peer(request.peer, self._is_loopback_bind)
            if refusal is None and auth.protect_metrics and route.name in METRICS:
                refusal = Refusal("Unauthorized", "metrics need a token here")
            if refusal is not None:
                services.tokens.refused(None, request.peer)
                return refusal
        return principal if principal.operator else self._check_served(route) or principal

    def _check_served(self, route: Route) -> Refusal | None:
        """Why this kind of request is switched off; the operator and open routes are served always."""
        listen = self._services.config.listen
        if listen.requests if route.socket is None else listen.sockets:
            return None
        what, key = ("plain requests", "requests") if route.socket is None else ("WebSockets", "sockets")
        hint = "use control lines, or the other half of this port"
        return Refusal("UnknownRoute", f"{what} are switched off here by `listen.{key}`", hint=hint)

    def _upgrade(self, exchange: Exchange, request: Request) -> Upgrade | Reply:
        if request.route.socket is None:
            return error_reply(Refusal("InvalidRequest", f"`{exchange.path}` is not a WebSocket"))
        refusal = request.parse()
        upgrade = refusal or request.route.socket(self._services, request)
        return error_reply(upgrade) if isinstance(upgrade, Refusal) else _offer(exchange, upgrade)

    def _run(self, request: Request) -> Any:
        """Call the handler of a request that was let in."""
        route = request.route
        refusal = permit(request.principal, f"`{route.path}`") if route.is_admin else None
        refusal = refusal or request.parse()
        if refusal is not None:
            return self._counted(refusal)
        outcome = self._services.handler_of(route)(self._services, request)
        if isinstance(outcome, (Result, Denied, Refusal)):
            self._runtime.apply(request.now)
        return outcome

    def _count(self, reply: Reply) -> Reply:
        if reply.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            self._runtime.input_refused("http", "TooLarge")
        return reply

    def _counted(self, refusal: Refusal) -> Refusal:
        if refusal.code in ("InvalidJSON", "TooLarge"):
            self._runtime.input_refused("http", refusal.code)
        return refusal

    async def _finish(self, request: Request, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            outcome = await work
            if isinstance(outcome, Refusal):
                self._counted(outcome)
            # A revoked token reads nothing more, but work that was admitted is done: its holder learns the outcome.
            is_read = not request.route.is_open and (request.route.method == "GET" or isinstance(outcome, Reply))
            return REVOKED if is_read and self._services.tokens.renewed(request.principal) is None else outcome
        except Exception as error:
            if not request.route.is_admin:
                raise
            logs.error("desk.failed", exc=error, route=request.route.name)
            return _FAILED

    async def _answer_once(self, request: Request) -> Reply:
        """Carry out a request with an `Idempotency-Key`, or repeat the reply of the first one."""
        future, done = _promise()
        first = self._services.replays.claim(self._runtime.machine.limits, request, done)
        if isinstance(first, Refusal):
            return error_reply(first)
        if first is not None:
            # Callbacks, not awaits: the reply is kept even if this client disconnects before the commit.
            try:
                outcome = self._run(request)
                if isinstance(outcome, CoroutineType):
                    task = asyncio.ensure_future(self._finish(request, outcome))
                    task.add_done_callback(lambda task: self._reply_when_durable(_outcome(task), first))
                else:
                    self._reply_when_durable(outcome, first)
            except Exception:
                first(error_reply(_FAILED))
                raise
        reply: Reply = await future
        return reply

    def _reply_when_durable(self, outcome: Result | Denied | Refusal, done: Done) -> None:
        if isinstance(outcome, Refusal):
            done(error_reply(outcome))
            return
        fresh = isinstance(outcome, Denied) or outcome.fresh  # a late refusal may rest on a drop

        def finish(refusal: Refusal | None) -> None:
            if refusal is not None:
                done(error_reply(refusal))
            elif isinstance(outcome, Denied):
                done(error_reply(outcome.refusal))
            else:
                done(json_reply(200, outcome.value()))

        self._runtime.when(outcome.gate, fresh, finish)


def _outcome(task: asyncio.Task[Any]) -> Any:
    """The outcome of work that goes on without its client."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logs.error("http.failed", exc=error)
    return _FAILED if error is not None or task.cancelled() else task.result()


def _promise() -> tuple[asyncio.Future[Any], Callable[[Any], None]]:
    """A future reply and the function that sets it; the client may have disconnected by then."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(reply: Reply | StreamingReply) -> None:
        if not future.done():
            future.set_result(reply)

    return future, done


def _offer(exchange: Exchange, upgrade: Upgrade) -> Upgrade:
    upgrade.subprotocol = subprotocol(exchange.headers.get("Sec-WebSocket-Protocol"))
    return upgrade


def _unknown_route(path: str) -> Reply:
    allowed = ", ".join(routes.methods(path))
    if allowed:
        return error_reply(Refusal("MethodNotAllowed", f"`{path}` takes {allowed}"), {"Allow": allowed})
    close = routes.nearest(path)
    hint = f"did you mean `{close}`?" if close else None
    return error_reply(Refusal("UnknownRoute", f"there is no `{path[:200]}`", hint=hint))
