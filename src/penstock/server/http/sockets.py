"""Handlers of the WebSocket routes, and of the server-sent events of `/v1/live`.

With `softAuth=1` a client without the rights gets its socket, an error message and a close code: browsers cannot read the
status of a refused upgrade.
"""

from __future__ import annotations

import msgspec

from penstock.core.errors import Refusal
from penstock.dialects.courier.sessions import subscribe, view_feed
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from penstock.dialects.courier.sessions.subscribe import SubscribeSession
from penstock.server.courier.event_streams import EventStream, LiveUpgrade, open_events, refuse
from penstock.server.courier.frame_recorder import open_control
from penstock.server.courier.front import SocketFrontSession, open_front
from penstock.server.engine.connections import Connection
from penstock.server.http.request import Request
from penstock.server.http.services import CellsPort, HttpServices
from penstock.transports.http_replies import Reply, Upgrade
from penstock.transports.transport import ServerWebSocketTransport


class SubscribeUpgrade(Upgrade):
    """Opens a subscription, or a socket that only says why it is refused."""

    def __init__(self, services: HttpServices, request: Request, refusal: Refusal | None) -> None:
        limits = services.machine.limits
        self.message_max = limits.message_max if refusal is None else min(limits.message_max, limits.join_bytes_max)
        self._runtime = services.runtime
        self._cells = services.cells
        self._request = request
        self._refusal = refusal

    def open(self, wire: ServerWebSocketTransport) -> Connection | None:
        if self._refusal is not None:
            refuse(wire, self._refusal)
            return None
        runtime, request = self._runtime, self._request
        if self._cells is not None:
            return self._open_front(self._cells, wire)
        session = SubscribeSession(runtime, request.query)
        connection = runtime.peers.open(session, wire, request.principal, request.peer, agent=request.query.agent)
        if isinstance(connection, Refusal):
            refuse(wire, connection)
            return None
        session.open(runtime.scheduler.now())
        runtime.peers.touch(connection)
        return connection

    def _open_front(self, cells: CellsPort, wire: ServerWebSocketTransport) -> Connection | None:
        request, query = self._request, self._request.query
        shard = shard_of_stream(request.principal.to_channel(query.stream))
        front = SocketFrontSession(cells, shard, query)
        connection = open_front(self._runtime, front, wire, request.principal, request.peer, query.agent)
        if isinstance(connection, Refusal):
            refuse(wire, connection)
            return None
        return connection


class ControlUpgrade(Upgrade):
    """Opens a WebSocket that carries Control v1 lines."""

    merge = True

    def __init__(self, services: HttpServices, request: Request) -> None:
        self.message_max = services.machine.limits.frame_max
        self._services = services
        self._request = request

    def open(self, wire: ServerWebSocketTransport) -> Connection | None:
        services, request = self._services, self._request
        connection = open_control(
            services.runtime, services.recorder, wire, request.principal, request.peer, services.cells
        )
        if isinstance(connection, Refusal):
            refuse(wire, connection)
            return None
        return connection


def is_soft(request: Request, refusal: Refusal) -> bool:
    """Whether a refusal is sent over the socket instead of refusing the upgrade."""
    return refusal.status in (401, 403) and request.parameters.get("softAuth") == "1"


def refuse_softly(services: HttpServices, request: Request, refusal: Refusal) -> Upgrade:
    """A socket that only says that the token is not accepted."""
    code = "Unauthorized" if refusal.status == 401 else "Forbidden"
    return SubscribeUpgrade(services, request, Refusal(code, "the token is not accepted"))


def open_subscription(services: HttpServices, request: Request) -> Upgrade | Refusal:
    refused = subscribe.check(services.runtime, request.principal, request.query)
    if refused is not None and not is_soft(request, refused):
        return refused
    return SubscribeUpgrade(services, request, refused)


def open_live(services: HttpServices, request: Request) -> Upgrade | Refusal:
    if services.cells is not None:
        request.query = msgspec.structs.replace(request.query, since=None)
    checked = view_feed.check(services.machine, request.principal, request.query)
    if isinstance(checked, Refusal) and not is_soft(request, checked):
        return checked
    return LiveUpgrade(services.runtime, request.principal, request.query, checked, request.peer)


def open_relay(services: HttpServices, request: Request) -> Upgrade | Refusal:
    if services.relay is None:
        hint = "start the server with `penstock up`, without --no-relay"
        return Refusal("UnknownRoute", "this server runs no relay", hint=hint)
    return services.relay.listen(request.principal, request.peer)


def stream_events(services: HttpServices, request: Request) -> EventStream | Reply | Refusal:
    last = None if services.cells is not None else request.headers.get("Last-Event-ID")
    stream = open_events(services.runtime, request.principal, request.query, last, request.peer)
    if request.is_head and not isinstance(stream, Refusal):
        return Reply(200, b"", "text/event-stream")
    return stream
