"""Byte-stream listeners for Control v1: TCP, Unix sockets, stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from penstock.transports.transport import ByteStreamTransport, ConnectionPort, tune

FIRST_BYTES = b"{ \t\r\n"
"""The first byte of a Control v1 connection. Any other, such as a browser's request, closes it without an answer."""
CHUNK_LARGE = 64 * 1024
"""Bytes of a chunk after which other connections are read first."""

READ_MAX = 128 * 1024
"""Bytes read from a connection in one turn: a few hundred envelopes, which take a few milliseconds."""

TURN_S = 0.005
"""Time of a turn for what connections send. What ten thousand send at once takes many turns, in which others have theirs."""

Accept = Callable[[ByteStreamTransport, str], ConnectionPort | None]
"""Makes the endpoint of a new connection from its wire and its peer's address; None refuses it."""


class TurnBudget:
    """The time of one turn for the reads and ends of all connections of a listener; the rest waits for the next turn, in order."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_MAX))
        """Of the reads of all these connections: what is read is copied before the next read."""
        self._loop = asyncio.get_running_loop()
        self._until_s = 0.0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def is_spent(self) -> bool:
        """Whether what arrives now must wait. The first call of a turn begins its time."""
        if self._until_s:
            return bool(self._waiting) or time.monotonic() > self._until_s
        self._until_s = time.monotonic() + TURN_S
        self._loop.call_soon(self._next_turn)
        return bool(self._waiting)

    def wait(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)

    def _next_turn(self) -> None:
        self._until_s = 0.0
        if self._waiting:
            until_s = self._until_s = time.monotonic() + TURN_S
            try:
                while self._waiting and time.monotonic() < until_s:
                    self._waiting.popleft()()
            finally:
                self._loop.call_soon(self._next_turn)


class LineProtocol(asyncio.BufferedProtocol):
    """One connection: passes chunks on, and back-pressure both ways."""

    def __init__(self, accept: Accept, budget: TurnBudget | None = None, *, guarded: bool = True) -> None:
        self._accept = accept
        self._guarded = guarded
        self._budget = budget
        self._endpoint: ConnectionPort | None = None
        self._transport: asyncio.BaseTransport | None = None
        self.wire: ByteStreamTransport
        """Set when the connection is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        tune(transport.get_extra_info("socket"))
        peer = transport.get_extra_info("peername") or "local"
        self.wire = ByteStreamTransport(cast(asyncio.Transport, transport))
        self._endpoint = self._accept(self.wire, peer[0] if isinstance(peer, tuple) else "local")
        if self._endpoint is None:
            transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._budget is not None
        return self._budget.buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self._budget is not None
        data = bytes(self._budget.buffer[:nbytes])
        if self._budget.is_spent:
            self.wire.pause()
            self._budget.wait(lambda: self._take(data))
            return
        self.data_received(data)

    def _take(self, data: bytes) -> None:
        self.data_received(data)
        self.wire.resume()

    def data_received(self, data: bytes) -> None:
        if self._endpoint is None or self._transport is None:
            return
        if self._guarded:
            self._guarded = False
            if data[0] not in FIRST_BYTES:
                self._transport.close()
                return
            if self.wire.admission is not None and not self.wire.needs_token:
                self.wire.admission.known()
        self._endpoint.received(data)
        if len(data) >= CHUNK_LARGE:
            self.wire.give_way()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._budget is not None and self._budget.is_spent:
            self._budget.wait(self._end)
        else:
            self._end()

    def _end(self) -> None:
        if self._endpoint is not None:
            self._endpoint.lost()
            self._endpoint = None
        if self.wire.admission is not None:
            self.wire.admission.left()

    def pause_writing(self) -> None:
        if self._endpoint is not None:
            self._endpoint.congested(True)

    def resume_writing(self) -> None:
        if self._endpoint is not None:
            self._endpoint.congested(False)


async def listen_tcp(host: str, port: int, accept: Accept) -> asyncio.Server:
    loop, budget = asyncio.get_running_loop(), TurnBudget()
    return await loop.create_server(lambda: LineProtocol(accept, budget), host, port, backlog=1024)


async def listen_unix(path: Path, accept: Accept) -> asyncio.Server:
    """A Unix socket that only its owner may open, from the first moment."""
    loop, budget = asyncio.get_running_loop(), TurnBudget()
    if path.is_socket():  # noqa: ASYNC240  # once, at the start
        _remove_stale(path)
    mask = os.umask(0o177)
    try:
        return await loop.create_unix_server(lambda: LineProtocol(accept, budget), str(path), backlog=1024)
    finally:
        os.umask(mask)


def _remove_stale(path: Path) -> None:
    """Remove a socket file that a crash left behind; raises if a server listens on it."""
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

    def __init__(self, accept: Accept, copier: threading.Thread | None = None) -> None:
        super().__init__(accept, guarded=False)
        self.closed = asyncio.Event()
        self._copier = copier

    def close(self) -> None:
        """Close when everything written has left."""
        assert self._transport is not None
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closed.set()

    async def gone(self) -> None:
        """Wait until the last byte has left."""
        await self.closed.wait()
        if self._copier is not None:
            await asyncio.to_thread(self._copier.join)


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
    out, copier = _pipe_to(sys.stdout.buffer)
    _, output = await loop.connect_write_pipe(lambda: _Output(accept, copier), out)
    stdin, source = await loop.connect_read_pipe(lambda: _Input(output), _pipe_from(sys.stdin.buffer))
    output.wire.source = stdin
    return source.ended, output


def _pipe_from(file: BinaryIO) -> BinaryIO:
    """A pipe with the bytes of a file that the loop cannot poll, such as a plain file or /dev/null."""
    if _can_wait(file):
        return file
    read_end, write_end = os.pipe()
    threading.Thread(target=_copy, args=(file, os.fdopen(write_end, "wb")), daemon=True).start()
    return os.fdopen(read_end, "rb", 0)


def _pipe_to(file: BinaryIO) -> tuple[BinaryIO, threading.Thread | None]:
    """The same for writing, with the thread to wait for when the pipe is closed."""
    if _can_wait(file):
        return file, None
    read_end, write_end = os.pipe()
    copier = threading.Thread(target=_copy, args=(os.fdopen(read_end, "rb", 0), file), daemon=True)
    copier.start()
    return os.fdopen(write_end, "wb", 0), copier


def _can_wait(file: BinaryIO) -> bool:
    mode = os.fstat(file.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    with contextlib.suppress(OSError), target:  # the reader is gone or the disk is full: stop either way
        shutil.copyfileobj(source, target)
