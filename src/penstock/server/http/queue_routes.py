"""The HTTP answers: a request value in, a reply value out, once what it says is durable.

No sockets here: `transports/http.py` brings requests and carries replies, and the simulator could too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.scopes import NOBODY, Principal
from penstock.dialects.courier.operations import payload_schemas, queries, views
from penstock.dialects.courier.operations.enqueue import enqueue
from penstock.dialects.courier.operations.outcomes import Body, Late, Outcome
from penstock.dialects.courier.operations.redrive_and_purge import purge, redrive
from penstock.dialects.courier.operations.send import send
from penstock.dialects.courier.operations.settle import settle
from penstock.dialects.courier.operations.surveys import MetricsSurvey, WhereSurvey
from penstock.dialects.courier.operations.views import SnapshotQuery
from penstock.dialects.courier.sessions.pull import PullRequest, PullSession, check_pull
from penstock.dialects.courier.triggers import admin
from penstock.dialects.courier.wire.envelopes import json_problem, misfit
from penstock.dialects.courier.wire.staged_envelopes import StageCommit, source_of
from penstock.server.auth.tokens import Guard, TokenStore, bearer
from penstock.server.courier.stage_store import Staging
from penstock.server.engine.connections import Connection, NoWire
from penstock.server.engine.runtime import Runtime
from penstock.server.files.addresses import payer_address
from penstock.server.http import idempotency, openapi
from penstock.server.http.admin_routes import Ask, Desk, permit
from penstock.server.http.idempotency import Replays
from penstock.server.http.journal_routes import CONTENT_TYPE, Answer, History, Rows
from penstock.server.http.landing_page import landing
from penstock.server.http.messages import Cancel, Done, Request, error_reply
from penstock.server.http.routes import Login, Match, PeekQuery, StreamQuery, find, methods, nearest
from penstock.server.metrics import prometheus_families
from penstock.transports.http import Reply, json_reply

if TYPE_CHECKING:
    from penstock.ipc.pipeline import PipelineStatus
    from penstock.server.config.load import Config
    from penstock.server.courier.frame_recorder import Recorder
    from penstock.server.http.console import Console
    from penstock.server.journal.lifecycle import JournalLifecycle
    from penstock.server.relay.supervisor import RelaySupervisor
    from penstock.server.spaces.host import Spaces

GATEWAY_HINT = "`penstock up` with the same space under `spaces` in its config serves both"

PLAIN = "text/plain; charset=utf-8"
METRICS = ("metrics", "prometheus")
"""Routes that `auth.protectMetrics` is about."""


class Api:
    """Every HTTP route of the server."""

    def __init__(
        self,
        runtime: Runtime,
        tokens: TokenStore,
        guard: Guard,
        *,
        assign_id: bool,
        query_token: bool,
        version: str,
        log_dropped: Callable[[], int] = lambda: 0,
        archive: JournalLifecycle | None = None,
        pipeline: Callable[[], PipelineStatus | None] = lambda: None,
        recorder: Recorder | None = None,
        per_stream: bool = False,
        spaces: Spaces | None = None,
        relay: RelaySupervisor | None = None,
        desk: Desk | None = None,
        console: Console | None = None,
    ) -> None:
        self.runtime = runtime
        self._desk = desk or Desk()
        self._console = console
        self.spaces = spaces
        self.relay = relay
        self.tokens = tokens
        self._guard = guard
        self._assign_id = assign_id
        self._query_token = query_token
        self._openapi = openapi.document(version)
        self._replays = Replays()
        self._prometheus = prometheus_families.Exporter(
            runtime,
            log_dropped,
            pipeline,
            replays=self._replays,
            record_dropped=lambda: 0 if recorder is None else recorder.dropped,
            per_stream=per_stream,
            spaces=spaces,
            relay=relay,
            archive=archive,
        )
        self.recorder = recorder
        self._protects_metrics = False
        self._serves_courier = True
        self.serves_requests = True
        self.serves_sockets = True
        self._pipeline = pipeline
        self._history = History(archive)
        self._staging = Staging(runtime, spaces)

    def adopt(self, config: Config) -> None:
        """Answer by these settings from now on."""
        self._assign_id = config.streams.assign_id
        self._query_token = config.auth.query_token
        self._protects_metrics = config.auth.protect_metrics
        self._prometheus.per_stream = config.metrics.per_stream
        self._serves_courier = config.serves_courier
        self.serves_requests = config.listen.requests
        self.serves_sockets = config.listen.sockets

    @property
    def guard(self) -> Guard:
        return self._guard

    def route(self, request: Request) -> Match | Refusal:
        """The route of a request, or what to say instead."""
        match = find(request.method, request.path)
        if match is not None:
            return match
        allowed = methods(request.path)
        if allowed:
            return Refusal("MethodNotAllowed", f"`{request.path}` takes {', '.join(allowed)}")
        close = nearest(request.path)
        hint = f"did you mean `{close}`?" if close else None
        return Refusal("UnknownRoute", f"there is no `{request.path[:200]}`", hint=hint)

    def identify(self, request: Request, match: Match) -> Principal | Refusal:
        """Who asks, or why nobody is let in. Before anything costly."""
        headers = request.headers
        refusal = self._guard.check_headers(headers.get("Host"), headers.get("Origin"))
        if refusal is not None:
            return refusal
        query_token = request.query.get("access_token") if self._query_token else None
        token = bearer(headers.get("Authorization"), headers.get("Sec-WebSocket-Protocol"), query_token)
        principal = self.tokens.resolve(token)
        if token is None and self._console is not None:
            principal = self._console.known(headers) or principal
        if principal is None and not match.route.is_open:
            message = "the token is not known" if token else "a token is needed"
            return Refusal("Unauthorized", message)
        if not (self._serves_courier or match.route.is_open or (principal and principal.operator)):
            return Refusal(
                "UnknownRoute", "this is a gateway of spaces: Courier is not served here", hint=GATEWAY_HINT
            )
        if principal is not None and principal.anonymous and not match.route.is_open:
            refusal = self._guard.check_peer(request.peer, request.is_loopback_bind)
            if refusal is not None:
                return refusal
            if self._protects_metrics and match.route.name in METRICS:
                return Refusal("Unauthorized", "metrics need a token here")
        return self._served(match, principal or NOBODY)

    def _served(self, match: Match, principal: Principal) -> Principal | Refusal:
        """Whether this half of the door is open; what belongs to everybody and to the operator always is."""
        route = match.route
        if (
            route.is_open
            or principal.operator
            or (self.serves_sockets if route.upgrade else self.serves_requests)
        ):
            return principal
        what, key = ("WebSockets", "sockets") if route.upgrade else ("plain requests", "requests")
        hint = "use control lines, or the other half of this port"
        return Refusal("UnknownRoute", f"{what} are switched off here by `listen.{key}`", hint=hint)

    def handle(self, request: Request, match: Match, principal: Principal, done: Done) -> Cancel | None:
        """Answer through `done`, now or later. Returns how to give up, where that matters."""
        name = match.route.name
        if name not in idempotency.ROUTES or idempotency.HEADER not in request.headers:
            return self._handle(request, match, principal, done)
        now_us, limits = self.runtime.scheduler.now().us, self.runtime.machine.limits
        first = self._replays.claim(now_us, limits, principal, name, request, done)
        if first is None or isinstance(first, Refusal):
            if first is not None:
                done(error_reply(first))
            return None
        try:
            return self._handle(request, match, principal, first)
        except Exception:
            first(error_reply(Refusal("Internal", "the request failed; the log says why")))
            raise

    def _handle(self, request: Request, match: Match, principal: Principal, done: Done) -> Cancel | None:
        runtime = self.runtime
        now = runtime.scheduler.now()
        name = match.route.name
        if match.route.body is not None:
            extra = self.query(request, match.route.query)
            if isinstance(extra, Refusal):
                done(error_reply(extra))
                return None
        if name in self._desk:
            return self._at_desk(match, request, principal, done)
        if name == "pull":
            return self._pull(now, request, principal, done)
        if name.startswith("journal"):
            return self._journal(match, request, principal, done)
        if name.startswith("stage"):
            outcome = self._stage(now, match, request, principal)
            runtime.apply(now)
            self._answer(outcome, done)
            return None
        if name in ("prometheus", "metrics", "where"):
            self._look_round(match, principal, request, done)
            return None
        if name.startswith("trigger"):
            outcome = self._rule(now, match, request, principal)
            runtime.apply(now)
            self._answer(outcome, done)
            return None
        reply = self._page(match, principal, request) or self._plain(now, name)
        if reply is not None:
            done(reply)
            return None
        outcome = self._operate(now, match, request, principal)
        runtime.apply(now)
        self._answer(outcome, done)
        return None

    def _at_desk(self, match: Match, request: Request, principal: Principal, done: Done) -> Cancel | None:
        """Routes of the person who runs the server."""
        route = match.route
        asked: list[Any] = [permit(principal, f"`{route.path}`"), self.query(request, route.query)]
        asked.append(None if route.body is None else self._body(request.body, route.body))
        for problem in asked:
            if isinstance(problem, Refusal):
                done(error_reply(problem))
                return None
        _, query, body = asked
        return self._desk.answer(route.name, Ask(principal, match.values, query, body, request.peer), done)

    def _page(self, match: Match, principal: Principal, request: Request) -> Reply | None:
        """Routes of the console, and the word for those who have none."""
        name, console = match.route.name, self._console
        if name == "welcome":
            url = f"http://{request.headers.get('Host', 'localhost')}"
            words = Reply(200, landing(url, serves_courier=self._serves_courier).encode(), PLAIN)
            return (None if console is None else console.page(request)) or words
        if not name.startswith("console"):
            return None
        if console is None:
            return error_reply(Refusal("UnknownRoute", "this server has no console"))
        match name:
            case "console_file":
                return console.file(request, match.value)
            case "console_sign_in":
                login = self._body(request.body, Login)
                return error_reply(login) if isinstance(login, Refusal) else console.sign_in(request, login)
            case "console_sign_out":
                return console.sign_out(request)
            case _:
                return console.session(principal)

    def _plain(self, now: Now, name: str) -> Reply | None:
        """Routes that are no operations of the queue."""
        match name:
            case "health":
                health = self.runtime.health(now)
                pipeline = self._pipeline()
                if pipeline is not None:
                    health["pipeline"] = pipeline.state
                if self.relay is not None:
                    health["relay"] = self.relay.health()
                reply = json_reply(200 if health["ok"] else 503, health)
                if not health["ok"]:
                    reply.headers = {"Retry-After": "1"}
                return reply
            case "openapi":
                return Reply(200, self._openapi)
            case _:
                return None

    def _look_round(self, match: Match, principal: Principal, request: Request, done: Done) -> None:
        """Routes that ask every stream, over as many turns as that takes."""
        machine = self.runtime.machine
        query = self.query(request, match.route.query)
        if isinstance(query, Refusal):
            done(error_reply(query))
        elif match.route.name == "prometheus":
            wanted = None if query.streams is None else query.streams == 1
            scrape = self._prometheus.scrape(principal, per_stream=wanted)
            text = prometheus_families.CONTENT_TYPE
            self.runtime.survey(scrape, lambda: done(Reply(200, scrape.text(), text)))
        else:
            survey: MetricsSurvey | WhereSurvey
            if match.route.name == "metrics":
                survey = MetricsSurvey(machine, principal)
            else:
                survey = WhereSurvey(machine, principal, match.value)

            def finish() -> None:
                body = survey.body()
                done(error_reply(body) if isinstance(body, Refusal) else Reply(200, body))

            self.runtime.survey(survey, finish)

    def _operate(self, now: Now, match: Match, request: Request, principal: Principal) -> Outcome:
        machine = self.runtime.machine
        route = match.route
        if route.body is not None:
            body = self._body(request.body, route.body)
            if isinstance(body, Refusal):
                return body
            match route.name:
                case "enqueue":
                    address = payer_address(request.peer)
                    assign = self._assign_id
                    return enqueue(machine, now, principal, body, assign=assign, address=address)
                case "send":
                    address = payer_address(request.peer)
                    return send(machine, now, principal, body, address=address)
                case "settle":
                    return settle(machine, now, principal, body)
                case "redrive":
                    return redrive(machine, now, principal, body)
                case "schemas_validate":
                    return payload_schemas.validate(machine, body.envelope)
                case _:
                    return purge(machine, now, principal, body)
        query = self.query(request, route.query)
        if isinstance(query, Refusal):
            return query
        match route.name:
            case "stats":
                assert isinstance(query, StreamQuery)
                return queries.stats(machine, now, principal, query.stream)
            case "schemas":
                return payload_schemas.listing(machine)
            case "peek":
                assert isinstance(query, PeekQuery)
                return queries.peek(machine, now, principal, query.stream, query.state, query.max)
            case "snapshot":
                assert isinstance(query, SnapshotQuery)
                return views.snapshot(machine, now, principal, query.view, query.addr)
            case _:
                return queries.explain(machine, now, principal, match.value)

    def _answer(self, outcome: Outcome, done: Done) -> None:
        if isinstance(outcome, Refusal):
            done(error_reply(outcome))
            return
        gate = outcome.gate
        fresh = isinstance(outcome, Late) or outcome.fresh  # a late refusal may rest on a drop

        def finish(refusal: Refusal | None) -> None:
            if refusal is not None:
                done(error_reply(refusal))
            elif isinstance(outcome, Late):
                done(error_reply(outcome.refusal))
            else:
                done(json_reply(200, outcome.value()))

        self.runtime.when(gate, fresh, finish)

    def _pull(self, now: Now, request: Request, principal: Principal, done: Done) -> Cancel | None:
        runtime = self.runtime
        pull = self._body(request.body, PullRequest)
        lease_us = pull if isinstance(pull, Refusal) else check_pull(runtime.machine, principal, pull)
        if isinstance(lease_us, Refusal):
            done(error_reply(lease_us))
            return None

        def finish(body: Body) -> None:
            done(json_reply(200, body))
            if isinstance(connection, Connection):
                connection.lost()

        session = PullSession(runtime, finish)
        connection = runtime.open(session, NoWire(), principal, request.peer, is_brief=True)
        if isinstance(connection, Refusal):
            done(error_reply(connection))
            return None
        consumer = runtime.machine.pull(
            now, connection.link, principal.to_channel(pull.stream), pull.max, pull.wait_ms * 1000, lease_us
        )
        if isinstance(consumer, Refusal):
            connection.lost()
            done(error_reply(consumer))
            return None
        runtime.apply(now)
        return connection.lost

    def _journal(self, match: Match, request: Request, principal: Principal, done: Done) -> Cancel | None:
        body = match.route.body
        asked = self.query(request, match.route.query) if body is None else self._body(request.body, body)
        if isinstance(asked, Refusal):
            done(error_reply(asked))
            return None

        def finish(answer: Answer) -> None:
            if isinstance(answer, Refusal):
                done(error_reply(answer))
            elif isinstance(answer, Rows):
                done(Reply(200, answer.stream, CONTENT_TYPE, answer.headers))
            else:
                done(json_reply(200, answer))

        return self._history.answer(match.route.name, principal, asked, finish)

    def _stage(self, now: Now, match: Match, request: Request, principal: Principal) -> Outcome:
        query = self.query(request, match.route.query)
        if isinstance(query, Refusal):
            return query
        app, *rest = match.values
        source = source_of(app, rest[0] if rest else "0", principal, payer_address(request.peer))
        if isinstance(source, Refusal):
            return source
        match match.route.name:
            case "stage_part":
                return self._staging.part(now, source, rest[1], query.run, request.body)
            case "stage_commit":
                body = self._body(request.body, StageCommit)
                return body if isinstance(body, Refusal) else self._staging.commit(now, source, body)
            case "stage_abort":
                return self._staging.abort(source)
            case _:
                return self._staging.last(source)

    def _rule(self, now: Now, match: Match, request: Request, principal: Principal) -> Outcome:
        machine = self.runtime.machine
        kind = match.route.body
        body = self.query(request, match.route.query) if kind is None else self._body(request.body, kind)
        if isinstance(body, Refusal):
            return body
        match match.route.name:
            case "triggers":
                return admin.listed(machine, now, principal)
            case "trigger":
                return admin.shown(machine, now, principal, match.value)
            case "trigger_explain":
                return admin.explained(machine, now, principal, match.value)
            case "trigger_put":
                return admin.put(machine, now, principal, match.value, body)
            case "trigger_remove":
                return admin.remove(machine, now, principal, match.value)
            case _:
                return admin.tried(machine, now, principal, body)

    def _body(self, data: bytes, kind: type[Any]) -> Any:
        """The request's body as its type, or what is wrong with it."""
        try:
            body = msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError as error:
            return misfit(error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return Refusal("InvalidJSON", f"the body is not JSON: {error}")
        problem = json_problem(data)
        return body if problem is None else problem

    def query(self, request: Request, kind: type[Any]) -> Any:
        """The request's query as its type, or what is wrong with it."""
        given = {key: value for key, value in request.query.items() if key != "access_token"}
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            return misfit(error)
