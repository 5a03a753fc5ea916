"""Followers of views: WebSockets, and server-sent events for plain requests."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import Refusal
from penstock.core.queue.views import View
from penstock.core.scopes import Principal
from penstock.dialects.courier.operations.views import Sight
from penstock.dialects.courier.sessions import view_feed
from penstock.dialects.courier.sessions.live import LiveSession
from penstock.dialects.courier.sessions.subscribe import error_message
from penstock.dialects.courier.sessions.view_feed import COMPAT_EVENTS, EVENTS, LiveQuery, Message, Style
from penstock.server.engine.connections import Connection
from penstock.server.engine.runtime import Runtime
from penstock.transports.http_replies import StreamingReply, Upgrade
from penstock.transports.transport import PING, TEXT, ByteStreamTransport, ServerWebSocketTransport, frame


def framed(messages: list[Message]) -> list[bytes]:
    """WebSocket frames in one write; they are the same for every reader."""
    return [b"".join([frame(TEXT, message) for _, message in messages])]


FRAMES = Style("frames", b"{", b"}", framed, frame(PING, b""))
COMPAT_FRAMES = Style("compat frames", b"", b"", framed, frame(PING, b""), compat=True)
_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: text/event-stream\r\n"
    b"Cache-Control: no-store\r\n"
    b"X-Accel-Buffering: no\r\n"  # otherwise a proxy buffers the events
    b"Server: penstock\r\n"
    b"Connection: close\r\n"
    b"\r\n"
)


def last_event(header: str | None) -> int | None:
    """The version in `Last-Event-ID`, which a browser sends when it reconnects with the same query."""
    return int(header) if header is not None and header.isascii() and header.isdigit() and len(header) < 19 else None


@dataclass
class _Follower:
    """Who follows which view."""

    _runtime: Runtime
    _principal: Principal
    _query: LiveQuery
    _checked: tuple[View, Sight] | Refusal
    _peer: str

    def follow(self, wire: ByteStreamTransport, style: Style) -> Connection | Refusal:
        if isinstance(self._checked, Refusal):
            return self._checked
        session = LiveSession(self._runtime, self._query, style)
        connection = self._runtime.peers.open(session, wire, self._principal, self._peer)
        if isinstance(connection, Connection):
            session.open(self._runtime.scheduler.now(), *self._checked)
        return connection


@dataclass
class LiveUpgrade(_Follower, Upgrade):
    """Opens a follower, or a socket that only says why it is refused."""

    def __post_init__(self) -> None:
        self.message_max = self._runtime.machine.limits.frame_max

    def open(self, wire: ServerWebSocketTransport) -> Connection | None:
        connection = self.follow(wire, COMPAT_FRAMES if self._query.compat else FRAMES)
        if isinstance(connection, Refusal):
            refuse(wire, connection)
            return None
        wire.is_framed = True
        return connection


def refuse(wire: ServerWebSocketTransport, refusal: Refusal) -> None:
    """Send the reason and close."""
    wire.send([error_message(refusal)])
    wire.close(refusal.kind.close or 1008, refusal.code)


class EventStream(_Follower, StreamingReply):
    """Opens a follower over server-sent events."""

    head = _HEAD

    def open(self, wire: ByteStreamTransport) -> Connection | None:
        connection = self.follow(wire, COMPAT_EVENTS if self._query.compat else EVENTS)
        if isinstance(connection, Refusal):
            wire.send(EVENTS.pack([(0, error_message(connection))]))
            wire.close(connection.kind.close or 1008, connection.code)
            return None
        return connection


def open_events(
    runtime: Runtime, principal: Principal, query: LiveQuery, last: str | None, peer: str
) -> EventStream | Refusal:
    """Server-sent events, resumed where the last connection of this client ended."""
    if query.credit is not None:
        hint = "leave it out, or open a WebSocket: events are sent as fast as you read"
        return Refusal("InvalidCredit", "server-sent events take no credit", ref="credit", hint=hint)
    seen = last_event(last)
    if seen is not None:
        query.since = seen
    checked = view_feed.check(runtime.machine, principal, query)
    return checked if isinstance(checked, Refusal) else EventStream(runtime, principal, query, checked, peer)
