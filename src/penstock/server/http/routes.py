"""The table of HTTP routes: path, handler, and the types of query, body and answer.

`listener.py` serves it and `openapi.py` prints it. In the handlers, `s` is the server's services and `r` the request.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import to_thread
from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec

from penstock.core.cluster.status import ClusterStatus
from penstock.core.errors import Refusal
from penstock.core.steps import Steps
from penstock.dialects.courier.operations import payload_schemas, queries, redrive_and_purge, views
from penstock.dialects.courier.operations.enqueue import EnqueueRequest, SendRequest, enqueue_steps, send
from penstock.dialects.courier.operations.outcomes import Body, Outcome
from penstock.dialects.courier.operations.payload_schemas import ValidateRequest
from penstock.dialects.courier.operations.queries import MetricsSurvey, WhereSurvey
from penstock.dialects.courier.operations.settle import SettleRequest, settle
from penstock.dialects.courier.operations.views import SnapshotQuery
from penstock.dialects.courier.sessions.pull import PullRequest, PullSession, check_pull
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery
from penstock.dialects.courier.sessions.view_feed import LiveQuery
from penstock.dialects.courier.triggers import admin
from penstock.dialects.courier.triggers.admin import TryRequest
from penstock.dialects.courier.triggers.config import Trigger
from penstock.dialects.courier.wire.staged_envelopes import BatchSource, StageCommit, source_of
from penstock.server.admin import (
    cluster,
    connections,
    journal,
    lake,
    reload,
    resources,
    spaces,
    sql_process,
    tail,
    tokens,
)
from penstock.server.auth.minted_tokens import TokenRequest
from penstock.server.engine.connections import Connection, NoWire
from penstock.server.engine.schedulers import completed, in_steps
from penstock.server.files.addresses import payer_address
from penstock.server.http import answers, health, sockets
from penstock.server.http.console import NO_CONSOLE, ConsoleReply, Login
from penstock.server.http.request import AnyQuery, Request, Route
from penstock.server.http.services import HttpServices
from penstock.server.metrics import prometheus_families
from penstock.server.metrics.history import HistoryQuery, HistoryReply
from penstock.transports.http_replies import Reply, json_reply


class StageQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of a staged part: parts of another `run` of the same batch are dropped."""

    run: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = ""


def enqueue(services: HttpServices, request: Request) -> Outcome | Coroutine[Any, Any, Outcome]:
    """Check and admit envelopes, many or large ones in steps."""
    work = enqueue_steps(
        services.machine,
        request.now,
        request.principal,
        request.body,
        assign=services.config.streams.assign_id,
        address=payer_address(request.peer),
        is_checked=request.is_checked,
    )
    return in_steps(services.runtime.survey, work) if request.is_checked else Steps(work).all(request.now)


async def pull(services: HttpServices, request: Request) -> Reply | Refusal:
    """Wait for envelopes on a connection of its own, which ends with the answer or with the peer."""
    runtime, principal, wanted = services.runtime, request.principal, request.body
    lease_us = check_pull(runtime.machine, principal, wanted)
    if isinstance(lease_us, Refusal):
        return lease_us
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def finish(body: Body) -> None:
        if not future.done():
            future.set_result(json_reply(200, body))
        if isinstance(connection, Connection):
            connection.lost()

    session = PullSession(runtime, finish)
    connection = runtime.peers.open(session, NoWire(), principal, request.peer, is_brief=True, agent=wanted.agent)
    if isinstance(connection, Refusal):
        return connection
    consumer = runtime.machine.pull(
        request.now, connection.link, principal.to_channel(wanted.stream), wanted.max, wanted.wait_ms * 1000, lease_us
    )
    if isinstance(consumer, Refusal):
        connection.lost()
        return consumer
    runtime.apply(request.now)
    try:
        return await future
    except asyncio.CancelledError:  # the peer is gone: what it would have taken goes to others
        connection.lost()
        raise


Staged = Outcome | Coroutine[Any, Any, Outcome]


def staged(work: Callable[[HttpServices, Request, BatchSource], Staged]) -> Callable[[HttpServices, Request], Staged]:
    """A handler of a staging route: reads the batch from the path, then does the work."""

    def handle(services: HttpServices, request: Request) -> Staged:
        app, *rest = request.values
        source = source_of(app, rest[0] if rest else "0", request.principal, payer_address(request.peer))
        return source if isinstance(source, Refusal) else work(services, request, source)

    return handle


COURIER = """Penstock is running.

Send a message     curl -d '{"to":"sam","type":"hello","payload":{}}' %(url)s/v1/send
Take it            curl -d '{"stream":"agents/sam/inbox"}' %(url)s/v1/pull
The whole surface  %(url)s/openapi.json
"""
GATEWAY = """Penstock is running, as a gateway of MEW spaces.

Who is there       curl %(url)s/participants
Say something      curl -H 'Authorization: Bearer TOKEN' -d '{"kind":"chat","payload":{"text":"hello"}}' %(url)s/participants/NAME/messages
Join               a WebSocket to the same address, first message {"type":"join","participantId":"NAME","token":"TOKEN"}
"""
PLAIN = "text/plain; charset=utf-8"


class MetricsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/metrics`: 1 asks for figures of each stream, 0 for sums; else as configured."""

    streams: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = None


def welcome(services: HttpServices, request: Request) -> Reply:
    """The console's page, or a text with the first commands to try."""
    page = None if services.console is None else services.console.page(request.headers)
    if page is not None:
        return page
    text = COURIER if services.config.serves_courier else GATEWAY
    url = f"http://{request.headers.get('Host', 'localhost')}"
    return Reply(200, (text % {"url": url}).encode(), PLAIN)


async def metrics(services: HttpServices, request: Request) -> Reply:
    survey = MetricsSurvey(services.machine, request.principal)
    await completed(services.runtime.survey, survey)
    return Reply(200, survey.body())


async def where(services: HttpServices, request: Request) -> Reply | Refusal:
    survey = WhereSurvey(services.machine, request.principal, request.values[0])
    await completed(services.runtime.survey, survey)
    body = survey.body()
    return body if isinstance(body, Refusal) else Reply(200, body)


async def prometheus(services: HttpServices, request: Request) -> Reply:
    wanted: int | None = request.query.streams
    per_stream = None if wanted is None else wanted == 1
    scrape = services.exporter.scrape(request.principal, per_stream=per_stream)
    await completed(services.runtime.survey, scrape)
    return Reply(200, scrape.text(), prometheus_families.CONTENT_TYPE)


def cluster_state(services: HttpServices, request: Request) -> ClusterStatus | Refusal:
    status = None if services.cells is None else services.cells.cluster_status()
    return status or cluster.NO_CLUSTER


def _decider(services: HttpServices) -> cluster.ClusterDecider | None:
    return None if services.cells is None else services.cells.decider()


ROUTES = (
    Route("POST", "/v1/enqueue", "enqueue", "Append one envelope, or an array of them",
          enqueue,
          body=EnqueueRequest, answer=(answers.ENQUEUED_ONE, answers.ENQUEUED_MANY), is_idempotent=True, is_large=True),
    Route("POST", "/v1/send", "send", "Send a message: the server fills id, ts and from",
          lambda s, r: send(s.machine, r.now, r.principal, r.body, address=payer_address(r.peer)),
          body=SendRequest, answer=answers.SENT, is_idempotent=True, is_large=True),
    Route("POST", "/v1/pull", "pull", "Take envelopes, waiting for the first",
          pull, body=PullRequest, answer=answers.PULLED),
    Route("POST", "/v1/settle", "settle", "Ack, nack, release, term or extend a lease",
          lambda s, r: settle(s.machine, r.now, r.principal, r.body),
          body=SettleRequest, answer=answers.SETTLED, is_idempotent=True),
    Route("POST", "/v1/redrive", "redrive", "Send dead letters back to their stream",
          lambda s, r: in_steps(s.runtime.survey, redrive_and_purge.redrive_steps(s.machine, r.now, r.principal, r.body)),
          body=redrive_and_purge.RedriveRequest, answer=answers.REDRIVEN, is_idempotent=True),
    Route("POST", "/v1/purge", "purge", "Drop the envelopes that wait in a stream (admin)",
          lambda s, r: in_steps(s.runtime.survey, redrive_and_purge.purge_steps(s.machine, r.now, r.principal, r.body)),
          body=redrive_and_purge.StreamRequest, answer=answers.PURGED, is_idempotent=True),
    Route("POST", "/v1/drop", "drop", "Drop envelopes that wait in a stream, by their ids (admin)",
          lambda s, r: in_steps(s.runtime.survey, redrive_and_purge.drop_steps(s.machine, r.principal, r.body)),
          body=redrive_and_purge.DropRequest, answer=answers.DROPPED, is_idempotent=True),
    Route("GET", "/v1/stats", "stats", "Figures of one stream",
          lambda s, r: queries.stats(s.machine, r.now, r.principal, r.query.stream),
          query=redrive_and_purge.StreamRequest, answer=answers.STATS),
    Route("GET", "/v1/metrics", "metrics", "Figures and counters of every stream",
          metrics, answer=answers.METRICS),
    Route("GET", "/v1/peek", "peek", "Look at envelopes without taking them",
          lambda s, r: queries.peek(s.machine, r.now, r.principal, r.query),
          query=queries.PeekRequest, answer=answers.PEEKED),
    Route("GET", "/v1/snapshot", "snapshot", "Rows of a view",
          lambda s, r: views.snapshot(s.machine, r.now, r.principal, r.query.view, r.query.addr),
          query=SnapshotQuery, answer=answers.VIEW_ROWS),
    Route("GET", "/v1/live", "live", "Changes of a view: a WebSocket, else server-sent events",
          sockets.stream_events, query=LiveQuery, socket=sockets.open_live),
    Route("GET", "/v1/envelopes/{id}", "where", "Where an envelope is",
          where, answer=answers.PLACES),
    Route("GET", "/v1/streams/{stream}/explain", "explain", "Why a stream does not flow",
          lambda s, r: queries.explain(s.machine, r.now, r.principal, r.values[0]), answer=answers.EXPLAINED),
    Route("GET", "/v1/triggers", "triggers", "Every trigger, with its counts (admin)",
          lambda s, r: admin.listed(s.machine, r.now, r.principal), answer=answers.TRIGGERS),
    Route("POST", "/v1/triggers/try", "trigger_try", "What the triggers would do with an envelope (admin)",
          lambda s, r: admin.tried(s.machine, r.now, r.principal, r.body),
          body=TryRequest, answer=answers.TRIGGERS_TRIED),
    Route("GET", "/v1/triggers/{rule}", "trigger", "One trigger (admin)",
          lambda s, r: admin.shown(s.machine, r.now, r.principal, r.values[0]), answer=answers.TRIGGER),
    Route("PUT", "/v1/triggers/{rule}", "trigger_put", "Create or replace a trigger at run time (admin)",
          lambda s, r: admin.put(s.machine, r.now, r.principal, r.values[0], r.body),
          body=Trigger, answer=answers.TRIGGER_PUT),
    Route("DELETE", "/v1/triggers/{rule}", "trigger_remove", "Remove a trigger that was created at run time (admin)",
          lambda s, r: admin.remove(s.machine, r.now, r.principal, r.values[0]),
          answer=answers.TRIGGER_REMOVED),
    Route("GET", "/v1/triggers/{rule}/explain", "trigger_explain", "Why a trigger fires or does not (admin)",
          lambda s, r: admin.explained(s.machine, r.now, r.principal, r.values[0]),
          answer=answers.TRIGGER_EXPLAINED),
    Route("GET", "/v1/schemas", "schemas", "The payload schemas of the server",
          lambda s, r: payload_schemas.listing(s.machine), answer=answers.SCHEMAS),
    Route("POST", "/v1/schemas/validate", "schemas_validate", "Check an envelope against the schema it names, without enqueueing it",
          lambda s, r: payload_schemas.validate(s.machine, r.body.envelope),
          body=ValidateRequest, answer=answers.JUDGED),
    Route("GET", "/v1/journal", "journal", "How far the journal reaches, and its columns (operator)",
          lambda s, r: s.journal.describe(r.principal), answer=journal.JournalBoundsReply),
    Route("GET", "/v1/journal/rows", "journal_rows", "Rows of the journal as an Arrow IPC stream (operator)",
          lambda s, r: s.journal.rows(r.principal, r.query),
          query=journal.JournalQuery, content_type="application/vnd.apache.arrow.stream"),
    Route("POST", "/v1/journal/seal", "journal_seal", "Move the committed rows to the Delta table now (operator)",
          lambda s, r: s.journal.seal(r.principal), answer=journal.SealedReply),
    Route("POST", "/v1/journal/readers", "journal_readers", "Note how far a named reader has come: retention waits for it (operator)",
          lambda s, r: s.journal.hold(r.principal, r.body), body=journal.ReaderRequest, answer=journal.JournalReaderReply),
    Route("POST", "/v1/stage/{app}/{batch}/parts/{part}", "stage_part", "Stage envelopes of a batch, one a line; the same part again replaces it",
          staged(lambda s, r, batch: s.staging.part(r.now, batch, r.values[2], r.query.run, r.data)),
          query=StageQuery, answer=answers.STAGED_PART, is_large=True, takes_lines=True),
    Route("POST", "/v1/stage/{app}/{batch}/commit", "stage_commit", "Enqueue the staged parts of a batch, exactly once",
          staged(lambda s, r, batch: s.staging.commit(r.now, batch, r.body)), body=StageCommit, answer=answers.STAGED_BATCH, is_large=True),
    Route("POST", "/v1/stage/{app}/{batch}/abort", "stage_abort", "Drop the staged parts of a batch",
          staged(lambda s, r, batch: s.staging.abort(batch)), answer=answers.STAGE_ABORTED),
    Route("GET", "/v1/stage/{app}", "stage_last", "The newest committed batch of an application",
          staged(lambda s, r, batch: s.staging.last(batch)), answer=answers.STAGE_LAST),
    Route("GET", "/v1/cluster", "cluster", "The shards of the cluster, their owners, and the nodes (admin)",
          cluster_state, answer=ClusterStatus, is_admin=True),
    Route("POST", "/v1/cluster/move", "cluster_move", "Have a node own a shard of the cluster (admin)",
          lambda s, r: cluster.move(_decider(s), r.body),
          body=cluster.MoveRequest, answer=cluster.DecidedReply, is_admin=True),
    Route("POST", "/v1/cluster/drain", "cluster_drain", "Have a node of the cluster own nothing (admin)",
          lambda s, r: cluster.drain(_decider(s), r.body),
          body=cluster.DrainRequest, answer=cluster.DecidedReply, is_admin=True),
    Route("GET", "/v1/spaces", "spaces", "Every space: participants, open streams, counts (admin)",
          lambda s, r: spaces.list_spaces(s.spaces, r.query),
          query=spaces.SpacesQuery, answer=spaces.SpacesReply, is_admin=True),
    Route("GET", "/v1/tail", "tail", "Rows of the journal as JSON, and a wait for the next ones (admin)",
          lambda s, r: s.tail.tail(r.principal, r.query), query=tail.TailQuery, answer=tail.TailReply, is_admin=True),
    Route("GET", "/v1/pipeline", "pipeline", "The state of the Spark pipeline (admin)",
          lambda s, r: lake.pipeline_state(s.pipeline()), answer=lake.PipelineStateReply, is_admin=True),
    Route("GET", "/v1/lake", "lake", "The tables: rows, bytes, columns (admin)",
          lambda s, r: s.lake.tables(), answer=lake.LakeReply, is_admin=True),
    Route("POST", "/v1/sql", "sql", "Query the tables; read only (admin)",
          lambda s, r: s.sql.sql(r.body), body=lake.SqlRequest, answer=sql_process.SqlAnswer, is_admin=True),
    Route("GET", "/v1/alerts", "alerts", "The alerts of the pipeline, firing ones first (admin)",
          lambda s, r: s.lake.alerts(), answer=lake.AlertsReply, is_admin=True),
    Route("POST", "/v1/spaces/{space}/messages", "space_send", "Send an envelope into a space as `operator` (admin)",
          lambda s, r: spaces.send(s.spaces, r.principal, r.values[0], r.body),
          body=spaces.SpaceMessage, answer=spaces.SpaceSentReply, is_admin=True, is_large=True),
    Route("POST", "/v1/spaces/{space}/invite", "space_invite", "Add a participant to a space; the answer has its token, once (admin)",
          lambda s, r: spaces.invite(s.spaces, r.principal, r.values[0], r.body),
          body=spaces.InviteRequest, answer=spaces.InvitedReply, is_admin=True),
    Route("POST", "/v1/spaces/{space}/kick", "space_kick", "Remove a participant from a space (admin)",
          lambda s, r: spaces.kick(s.spaces, r.principal, r.values[0], r.body),
          body=spaces.KickRequest, answer=spaces.KickedReply, is_admin=True),
    Route("GET", "/v1/relay/topics", "relay_topics", "Token streams by the hashes of their topics, busiest first (admin)",
          lambda s, r: connections.list_topics(s.relay), answer=connections.RelayTopicsReply, is_admin=True),
    Route("GET", "/v1/history", "history", "The main metrics over time (admin)",
          lambda s, r: s.lake_history.reply(r.query, r.now, s.runtime.machine.limits.name_max), query=HistoryQuery, answer=HistoryReply, is_admin=True),
    Route("GET", "/v1/connections", "connections", "Who is connected: from where, streams, deliveries, lag, slow readers (admin)",
          lambda s, r: connections.list_connections(s.runtime, r.now, r.query),
          query=connections.ConnectionsQuery, answer=connections.ConnectionsReply, is_admin=True),
    Route("DELETE", "/v1/connections/{link}", "connection_close", "Close a connection; its leases return to their streams (admin)",
          lambda s, r: connections.close(s.runtime, r.principal, r.values[0]), answer=connections.ClosedReply, is_admin=True),
    Route("GET", "/v1/tokens", "tokens", "Every token, without the token itself (admin)",
          lambda s, r: s.token_admin.listing(), answer=tokens.TokensReply, is_admin=True),
    Route("POST", "/v1/tokens", "token_mint", "Mint a token at run time; the answer has it, once (admin)",
          lambda s, r: s.token_admin.mint(r.principal, r.body),
          body=TokenRequest, answer=tokens.MintedReply, is_admin=True),
    Route("DELETE", "/v1/tokens/{name}", "token_revoke", "Revoke a token that was minted at run time (admin)",
          lambda s, r: s.token_admin.revoke(r.principal, r.values[0]), answer=tokens.RevokedReply, is_admin=True),
    Route("GET", "/v1/resources", "resources", "Processes, disk and bounds on memory: what is used and what is reserved (admin)",
          lambda s, r: to_thread(resources.measure, s.runtime, s.journal.archive), answer=resources.ResourcesReply, is_admin=True),
    Route("GET", "/v1/config", "config", "The effective config with secrets masked, and the policy of a stream (admin)",
          lambda s, r: reload.effective(s.config, r.query), query=reload.ConfigQuery, answer=reload.ConfigReply, is_admin=True),
    Route("POST", "/v1/reload", "reload", "Reload the config, all or nothing (operator)",
          lambda s, r: s.reload(), answer=reload.ReloadedReply, is_admin=True),
    Route("GET", "/v1/subscribe", "subscribe", "WebSocket: deliveries of one stream",
          None, query=SubscribeQuery, socket=sockets.open_subscription),
    Route("GET", "/v1/relay", "relay", "WebSocket: one token stream; the first message names its topic",
          None, query=AnyQuery, socket=sockets.open_relay),
    Route("GET", "/v1/control", "control", "WebSocket: Control v1 lines",
          None, query=AnyQuery, socket=sockets.ControlUpgrade),
    Route("GET", "/health", "health", "Whether the server accepts work, and the state of each part",
          health.overall, query=AnyQuery, answer=answers.HEALTH, is_open=True),
    Route("GET", "/health/live", "health_live", "Whether the process runs, for a supervisor that restarts it",
          health.live, query=AnyQuery, answer=answers.LIVE, is_open=True),
    Route("GET", "/metrics", "prometheus", "Metrics for Prometheus",
          prometheus,
          query=MetricsQuery, content_type="text/plain; version=0.0.4; charset=utf-8"),
    Route("GET", "/openapi.json", "openapi", "This API as OpenAPI 3.1",
          lambda s, r: Reply(200, s.openapi), query=AnyQuery, is_open=True),
    Route("GET", "/", "welcome", "The console, or a text with the first commands to try",
          welcome, query=AnyQuery, is_open=True, content_type="text/html; charset=utf-8"),
    Route("GET", "/console/session", "console_session", "Who is signed in to the console",
          lambda s, r: s.console.session(r.principal) if s.console else NO_CONSOLE,
          query=AnyQuery, answer=ConsoleReply, is_open=True),
    Route("POST", "/console/session", "console_sign_in", "Exchange the operator's token for a cookie",
          lambda s, r: s.console.sign_in(r.headers, r.peer, r.body) if s.console else NO_CONSOLE,
          body=Login, answer=ConsoleReply, is_open=True),
    Route("DELETE", "/console/session", "console_sign_out", "Sign out: end the session and delete the cookie",
          lambda s, r: s.console.sign_out(r.headers) if s.console else NO_CONSOLE,
          query=AnyQuery, is_open=True),
    Route("GET", "/console/{file}", "console_file", "A file of the console",
          lambda s, r: s.console.file(r.headers, r.values[0]) if s.console else NO_CONSOLE,
          query=AnyQuery, is_open=True, content_type="*/*"),
)  # fmt: skip

_EXACT = {(route.method, route.path): route for route in ROUTES if "{" not in route.path}
_VARIABLE = re.compile(r"\{(\w+)\}")


def _template(path: str) -> re.Pattern[str]:
    pieces = _VARIABLE.split(path)
    for index, piece in enumerate(pieces):
        variable = "(.+)" if piece in ("id", "stream") else "([^/]+)"
        pieces[index] = variable if index % 2 else re.escape(piece)
    return re.compile("".join(pieces), re.DOTALL)


_TEMPLATES = tuple((route, _template(route.path)) for route in ROUTES if "{" in route.path)
_PATHS = tuple(dict.fromkeys(route.path for route in ROUTES))


def find(method: str, path: str) -> tuple[Route, tuple[str, ...]] | None:
    """The route of a request and the variable parts of its path. HEAD is GET; the transport leaves the body out."""
    method = "GET" if method == "HEAD" else method
    route = _EXACT.get((method, path))
    if route is not None:
        return route, ()
    for template, pattern in _TEMPLATES:
        if method == template.method and (found := pattern.fullmatch(path)):
            return template, found.groups()
    return None


def methods(path: str) -> list[str]:
    """The methods of a path."""
    return [method for method in ("GET", "HEAD", "POST", "PUT", "DELETE") if find(method, path) is not None]


def nearest(path: str) -> str | None:
    """The path closest to one that does not exist."""
    close = get_close_matches(path, _PATHS, n=1, cutoff=0.5)
    return close[0] if close else None
