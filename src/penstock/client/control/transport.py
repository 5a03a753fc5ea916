"""Lines over TCP and Unix sockets: one write per loop turn above, split lines below.

Owns the byte stream of one connection and nothing of its meaning. A line longer than `line_max` ends the
connection, so a peer can never make us hold more than one such line. Cost: one split per read.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from penstock.client.address import Address
from penstock.core.limits import Limits

LINE_MAX = 2 * Limits().frame_max
"""Twice what the server takes in one line: what it adds to a batch of deliveries must still fit."""
WRITE_HIGH = 4 * 1024 * 1024
"""Bytes the socket has not taken yet at which callers start to wait."""


class LineReceiver(Protocol):
    """Who hears of lines and of the end of the connection."""

    def lines_received(self, lines: list[bytes]) -> None: ...

    def transport_lost(self, reason: str) -> None: ...

    def transport_writable(self) -> None: ...


class LineTransport(Protocol):
    """One connection that carries lines; `WebSocketLink` is the other kind."""

    is_paused: bool

    def write(self, lines: list[bytes]) -> None: ...

    def hold(self, on: bool) -> None:
        """Stop or go on reading: what the server has then stays with it."""

    def close(self) -> None:
        """Send what was written, then end."""

    def abort(self, reason: str) -> None:
        """End at once, and report the reason."""

    def abandon(self) -> None:
        """End at once, and report nothing more."""

    async def closed(self) -> None: ...


class StreamTransport(asyncio.Protocol):
    """A `LineTransport` on a stream socket."""

    def __init__(self, receiver: LineReceiver) -> None:
        self.is_paused = False
        self._receiver: LineReceiver | None = receiver
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._reason = ""
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH)

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        if b"\n" not in data:
            self._parts.append(data)
            self._parts_bytes += len(data)
            if self._parts_bytes > LINE_MAX:
                self.abort("the server sent a line longer than we take")
            return
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts.clear()
            self._parts_bytes = 0
        lines = data.split(b"\n")
        tail = lines.pop()
        if tail:
            self._parts.append(tail)
            self._parts_bytes = len(tail)
        receiver.lines_received(lines)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._receiver is not None:
            self._receiver.transport_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        receiver, self._receiver = self._receiver, None
        self._parts.clear()
        if not self._closed.done():
            self._closed.set_result(None)
        if receiver is not None:
            receiver.transport_lost(self._reason or (str(exc) if exc else "the server closed the connection"))

    def write(self, lines: list[bytes]) -> None:
        if self._transport is not None:
            self._transport.write(lines[0] if len(lines) == 1 else b"".join(lines))

    def hold(self, on: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if on:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        self._receiver = None
        self.abort("abandoned")

    async def closed(self) -> None:
        await asyncio.shield(self._closed)


async def open_transport(address: Address, receiver: LineReceiver, token: str | None) -> LineTransport:
    """Dial; raises OSError when nobody answers."""
    loop = asyncio.get_running_loop()
    if address.kind == "tcp":
        return (await loop.create_connection(lambda: StreamTransport(receiver), address.host, address.port))[
            1
        ]
    if address.kind == "unix":
        return (await loop.create_unix_connection(lambda: StreamTransport(receiver), address.path))[1]
    # aiohttp costs 160 ms of import, which only a WebSocket user should pay.
    from penstock.client.control.websocket import open_websocket

    return await open_websocket(address, receiver, token)
