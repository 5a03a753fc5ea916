"""Transports of lines over TCP and Unix sockets: one write per loop turn, received bytes split into lines.

A transport owns the byte stream of one socket and interprets no line. A line longer than `LINE_MAX` closes the connection, which bounds the
memory that a peer can use. Cost: one split per read.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from penstock.client.address import Address
from penstock.core.limits import Limits

LINE_MAX = 2 * Limits().frame_max
"""Twice the server's own limit: a batch of deliveries is longer than the lines that it came in."""
WRITE_HIGH = 4 * 1024 * 1024
"""Unsent bytes at which callers start to wait."""


class LineReceiver(Protocol):
    """Receives lines, and the end of the transport."""

    def lines_received(self, lines: list[bytes]) -> None: ...

    def transport_lost(self, reason: str) -> None: ...

    def transport_writable(self) -> None: ...


class LineTransport(Protocol):
    """Carries lines over one socket; `WebSocketTransport` is the other kind."""

    is_paused: bool

    def send_lines(self, lines: list[bytes]) -> None: ...

    def hold(self, on: bool) -> None:
        """Pause or resume reading; unread data then stays at the server."""

    def close(self) -> None:
        """Send what was written, then close."""

    def abort(self, reason: str) -> None:
        """Close at once, and report the reason."""

    def abandon(self) -> None:
        """Close at once, and report nothing more."""

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
                self.abort("the server sent a line that is too long")
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

    def send_lines(self, lines: list[bytes]) -> None:
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


async def close_transport(transport: LineTransport, timeout_s: float) -> None:
    """Send what was written, then close; drop the connection if the server does not read it in time."""
    transport.close()
    try:
        async with asyncio.timeout(timeout_s):
            await transport.closed()
    except TimeoutError:
        transport.abandon()
        await transport.closed()  # happens at once; without it, a loop that ends first would leak the socket


async def open_transport(address: Address, receiver: LineReceiver, token: str | None) -> LineTransport:
    """Dial. Raises OSError when that fails."""
    loop = asyncio.get_running_loop()
    if address.kind == "tcp":
        return (await loop.create_connection(lambda: StreamTransport(receiver), address.host, address.port))[1]
    if address.kind == "unix":
        return (await loop.create_unix_connection(lambda: StreamTransport(receiver), address.path))[1]
    # aiohttp costs 160 ms of import, which only a WebSocket user should pay.
    from penstock.client.control.websocket import open_websocket

    return await open_websocket(address, receiver, token)
