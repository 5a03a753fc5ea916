"""What the handler of an HTTP request may answer: a whole reply, an answer without an end, or an upgrade to a WebSocket.

No name of aiohttp is here: `http.py` carries the answers out, and `pipe_websockets.py` carries upgrades out on a pipe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from http import HTTPStatus

import msgspec

from penstock.transports.transport import ByteStreamTransport, ConnectionPort, ServerWebSocketTransport


class Upgrade(ABC):
    """How an upgrade goes on."""

    merge = False
    """Whether the messages of a turn may share a frame."""
    subprotocol: str | None = None
    message_max: int
    unauthenticated_max: int | None = None
    """Bytes that are read before the exchange is `known`; None when it is."""
    wants_pongs = False
    """Whether the endpoint is a `PongListener`."""

    @abstractmethod
    def open(self, wire: ServerWebSocketTransport) -> ConnectionPort | None:
        """The socket is open: make its endpoint, or close it through the wire."""


class StreamingReply(ABC):
    """How an answer goes on that has no end."""

    head: bytes
    """Status line and headers."""

    @abstractmethod
    def open(self, wire: ByteStreamTransport) -> ConnectionPort | None:
        """The head is written: make the endpoint, or close it through the wire."""


class Reply(msgspec.Struct):
    """A whole HTTP response."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = {}


def json_reply(status: int, body: object, headers: dict[str, str] | None = None) -> Reply:
    return Reply(status, msgspec.json.encode(body), headers=headers or {})


def head_of(reply: Reply) -> bytes:
    """How a refusal begins that is sent before there is a request."""
    fields = {"Content-Type": reply.content_type, "Content-Length": str(len(reply.body)), **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}", "Connection: close", "Server: penstock"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in fields.items()), "", ""]).encode()
