"""The HTTP routes as one table: what is served, what is documented, and what each needs.

`api.py` answers from it, `openapi.py` prints it, and an unknown path is told the nearest of it.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec

from penstock.dialects.courier.operations.enqueue import EnqueueRequest
from penstock.dialects.courier.operations.payload_schemas import ValidateRequest
from penstock.dialects.courier.operations.redrive_and_purge import RedriveRequest, StreamRequest
from penstock.dialects.courier.operations.send import SendRequest
from penstock.dialects.courier.operations.settle import SettleRequest
from penstock.dialects.courier.operations.views import SnapshotQuery
from penstock.dialects.courier.sessions.pull import PullRequest
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery
from penstock.dialects.courier.sessions.view_feed import LiveQuery
from penstock.dialects.courier.triggers.admin import TryRequest
from penstock.dialects.courier.triggers.config import Trigger
from penstock.dialects.courier.wire.staged_envelopes import StageCommit

Scope = Annotated[str, msgspec.Meta(min_length=1, max_length=600)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Wanted = Annotated[str, msgspec.Meta(max_length=1_024)] | None


class PeekQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/peek`."""

    stream: str
    state: str = "ready"
    max: int = 10


class StreamQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A query that only names a stream."""

    stream: str


class MetricsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/metrics`: 1 asks for figures of each stream, 0 for sums; else as configured."""

    streams: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = None


class JournalQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/journal/rows`: rows `from` to `to - 1`; what is left out reaches as far as there is."""

    shard: int = 0
    first: Offset | None = msgspec.field(default=None, name="from")
    end: Offset | None = msgspec.field(default=None, name="to")
    columns: str | None = None
    """Names separated by commas; else all of them."""
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ReaderRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/v1/journal/readers`: a named reader has every row before `offset`."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]
    offset: Offset


class StageQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of a staged part: parts of another `run` of the same batch are dropped."""

    run: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = ""


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A query without parameters."""


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /console/session`."""

    token: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class TailQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/tail`: rows from `after` on; left out, the last `back` rows. `*` stands for anything."""

    after: Offset | None = None
    back: Annotated[int, msgspec.Meta(ge=0, le=2_000)] = 100
    door: Wanted = None
    channel: Wanted = None
    event: Wanted = None
    kind: Wanted = None
    sender: Wanted = msgspec.field(default=None, name="from")
    id: Wanted = None
    corr: Wanted = None
    text: Wanted = None
    """In the body, the id or the correlation id, in whatever case."""
    max: Annotated[int, msgspec.Meta(ge=1, le=2_000)] = 500
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=20_000)] = 0
    """How long to wait for the first row where there is none."""
    skip: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    """1: who is far behind goes on near the end, and is told how many rows it missed."""


class SqlRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/v1/sql`."""

    query: Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200
    """Rows at most; `console.sql_rows` bounds it further."""


class SpacesQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Query of `/v1/spaces`."""

    space: str | None = None
    """Only this one."""


class SpaceMessage(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body of `/v1/spaces/{space}/messages`: an envelope but for what the server fills."""

    kind: Annotated[str, msgspec.Meta(min_length=1)]
    payload: msgspec.Raw
    to: list[str] = []
    correlation_id: list[str] = []


class InviteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/v1/spaces/{space}/invite`."""

    participant: Annotated[str, msgspec.Meta(min_length=1)]
    capabilities: list[str | dict[str, Any]] = []
    """Kinds that it may send, or capabilities whole."""
    reason: str | None = None


class KickRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `/v1/spaces/{space}/kick`."""

    participant: Annotated[str, msgspec.Meta(min_length=1)]
    reason: str | None = None


class TokenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/tokens`."""

    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9._-]{1,64}$")]
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=100)]
    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    tenant: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None


class Route(msgspec.Struct, frozen=True):
    """One method on one path, which may hold names in braces; an `{id}` or a `{stream}` takes slashes too."""

    method: str
    path: str
    name: str
    summary: str
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] = NoQuery
    is_open: bool = False
    """Served without a token."""
    takes_lines: bool = False
    """The body is lines of JSON."""
    upgrade: bool = False
    """A WebSocket."""
    events: bool = False
    """A request that is no upgrade is answered with server-sent events."""
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
    Route("GET", "/v1/snapshot", "snapshot", "Rows of a view", query=SnapshotQuery),
    Route("GET", "/v1/live", "live", "Changes of a view: a WebSocket, else server-sent events",
          query=LiveQuery, upgrade=True, events=True),
    Route("GET", "/v1/envelopes/{id}", "where", "Where an envelope is"),
    Route("GET", "/v1/streams/{stream}/explain", "explain", "Why nothing flows in a stream"),
    Route("GET", "/v1/triggers", "triggers", "Every trigger, with its counts (admin)"),
    Route("POST", "/v1/triggers/try", "trigger_try", "What the triggers would do with an envelope (admin)", TryRequest),
    Route("GET", "/v1/triggers/{rule}", "trigger", "One trigger (admin)"),
    Route("PUT", "/v1/triggers/{rule}", "trigger_put", "Give or replace a trigger at run time (admin)", Trigger),
    Route("DELETE", "/v1/triggers/{rule}", "trigger_remove", "Take back a trigger given at run time (admin)"),
    Route("GET", "/v1/triggers/{rule}/explain", "trigger_explain", "Why a trigger fires or does not (admin)"),
    Route("GET", "/v1/schemas", "schemas", "The schemas of payloads that are known"),
    Route("POST", "/v1/schemas/validate", "schemas_validate",
          "Hold an envelope against the schema it names, and put it nowhere", ValidateRequest),
    Route("GET", "/v1/journal", "journal", "How far the journal reaches, and its columns (operator)"),
    Route("GET", "/v1/journal/rows", "journal_rows", "Rows of the journal as an Arrow IPC stream (operator)",
          query=JournalQuery, content_type="application/vnd.apache.arrow.stream"),
    Route("POST", "/v1/journal/seal", "journal_seal", "Move what is committed to the Delta table now (operator)"),
    Route("POST", "/v1/journal/readers", "journal_readers",
          "Say how far a named reader has come: retention waits for it (operator)", ReaderRequest),
    Route("POST", "/v1/stage/{app}/{batch}/parts/{part}", "stage_part",
          "Stage envelopes of a batch, one a line; the same part again replaces it", query=StageQuery, takes_lines=True),
    Route("POST", "/v1/stage/{app}/{batch}/commit", "stage_commit",
          "Enqueue the staged parts of a batch, once however often it is asked", StageCommit),
    Route("POST", "/v1/stage/{app}/{batch}/abort", "stage_abort", "Drop what is staged of a batch"),
    Route("GET", "/v1/stage/{app}", "stage_last", "The newest batch of an application that is in"),
    Route("GET", "/v1/spaces", "spaces", "Every space: who is there, which streams are open, what passed (admin)",
          query=SpacesQuery),
    Route("GET", "/v1/tail", "tail", "Rows of the journal as JSON, and the next ones as they come (admin)", query=TailQuery),
    Route("GET", "/v1/pipeline", "pipeline", "How the Spark pipeline is doing (admin)"),
    Route("GET", "/v1/lake", "lake", "The tables: rows, bytes, columns (admin)"),
    Route("POST", "/v1/sql", "sql", "Ask the tables something; only reads (admin)", SqlRequest),
    Route("GET", "/v1/alerts", "alerts", "What the pipeline found worth telling, firing first (admin)"),
    Route("POST", "/v1/spaces/{space}/messages", "space_send", "Send an envelope into a space as `operator` (admin)",
          SpaceMessage),
    Route("POST", "/v1/spaces/{space}/invite", "space_invite", "Let somebody into a space; the token is shown once (admin)",
          InviteRequest),
    Route("POST", "/v1/spaces/{space}/kick", "space_kick", "Put somebody out of a space (admin)", KickRequest),
    Route("GET", "/v1/relay/topics", "relay_topics", "Token streams by the hashes of their topics, busiest first (admin)"),
    Route("GET", "/v1/tokens", "tokens", "Every token, but never the token itself (admin)"),
    Route("POST", "/v1/tokens", "token_mint", "Make a token at run time, which is shown once (admin)", TokenRequest),
    Route("DELETE", "/v1/tokens/{name}", "token_revoke", "Take back a token made at run time (admin)"),
    Route("POST", "/v1/reload", "reload", "Read the config again, all or nothing (operator)"),
    Route("GET", "/v1/subscribe", "subscribe", "WebSocket: deliveries of one stream",
          query=SubscribeQuery, upgrade=True),
    Route("GET", "/v1/relay", "relay", "WebSocket: one token stream; the first message names its topic", upgrade=True),
    Route("GET", "/v1/control", "control", "WebSocket: Control v1 lines", upgrade=True),
    Route("GET", "/health", "health", "Whether the server is well", is_open=True),
    Route("GET", "/metrics", "prometheus", "Metrics for Prometheus", query=MetricsQuery,
          content_type="text/plain; version=0.0.4; charset=utf-8"),
    Route("GET", "/openapi.json", "openapi", "This surface as OpenAPI 3.1", is_open=True),
    Route("GET", "/", "welcome", "The console, or a word for people", is_open=True,
          content_type="text/html; charset=utf-8"),
    Route("GET", "/console/session", "console_session", "Who is signed in to the console", is_open=True),
    Route("POST", "/console/session", "console_sign_in", "Trade the operator's token for a cookie", Login, is_open=True),
    Route("DELETE", "/console/session", "console_sign_out", "Give the cookie up", is_open=True),
    Route("GET", "/console/{file}", "console_file", "A file of the console", is_open=True, content_type="*/*"),
)  # fmt: skip

_EXACT = {(route.method, route.path): route for route in ROUTES if "{" not in route.path}
_VARIABLE = re.compile(r"\{(\w+)\}")


def variables(path: str) -> list[str]:
    """The names in braces."""
    return _VARIABLE.findall(path)


def _template(path: str) -> re.Pattern[str]:
    pieces = _VARIABLE.split(path)
    for index, piece in enumerate(pieces):
        variable = "(.+)" if piece in ("id", "stream") else "([^/]+)"
        pieces[index] = variable if index % 2 else re.escape(piece)
    return re.compile("".join(pieces), re.DOTALL)


_TEMPLATES = tuple((route, _template(route.path)) for route in ROUTES if "{" in route.path)
_PATHS = tuple(dict.fromkeys(route.path for route in ROUTES))


class Match(msgspec.Struct, frozen=True):
    """A route and the variable parts of the path."""

    route: Route
    values: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        """The first of them."""
        return self.values[0] if self.values else ""


def find(method: str, path: str) -> Match | None:
    """The route of a request. HEAD is GET; the transport leaves the body out."""
    method = "GET" if method == "HEAD" else method
    route = _EXACT.get((method, path))
    if route is not None:
        return Match(route)
    for template, pattern in _TEMPLATES:
        if method == template.method and (found := pattern.fullmatch(path)):
            return Match(template, found.groups())
    return None


def methods(path: str) -> list[str]:
    """The methods that a path takes."""
    return [method for method in ("GET", "HEAD", "POST", "PUT", "DELETE") if find(method, path) is not None]


def nearest(path: str) -> str | None:
    """The route somebody may have meant."""
    close = get_close_matches(path, _PATHS, n=1, cutoff=0.5)
    return close[0] if close else None
