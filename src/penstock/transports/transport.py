"""The server's transports: one write per connection per turn of the loop. The only server file that writes to a socket.

A transport takes the messages of a turn and passes them to the kernel in one call. The runtime decides when; nothing is queued here. A
small write costs more than all queue work on a message, so batching them is what makes the server fast.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

TEXT = 0x81
BINARY = 0x82
CLOSE = 0x88
PING = 0x89
PONG = 0x8A
SHARED_MIN = 4_096
"""Messages of this mean size are not joined: many connections may hold the same ones until their peers read."""
UNSENT_MAX = 131_072
"""Bytes that the kernel takes before it can send them, where progress must be seen; by default it takes megabytes."""
CLOSE_TIMEOUT_S = 5.0
"""How long a peer may take to answer a close, or to read anything after it."""
CLOSE_TOTAL_S = 60.0
"""How long a peer may take to read everything that was written before a close."""


def tune(sock: socket.socket | None) -> None:
    """Disable Nagle's algorithm, and detect a dead peer within about two minutes."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):  # not every system lets us choose
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class ConnectionPort(Protocol):
    """What a transport calls on the connection that it carries."""

    def received(self, data: bytes) -> None: ...

    def lost(self) -> None: ...

    def congested(self, on: bool) -> None: ...


class Admission(Protocol):
    """A connection that was accepted."""

    def known(self) -> None:
        """Its peer is authenticated, or may do without."""

    def left(self) -> None:
        """It is closed."""


class UnreadBytes(Protocol):
    """What holds bytes that its peer has not read."""

    unread_bytes: int
    """What it held when that was last noted."""

    @property
    def is_paused(self) -> bool:
        """Whether deliveries to it pause until it reads."""

    @property
    def reader_name(self) -> str:
        """Who does not read, for the log."""

    @property
    def party(self) -> tuple[bool, str]:
        """Who pays for what it holds: whether that is a stranger, and the name of the token or the address."""

    def unread(self) -> int:
        """What it holds now."""

    def cut(self, size: int) -> None:
        """Release everything at once: it held `size` bytes, the most of all."""


@runtime_checkable
class PongListener(Protocol):
    """A connection that is notified of pongs."""

    def pong_received(self) -> None: ...


@runtime_checkable
class InputListener(Protocol):
    """A connection that counts what it has sent of a message that is not complete."""

    def collecting(self, size: int) -> None: ...


class ByteStreamTransport:
    """A byte stream: TCP, a Unix socket or a pipe."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self.source: asyncio.BaseTransport = transport
        """Where the peer's bytes come from; for stdout it is stdin."""
        self.admission: Admission | None = None
        """Set where connections are counted."""
        self.needs_token = False
        """Otherwise the peer is known by its first bytes."""
        self._is_held = False

    def send(self, messages: list[bytes]) -> None:
        """Write the messages of this turn, in order."""
        if not self._transport.is_closing():
            data = messages[0] if len(messages) == 1 else b"".join(messages)
            if len(data) < SHARED_MIN * len(messages):
                self._transport.write(data)
            else:
                self._transport.writelines(messages)

    def show_progress(self) -> None:
        """Let `buffered` follow what the peer reads."""
        sock = self._transport.get_extra_info("socket")
        if hasattr(socket, "TCP_NOTSENT_LOWAT") and getattr(sock, "family", None) in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX)

    @property
    def buffered(self) -> int:
        """Bytes the peer has not taken."""
        return self._transport.get_write_buffer_size()

    def hold(self, on: bool) -> None:
        """Stop or resume reading from the peer."""
        self._is_held = on
        self._read(not on)

    def give_way(self) -> None:
        """Read on in the next turn: libuv takes up to 32 buffers of a peer in a row, some milliseconds in which others wait."""
        if not self._is_held:
            self._read(False)
            asyncio.get_running_loop().call_soon(self.resume)

    def pause(self) -> None:
        """Read no more until `resume`."""
        self._read(False)

    def resume(self) -> None:
        """Read on, unless the peer is held."""
        if not self._is_held:
            self._read(True)

    def _read(self, on: bool) -> None:
        change = getattr(self.source, "resume_reading" if on else "pause_reading", None)
        if change is not None and not self.source.is_closing():
            change()

    def close(self, code: int, reason: str) -> None:
        """Close when everything written has left; a peer that takes nothing for some seconds loses the rest."""
        self._transport.close()
        if self.buffered and self._transport.get_extra_info("socket") is not None:  # a pipe may wait for its reader
            loop = asyncio.get_running_loop()
            loop.call_later(CLOSE_TIMEOUT_S, self._expect_progress, self.buffered, loop.time() + CLOSE_TOTAL_S)

    def _expect_progress(self, before: int, until_s: float) -> None:
        loop, left = asyncio.get_running_loop(), self.buffered
        if left and left < before and loop.time() < until_s:
            loop.call_later(CLOSE_TIMEOUT_S, self._expect_progress, left, until_s)
        else:
            self.abort()

    def abort(self) -> None:
        """Close without flushing: the peer does not read."""
        self._transport.abort()


class Download:
    """A large HTTP answer that its peer may not read."""

    def __init__(self, transport: asyncio.WriteTransport, name: str, peer: str, holder: Any) -> None:
        self._transport = transport
        self.holder = holder
        self.unread_bytes = 0
        self.is_paused = False
        self.reader_name = name
        self.party = party_of(holder, peer)

    def unread(self) -> int:
        return self._transport.get_write_buffer_size()

    def cut(self, size: int) -> None:
        self._transport.abort()


class Upload:
    """What a peer has sent and its request or session has not done with: counted like what a peer has not read."""

    def __init__(self, name: str, party: tuple[bool, str], abort: Callable[[], None]) -> None:
        self.reader_name = name
        self.party = party
        self.unread_bytes = self.size = 0
        self.is_paused = False
        self._abort = abort

    def unread(self) -> int:
        return self.size

    def cut(self, size: int) -> None:
        self._abort()


def party_of(holder: Any, peer: str) -> tuple[bool, str]:
    """Who pays for a request: its token, or the address of a stranger."""
    party: tuple[bool, str] = (True, peer) if holder is None else holder.party(peer)
    return party


def frame(opcode: int, payload: bytes) -> bytes:
    """A WebSocket frame from a server: whole, unmasked, uncompressed."""
    return frame_head(len(payload), opcode) + payload


_SHORT_HEADS = tuple(bytes((BINARY, size)) for size in range(126))


def frame_head(size: int, opcode: int = BINARY) -> bytes:
    """How a frame of so many bytes begins."""
    if size < 126:
        return _SHORT_HEADS[size] if opcode == BINARY else bytes((opcode, size))
    if size < 65_536:
        return bytes((opcode, 126, size >> 8, size & 255))
    return bytes((opcode, 127)) + size.to_bytes(8, "big")


def unframed(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The frames in the bytes that a server writes: opcodes and payloads."""
    at = 0
    while at < len(data):
        opcode, size = data[at], data[at + 1]
        at += 2
        if size > 125:
            width = 2 if size == 126 else 8
            size = int.from_bytes(data[at : at + width], "big")
            at += width
        yield opcode, data[at : at + size]
        at += size


class ServerWebSocketTransport(ByteStreamTransport):
    """A WebSocket. With `merge`, the messages of a turn travel in one frame (Control v1 lines)."""

    def __init__(self, transport: asyncio.Transport, *, merge: bool) -> None:
        super().__init__(transport)
        self._merge = merge
        self.is_framed = False
        """The messages given are frames already, shared by many connections."""
        self.readable = asyncio.Event()
        """Set while the peer's messages are wanted."""
        self.readable.set()
        self.is_held = False
        self.is_closing = False
        """A close frame was sent; what the peer still sends is read and dropped."""
        self._patience: asyncio.TimerHandle | None = None
        self.parser: Any = None
        """Counts what arrives, where that is counted."""

    def send(self, messages: list[bytes]) -> None:
        if self.is_framed:
            super().send(messages)
        elif self._merge:
            data = b"".join(messages)
            head = frame_head(len(data), TEXT)
            super().send([head + data] if len(data) < SHARED_MIN * len(messages) else [head, *messages])
        else:
            super().send([frame(TEXT, message) for message in messages])

    def pong(self, data: bytes) -> None:
        """Answer a ping."""
        if not self.is_closing:
            super().send([frame(PONG, bytes(data))])

    def hold(self, on: bool) -> None:
        """Stop or resume taking messages; aiohttp then stops reading the socket."""
        self.is_held = on
        if on:
            self.readable.clear()
        else:
            self.readable.set()

    def close(self, code: int, reason: str) -> None:
        """Send a close frame and wait for the peer's: closing with unread data makes TCP reset the connection and discard the reason."""
        if self.is_closing:
            return
        self.is_closing = True
        super().send([frame(CLOSE, code.to_bytes(2, "big") + reason.encode()[:120])])
        self.hold(False)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + CLOSE_TOTAL_S
        self._patience = loop.call_later(CLOSE_TIMEOUT_S, self._expect_progress, self.buffered, until_s)

    def end(self) -> None:
        """The peer closed, or the connection is lost."""
        if self._patience is not None:
            self._patience.cancel()
        if self.is_closing:
            super().close(1000, "")
