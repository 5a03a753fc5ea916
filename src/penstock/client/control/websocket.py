"""A transport of lines over the WebSocket `/v1/control`, for networks where only HTTP passes.

A message holds several lines, both ways. A task writes from a queue, because a WebSocket write may have to wait; the bound on pending
requests also bounds the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import aiohttp

from penstock.client.address import CONTROL_PATH, STATUSES, Address, wrong_protocol
from penstock.client.control.transport import LINE_MAX, WRITE_HIGH, LineReceiver, LineTransport
from penstock.core.errors import PenstockError, Refusal

CLOSE_S = 1.0
"""How long the closing handshake may take."""
PING_S = 30.0
MESSAGE_BYTES = 1024 * 1024
"""The most bytes of lines to combine into one message; a longer line is sent alone."""


class WebSocketTransport:
    """A `LineTransport` on a WebSocket."""

    def __init__(
        self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse, receiver: LineReceiver
    ) -> None:
        self.is_paused = False
        self._session = session
        self._socket = socket
        self._receiver: LineReceiver | None = receiver
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._wake = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()
        self._is_closing = False
        self._reason = ""
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

    def send_lines(self, lines: list[bytes]) -> None:
        self._outbox.extend(lines)
        self._outbox_bytes += sum(map(len, lines))
        self.is_paused = self._outbox_bytes > WRITE_HIGH
        self._wake.set()

    def hold(self, on: bool) -> None:
        """The library stops reading the socket when we stop taking messages from it."""
        if on and not self._is_closing:
            self._readable.clear()
        else:
            self._readable.set()

    def close(self) -> None:
        self._is_closing = True
        self._readable.set()
        self._wake.set()

    def abort(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._outbox.clear()
        self.close()

    def abandon(self) -> None:
        self._receiver = None
        # Not at once: a task that is cancelled before its first step would not close the socket.
        asyncio.get_running_loop().call_soon(self._reader.cancel)

    async def closed(self) -> None:
        await asyncio.wait([self._reader])

    async def _read(self) -> None:
        reason = ""
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    data = message.data.encode()
                elif message.type is aiohttp.WSMsgType.BINARY:
                    data = message.data
                else:
                    break
                if self._receiver is not None:
                    self._receiver.lines_received(data.split(b"\n"))
                await self._readable.wait()
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error)
        finally:
            self._writer.cancel()
            try:
                await self._socket.close()
            finally:  # also when the loop is cancelled meanwhile
                await self._session.close()
            code = self._socket.close_code
            receiver, self._receiver = self._receiver, None
            if receiver is not None:
                receiver.transport_lost(self._reason or reason or f"the WebSocket was closed with code {code}")

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._outbox:
                    await self._socket.send_str(self._next_message().decode())
                    if self.is_paused and self._outbox_bytes < WRITE_HIGH // 2:
                        self.is_paused = False
                        if self._receiver is not None:
                            self._receiver.transport_writable()
                if self._is_closing:
                    await self._socket.close()
                    return
        except (aiohttp.ClientError, OSError) as error:
            self._reason = self._reason or str(error)
            await self._socket.close()

    def _next_message(self) -> bytes:
        size = count = 0
        for line in self._outbox:
            if count and size + len(line) > MESSAGE_BYTES:
                break
            size += len(line)
            count += 1
        message = b"".join(self._outbox[:count])
        del self._outbox[:count]
        self._outbox_bytes -= size
        return message


async def open_websocket(address: Address, receiver: LineReceiver, token: str | None) -> LineTransport:
    """Dial. Raises OSError or PenstockError when that fails, or when the server has no control endpoint there."""

    def refused(status: int) -> Refusal:
        code = STATUSES.get(status, "Unreachable")
        hint = f"use the URL without a path: Control v1 is at `{CONTROL_PATH}`" if status == 404 else None
        return Refusal(code, f"{address.url} answered with status {status}", hint=hint)

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return WebSocketTransport(*await dial_websocket(address.url, refused, headers=headers), receiver)


async def dial_websocket(
    url: str, refused: Callable[[int], Refusal], *, headers: Mapping[str, str] | None = None
) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    """Open a WebSocket. `refused` makes the error of an HTTP status. Raises OSError when the server is not reached."""
    session = aiohttp.ClientSession()
    failure: Exception
    try:
        return session, await session.ws_connect(
            url,
            headers=headers,
            max_msg_size=LINE_MAX,
            heartbeat=PING_S,
            compress=0,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
        )
    except aiohttp.WSServerHandshakeError as error:
        failure = PenstockError(refused(error.status))
    except aiohttp.ServerDisconnectedError:
        failure = PenstockError(wrong_protocol(url))
    except aiohttp.ClientConnectorSSLError:
        hint = "if the server does not use TLS, write `http://` in place of `https://`"
        failure = PenstockError(Refusal("Unreachable", f"{url} does not answer in TLS", hint=hint))
    except aiohttp.ClientConnectorError as error:
        failure = error.os_error
    except aiohttp.ClientError as error:
        failure = OSError(str(error))
    except BaseException:
        await session.close()
        raise
    await session.close()
    raise failure
