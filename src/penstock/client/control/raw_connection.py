"""A link to a server for somebody else who speaks Control v1: lines both ways, no requests, no reconnection.

Owns what has arrived and nobody took yet. Invariant: beyond `READ_HIGH` the server's socket is not read, and a writer waits
while the server does not read ours, so a slow end on either side slows the other down and costs a bounded buffer.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
from collections import deque
from typing import Self

import msgspec

from penstock.client.address import Address
from penstock.client.control.frames import Error, Ok, decode_frame, head
from penstock.client.control.transport import LINE_MAX, WRITE_HIGH, LineTransport, open_transport
from penstock.core.errors import PenstockError, Refusal

READ_HIGH = 1024 * 1024
"""Bytes waiting here at which we stop reading the server's socket."""
HELD_MAX = READ_HIGH + LINE_MAX + WRITE_HIGH
"""Bytes that one uplink may hold: what waits, half a line, and what the server has not taken."""
CLOSE_S = 1.0
"""How long the goodbye may take."""
OPEN_S = 10.0
"""How long a server may take to answer before traffic starts."""


class RawConnection:
    """One connection to a server, made by `open`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.reason: str | None = None
        """Why the connection ended."""
        self.is_held = False
        """We do not read from the server for now."""
        self._transport: LineTransport | None = None
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._last: bytes | None = None
        """How the answer begins behind which nothing more is wanted."""
        self._is_finished = False
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def open(cls, address: Address, token: str | None = None) -> Self:
        """Dial, and say hello where a token is given; raises PenstockError."""
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
            is_refused = error.errno == errno.ECONNREFUSED
            raise _lost(
                address, "nobody listens there" if is_refused else error.strerror or str(error)
            ) from error
        except BaseException:
            await uplink.close()
            raise
        return uplink

    @property
    def held(self) -> int:
        """Bytes that have arrived and nobody took."""
        return self._size

    async def ask(self, body: bytes) -> None:
        """Send a frame that lacks its last brace and wait for its answer, before anything else is said."""
        await self.write(body + b',"reqId":"uplink"}\n')
        answer = await self._line()
        try:
            frame = decode_frame(answer)
        except msgspec.DecodeError:
            raise _lost(self.address, "no Control v1 is spoken there") from None
        if isinstance(frame, Error):
            raise frame.exception()
        if not isinstance(frame, Ok):
            raise _lost(self.address, "it answered something else")

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
        """Every whole line that is there, at least one; empty at the end."""
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
        """Hand over whole lines; waits while the server does not read. Raises PenstockError when it is gone."""
        await self._writable.wait()
        if self._transport is None or self.reason is not None:
            raise _lost(self.address, self.reason or "the connection is closed")
        self._transport.write([lines])
        if self._transport.is_paused:
            self._writable.clear()

    async def finish(self) -> None:
        """Nothing more will be written: `read` ends behind the last answer.

        Answers keep the order of requests, so one more request finds the end of them.
        """
        marker = f"last-{secrets.token_hex(8)}".encode()
        self._last = b'{"type":"ok","reqId":"%b"' % marker
        await self.write(b'{"type":"ping","reqId":"%b"}\n' % marker)

    async def close(self) -> None:
        """Send what was written, then end; a server that does not take it in time is left alone."""
        transport, self._transport = self._transport, None
        self.transport_lost("the connection was closed")
        if transport is None:
            return
        transport.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await transport.closed()
        except TimeoutError:
            transport.abandon()
            await transport.closed()  # soon now, and a loop that ends first would leave its socket open

    # What the link tells us

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
    return PenstockError(Refusal("Unreachable", f"no connection to {address.url}: {reason}"))
