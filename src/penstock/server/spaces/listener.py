"""Spaces on the HTTP port: WebSockets of participants, and `/participants` for requests.

Answers have upstream's bodies and status codes, always as JSON. A client is identified before its body is read.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from penstock.core.clock import rfc3339
from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS, UNAUTHENTICATED, Principal
from penstock.dialects.mew import join
from penstock.dialects.mew.envelopes import read_envelope
from penstock.dialects.mew.gateway_messages import MewRefusal
from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.participants import Participant
from penstock.dialects.mew.session import MewSession
from penstock.server.auth.tokens import Guard, bearer, subprotocol
from penstock.server.logging import logs
from penstock.server.spaces.connection import SpaceConnection
from penstock.server.spaces.host import Spaces
from penstock.server.spaces.pollers import Pollers
from penstock.transports.exchanges import BodyTooLargeError, Exchange
from penstock.transports.http_replies import Reply, Upgrade, json_reply
from penstock.transports.transport import ServerWebSocketTransport

ELSEWHERE = ("/v1/", "/console", "/metrics", "/health")
"""Paths that are never a participant's."""
ROOT = "/participants"


def is_for_spaces(exchange: Exchange) -> bool:
    """Whether a request is for spaces: any WebSocket that no other route names, and `/participants`."""
    path = exchange.path
    if exchange.is_upgrade:
        return not path.startswith(ELSEWHERE) and path != "/v1"
    return path == ROOT or path.startswith(ROOT + "/")


class SpaceUpgrade(Upgrade):
    """Opens a participant's WebSocket."""

    wants_pongs = True

    def __init__(self, spaces: Spaces, exchange: Exchange, query: dict[str, str]) -> None:
        self._spaces = spaces
        self._exchange = exchange
        self._peer = exchange.peer
        self.message_max = max(spaces.limits.space_frame_max, spaces.limits.space_envelope_max)
        self.subprotocol = subprotocol(exchange.headers.get("Sec-WebSocket-Protocol"))
        self._token = _token(exchange, query)
        self._space = query.get("space")
        self._id = query.get("participant") or query.get("participantId")
        self.unauthenticated_max = None if self._is_known() else spaces.limits.join_bytes_max

    def _is_known(self) -> bool:
        """Whether the token of the request is that of a participant: only then a message may be large at once."""
        space = self._spaces.find(self._space)
        if self._token is None or isinstance(space, MewRefusal):
            return False
        is_operator = self._spaces.is_operator(self._token)
        known = join.identify(space, self._id, _digest(self._token), is_operator=is_operator)
        return not isinstance(known, MewRefusal)

    def open(self, wire: ServerWebSocketTransport) -> SpaceConnection | None:
        wire.show_progress()  # see `StreamWaits`
        session = MewSession(self._spaces, token=self._token, space=self._space, participant=self._id)
        session.identified = self._exchange.known
        session.is_known = self.unauthenticated_max is None
        connection = self._spaces.open(wire, session, self._peer, UNAUTHENTICATED)
        if isinstance(connection, Refusal):
            now = self._spaces.runtime.scheduler.now()
            fault = MewRefusal("too_many_connections", connection.message, status=429)
            wire.send([self._spaces.text(self._spaces.messages.error(now, fault, None))])
            wire.close(1013, fault.error)
            return None
        return connection


class Asked(msgspec.Struct):
    """A request that has access."""

    space: SpaceMachine
    id: str = ""
    party: str = ""
    method: str = "GET"


class SpaceEndpoint:
    """Spaces on the HTTP port."""

    def __init__(self, spaces: Spaces, guard: Guard, *, is_loopback_bind: bool) -> None:
        self._spaces = spaces
        self._guard = guard
        self._is_loopback_bind = is_loopback_bind
        self._pollers = Pollers(spaces)

    @property
    def body_max(self) -> int:
        # Above the limit of an envelope, so that those who wait for one that is too large are notified.
        return 2 * self._spaces.limits.space_envelope_max

    async def handle(self, exchange: Exchange) -> Reply | SpaceUpgrade:
        """Answer a request for which `is_for_spaces` holds."""
        exchange.peer = self._guard.client_address(exchange.peer, exchange.headers)
        refusal = self._guard.check_origin(exchange.headers.get("Host"), exchange.headers.get("Origin"))
        if refusal is not None:
            return json_reply(403, {"error": "forbidden", "message": refusal.message})
        query = dict(exchange.query_pairs)
        if exchange.is_upgrade and self._spaces.spaces:
            return SpaceUpgrade(self._spaces, exchange, query)
        space = self._spaces.find(query.get("space"))
        if isinstance(space, MewRefusal):
            return _refusal(space)
        asked = self._asked(exchange, query, space)
        if isinstance(asked, Reply):
            return asked
        exchange.known()
        # Who pays for a large answer that is not read: the participant, as on its sockets.
        exchange.holder = Principal(f"{asked.party} of space {space.id}") if asked.party else ANONYMOUS
        if exchange.size is not None and exchange.size > self.body_max:
            return self._too_large()
        body = await exchange.read()
        if not asked.id:
            return _participants(asked.space)
        if asked.method == "GET":
            now = self._spaces.runtime.scheduler.now()
            return self._pollers.poll(now, asked.space, asked.id, asked.party)
        return await self._take(asked, body)

    def _asked(self, exchange: Exchange, query: dict[str, str], space: SpaceMachine) -> Asked | Reply:
        parts = exchange.path.split("/")[2:]
        if not parts or parts == [""]:
            if exchange.method not in ("GET", "HEAD"):
                return _not_allowed("GET")
            reader = self._check_reader(exchange, query, space)
            return Asked(space, party=reader) if isinstance(reader, str) else reader
        if len(parts) != 2 or parts[1] != "messages":
            message = f"there is nothing at `{exchange.path[:200]}`"
            return json_reply(404, {"error": "not_found", "message": message})
        if exchange.method not in ("GET", "POST"):
            return _not_allowed("GET, POST")
        token = _token(exchange, query)
        if not token:
            return self._unauthorized(token, exchange)
        known = join.identify(space, parts[0], _digest(token), is_operator=self._spaces.is_operator(token))
        if isinstance(known, MewRefusal):
            if known.error == "unauthorized":
                self._spaces.token_refused(token, exchange.peer)
            return json_reply(403, {"error": "Invalid token for participant", "message": known.message})
        id_, party = known
        if id_ != party and exchange.method == "POST" and id_ not in space.present:
            message = f"no participant has joined as `{id_}`; send as `{party}`, or join under that id first"
            return json_reply(403, {"error": "Invalid token for participant", "message": message})
        return Asked(space, id_, party, exchange.method)

    def _unauthorized(self, token: str | None, exchange: Exchange) -> Reply:
        self._spaces.token_refused(token, exchange.peer)
        body = {"error": "Missing or invalid authorization header"}
        return json_reply(401, body, {"WWW-Authenticate": "Bearer"})

    def _check_reader(self, exchange: Exchange, query: dict[str, str], space: SpaceMachine) -> Reply | str:
        """Who lists the participants: the party of a token of the space, or none on this machine; or why that is refused."""
        token = _token(exchange, query)
        if token is None and self._is_loopback_bind:
            refusal = self._guard.check_peer(exchange.peer, self._is_loopback_bind)
            # With another `Host` it may come from a web page, through DNS rebinding.
            if refusal is None and self._guard.is_local_name(exchange.headers.get("Host")):
                return ""
        if token:
            known = join.identify(space, None, _digest(token), is_operator=self._spaces.is_operator(token))
            if not isinstance(known, MewRefusal):
                return known[1]
        return self._unauthorized(token, exchange)

    async def _take(self, asked: Asked, body: bytes) -> Reply:
        spaces, space = self._spaces, asked.space
        fields = await spaces.read(body)
        now = spaces.runtime.scheduler.now()
        if isinstance(fields, MewRefusal):
            if fields.error == "validation_error":
                return json_reply(400, {"error": "Request body must be a JSON object"})
            return _refusal(fields)
        envelope = read_envelope(fields, spaces.limits, now, fresh_id=spaces.messages.fresh("http"), strict=False)
        if isinstance(envelope, MewRefusal):
            if "kind" not in fields:
                return json_reply(400, {"error": envelope.message})
            return _refusal(envelope)
        sender = self._sender(space, asked)
        outcome = await spaces.accept(now, space, sender, envelope)
        if isinstance(outcome, MewRefusal):
            return self._failed(outcome, asked.id)
        answer: dict[str, Any] = {"id": envelope.id, **outcome}
        if answer["status"] == "stream_opened":
            answer["timestamp"] = rfc3339(spaces.runtime.scheduler.now().wall_us)
        return json_reply(409 if answer["status"] == "already_exists" else 200, answer)

    def _sender(self, space: SpaceMachine, asked: Asked) -> Participant:
        """The sender: the participant that is present, or one that only sends. A virtual one enters with its first request."""
        if (there := space.present.get(asked.id)) is not None:
            return there
        sink = self._spaces.sinks.get((space.id, asked.id))
        if sink is not None:
            return self._spaces.enter(space, asked.id, sink, "virtual")
        return Participant(asked.id, asked.party, None, "http")

    def _failed(self, fault: MewRefusal, id_: str) -> Reply:
        if not fault.whole:
            return _refusal(fault)
        now = self._spaces.runtime.scheduler.now()
        return Reply(fault.status, self._spaces.messages.error(now, fault, id_))

    def _too_large(self) -> Reply:
        message = f"the body is over twice `limits.space_envelope_max`, which is {self.body_max} bytes"
        return json_reply(413, {"error": "too_large", "message": message})

    def failed(self, exchange: Exchange, error: Exception) -> Reply:
        if isinstance(error, BodyTooLargeError):
            return self._too_large()
        if isinstance(error, TimeoutError):
            return json_reply(408, {"error": "timeout", "message": "the body did not arrive in time"})
        if isinstance(error, ValueError) and exchange.is_upgrade:
            return json_reply(400, {"error": "invalid_request", "message": str(error)})
        logs.error("mew.failed", exc=error, path=exchange.path)
        return json_reply(500, {"error": "internal", "message": "the request failed; the log says why"})


def _token(exchange: Exchange, query: dict[str, str]) -> str | None:
    headers = exchange.headers
    given = query.get("token") or query.get("access_token")
    return bearer(headers.get("Authorization"), headers.get("Sec-WebSocket-Protocol"), given)


def _digest(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _participants(space: SpaceMachine) -> Reply:
    """The participants that are present."""
    shown = [
        {"id": each.id, "connected": True, "capabilities": space.rights(each.party).all}
        for each in space.present.values()
    ]
    return json_reply(200, {"participants": shown})


def _refusal(fault: MewRefusal) -> Reply:
    headers = {"Retry-After": "1"} if fault.status in (429, 503) else {}
    return json_reply(fault.status, fault.payload, headers)


def _not_allowed(methods: str) -> Reply:
    body = {"error": "method_not_allowed", "message": f"this takes {methods}"}
    return json_reply(405, body, {"Allow": methods})
