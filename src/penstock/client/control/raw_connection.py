"""A connection that passes raw Control v1 lines both ways, without requests and without reconnection.

Owns the unread lines. Invariant: beyond `READ_HIGH` unread bytes the server's socket is not read, and a writer waits while the server
does not read, so a slow end on either side slows the other one, with bounded buffers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import Self

import msgspec

from penstock.client.address import Address, reason_of, unreachable, wrong_protocol
from penstock.client.control.frames import Error, Ok, decode_frame, head
from penstock.client.control.transport import LINE_MAX, WRITE_HIGH, LineTransport, close_transport, open_transport
from penstock.core.errors import PenstockError

READ_HIGH = 1024 * 1024
"""Unread bytes at which the server's socket is not read any more."""
HELD_MAX = READ_HIGH + LINE_MAX + WRITE_HIGH
"""The most bytes that one connection holds: unread lines, a partial line, and what the server has not read."""
CLOSE_S = 1.0
"""How long a clean close may take."""
OPEN_S = 10.0
"""How long connecting and the hello may take."""


class RawConnection:
    """One connection to a server; `open` makes one."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.reason: str | None = None
        """Why the connection ended."""
        self.is_held = False
        """Whether reading from the server is paused."""
        self._transport: LineTransport | None = None
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._last: bytes | None = None
        """The beginning of the last answer to wait for."""
        self._is_finished = False
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def open(cls, address: Address, token: str | None = None) -> Self:
        """Dial, and send a hello if there is a token. Raises PenstockError."""
        uplink = cls(address)
        try:
            async with asyncio.timeout(OPEN_S):
                uplink._transport = await open_transport(address, uplink, token)
                if token is not None:
                    await uplink.ask(head("hello", version="v1", token=token))
        except TimeoutError:
            await uplink.close()
            raise _lost(address, "it did not answer in time") from None
        except OSError as error:
            raise _lost(address, reason_of(error)) from error
        except BaseException:
            await uplink.close()
            raise
        return uplink

    @property
    def held(self) -> int:
        """Unread bytes."""
        return self._size

    async def ask(self, body: bytes) -> None:
        """Send a frame without its last brace and wait for its answer, before any other traffic."""
        await self.write(body + b',"reqId":"uplink"}\n')
        answer = await self._line()
        try:
            frame = decode_frame(answer)
        except msgspec.DecodeError:
            raise PenstockError(wrong_protocol(self.address.url)) from None
        if isinstance(frame, Error):
            raise frame.exception()
        if not isinstance(frame, Ok):
            raise _lost(self.address, "the server answered with an unexpected frame")

    async def _line(self) -> bytes:
        while not self._lines:
            if self.reason is not None:
                raise _lost(self.address, self.reason)
            self._arrived.clear()
            await self._arrived.wait()
        line = self._lines.popleft()
        self._size -= len(line)
        return line

    async def read(self) -> bytes:
        """All complete unread lines, at least one; empty at the end."""
        while not self._lines:
            if self.reason is not None or self._is_finished:
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        data = b"".join(self._lines)
        self._lines.clear()
        self._size = 0
        if self.is_held and self._transport is not None:
            self.is_held = False
            self._transport.hold(False)
        return data

    async def write(self, lines: bytes) -> None:
        """Send complete lines; waits while the server does not read. Raises PenstockError when the connection is lost."""
        await self._writable.wait()
        if self._transport is None or self.reason is not None:
            raise _lost(self.address, self.reason or "the connection is closed")
        self._transport.send_lines([lines])
        if self._transport.is_paused:
            self._writable.clear()

    async def finish(self) -> None:
        """End the requests: `read` returns the remaining answers and then ends.

        Answers keep the order of requests, so the answer to one more request marks the end.
        """
        marker = f"last-{secrets.token_hex(8)}".encode()
        self._last = b'{"type":"ok","reqId":"%b"' % marker
        await self.write(b'{"type":"ping","reqId":"%b"}\n' % marker)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what was written, then close; drop the connection if the server does not read it in time."""
        transport, self._transport = self._transport, None
        self.transport_lost("the connection was closed")
        if transport is not None:
            await close_transport(transport, CLOSE_S)

    # For the transport

    def lines_received(self, lines: list[bytes]) -> None:
        for line in lines:
            if self._last is not None and line.startswith(self._last):
                self._is_finished = True
            elif line and not self._is_finished:
                self._lines.append(line + b"\n")
                self._size += len(line) + 1
        self._arrived.set()
        if self._size > READ_HIGH and not self.is_held and self._transport is not None:
            self.is_held = True
            self._transport.hold(True)

    def transport_lost(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._arrived.set()
        self._writable.set()

    def transport_writable(self) -> None:
        self._writable.set()


def _lost(address: Address, reason: str) -> PenstockError:
    return unreachable(f"no connection to {address.url}: {reason}")
