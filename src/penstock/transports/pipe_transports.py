"""Transports of kernel pipes: a byte stream to one peer, over TCP or in the binary messages of a WebSocket.

A transport moves bytes and knows nothing of frames. It buffers almost nothing: a read waits for the peer, and a write waits while the
peer does not read. `pipe_websockets.py` has the WebSockets, because aiohttp is slow to load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from penstock.transports.transport import tune

CHUNK = 64 * 1024
"""Bytes of one read."""
CLOSE_S = 1.0
"""How long a peer may take to read the last bytes."""


class PipeAddress(NamedTuple):
    """Where a pipe listens or leads."""

    kind: Literal["tcp", "ws"]
    host: str
    port: int
    path: str = "/"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}://{host}:{self.port}" + (self.path if self.kind == "ws" else "")


class PipeTransport(Protocol):
    """One peer's bytes."""

    heeds_control: bool
    """Whether ping and close frames are handled: over a WebSocket they are, over TCP the other side ignores them too."""

    @property
    def buffered(self) -> int:
        """Bytes that the peer has not taken."""

    async def read(self) -> bytes:
        """Some bytes; none at the end."""

    async def write(self, data: bytes) -> None:
        """Hand bytes over and wait until the peer has taken most of them; raises ConnectionError when it is gone."""

    async def close(self) -> None:
        """Send what was written, then end; a peer that does not read is cut off."""


Serve = Callable[[PipeTransport], Awaitable[None]]
"""What is done with a new channel, until it ends."""


class PipeListener(NamedTuple):
    """A listening socket."""

    address: PipeAddress
    close: Callable[[], Awaitable[None]]
    """Stops listening."""


def parse_pipe(text: str) -> PipeAddress:
    """Read `tcp://HOST:PORT` or `ws://HOST:PORT[/path]`; ValueError says what is wrong."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"`{text}` is not a URL") from None
    if parts.scheme not in ("tcp", "ws") or not parts.hostname or port is None:
        raise ValueError(f"`{text}` should be `tcp://HOST:PORT` or `ws://HOST:PORT/path`")
    if parts.query or parts.fragment or "@" in parts.netloc or (parts.scheme == "tcp" and parts.path):
        raise ValueError(f"`{text}` has more than a host and a port")
    if parts.scheme == "tcp":
        return PipeAddress("tcp", parts.hostname, port)
    return PipeAddress("ws", parts.hostname, port, parts.path or "/")


class TcpPipeTransport:
    """A channel over TCP."""

    heeds_control = False

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        tune(writer.get_extra_info("socket"))

    @property
    def buffered(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    async def read(self) -> bytes:
        try:
            return await self._reader.read(CHUNK)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                self._writer.write_eof()
                # Closing with unread data makes TCP reset the connection, which would discard what was written last.
                while await self._reader.read(CHUNK):
                    pass
        except (TimeoutError, OSError, RuntimeError):  # another task may be reading, and sees the end
            pass
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()
        except ConnectionError:
            pass


async def listen(address: PipeAddress, serve: Serve, *, is_public: bool) -> PipeListener:
    """Serve every peer that connects; raises OSError where that is not possible."""
    if address.kind == "ws":
        from penstock.transports.pipe_websockets import listen_sockets

        return await listen_sockets(address, serve, is_public=is_public)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve(TcpPipeTransport(reader, writer))

    server = await asyncio.start_server(accepted, address.host, address.port, limit=CHUNK)

    async def close() -> None:
        server.close()

    return PipeListener(address._replace(port=server.sockets[0].getsockname()[1]), close)


async def dial(address: PipeAddress) -> PipeTransport:
    """Connect to a host's pipe server; raises OSError if nothing listens there."""
    if address.kind == "ws":
        from penstock.transports.pipe_websockets import dial_socket

        return await dial_socket(address)
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=CHUNK)
    return TcpPipeTransport(reader, writer)
