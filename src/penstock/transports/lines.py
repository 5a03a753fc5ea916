"""Byte-stream listeners for Control v1: TCP, Unix sockets, stdin and stdout."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from penstock.transports.outbox import Endpoint, Wire

FIRST_BYTES = b"{ \t\r\n"
"""What a control connection may begin with. Anything else, a browser's request above all, is closed unanswered."""

Accept = Callable[[Wire, str], Endpoint | None]
"""Makes the endpoint of a new connection from its wire and its peer's address; None refuses it."""


class LineProtocol(asyncio.Protocol):
    """One connection: passes chunks on, and back-pressure both ways."""

    def __init__(self, accept: Accept, *, guarded: bool = True) -> None:
        self._accept = accept
        self._guarded = guarded
        self._endpoint: Endpoint | None = None
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername") or "local"
        self._endpoint = self._accept(Wire(cast(asyncio.Transport, transport)), peer[0] if isinstance(peer, tuple) else "local")
        if self._endpoint is None:
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._endpoint is None or self._transport is None:
            return
        if self._guarded:
            self._guarded = False
            if data[0] not in FIRST_BYTES:
                self._transport.close()
                return
        self._endpoint.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._endpoint is not None:
            self._endpoint.lost()
            self._endpoint = None

    def pause_writing(self) -> None:
        if self._endpoint is not None:
            self._endpoint.congested(True)

    def resume_writing(self) -> None:
        if self._endpoint is not None:
            self._endpoint.congested(False)


async def listen_tcp(host: str, port: int, accept: Accept) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: LineProtocol(accept), host, port, backlog=1024)


async def listen_unix(path: Path, accept: Accept) -> asyncio.Server:
    """A Unix socket that only its owner may open, from the first moment."""
    loop = asyncio.get_running_loop()
    if path.is_socket():  # noqa: ASYNC240  # once, before anybody is served
        _remove_stale(path)
    mask = os.umask(0o177)
    try:
        return await loop.create_unix_server(lambda: LineProtocol(accept), str(path), backlog=1024)
    finally:
        os.umask(mask)


def _remove_stale(path: Path) -> None:
    """Remove a socket that a crash left behind; one that somebody listens on is in use."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, f"a server listens on `{path}` already")


class _Output(LineProtocol):
    """Stdout: says when it is closed."""

    def __init__(self, accept: Accept) -> None:
        super().__init__(accept, guarded=False)
        self.closed = asyncio.Event()

    def close(self) -> None:
        """Close when everything written has left."""
        assert self._transport is not None
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closed.set()


class _Input(asyncio.Protocol):
    """Stdin: passes its bytes on."""

    def __init__(self, output: _Output) -> None:
        self._output = output
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._output.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


async def open_stdio(accept: Accept) -> tuple[asyncio.Event, _Output]:
    """Speak on stdin and stdout. The event is set when stdin ends."""
    loop = asyncio.get_running_loop()
    _, output = await loop.connect_write_pipe(lambda: _Output(accept), sys.stdout.buffer)
    _, source = await loop.connect_read_pipe(lambda: _Input(output), sys.stdin.buffer)
    return source.ended, output
