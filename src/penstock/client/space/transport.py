"""One WebSocket to the gateway of a space: dial, join, single messages both ways, and the reason of its end.

Interprets nothing beyond the join. A message larger than `LINE_MAX` closes the socket, which bounds the memory that a peer can use.
The library pings, and closes a silent connection.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from penstock.client.address import STATUSES, reason_of, unreachable
from penstock.client.control.websocket import dial_websocket
from penstock.client.space import messages
from penstock.core.errors import PenstockError, Refusal

TAKEN_OVER = 4001
"""Close code: another connection joined under our name. Reconnecting would only disconnect that one."""


def socket_url(url: str) -> str:
    """The WebSocket URL of a gateway, from its HTTP URL."""
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.netloc:
        hint = "use `http://host:port`; the control port does not serve spaces"
        raise PenstockError(Refusal("InvalidRequest", f"`{url}` is not the URL of a gateway", hint=hint))
    path = "/ws" if parts.path in {"", "/"} else parts.path
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


class SpaceTransport:
    """A joined WebSocket; `join` makes one."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.unread = 0
        """Messages that were neither an envelope nor a frame."""
        self._session = session
        self._socket = socket
        self._reason = ""

    @property
    def is_taken_over(self) -> bool:
        return self._socket.close_code == TAKEN_OVER

    @property
    def reason(self) -> str:
        """The reason why it ended."""
        return self._reason or f"the WebSocket was closed with code {self._socket.close_code}"

    async def receive(self) -> messages.Arrival | None:
        """The next message; None at the end."""
        while True:
            try:
                message = await self._socket.receive()
            except (aiohttp.ClientError, OSError) as error:
                self._reason = str(error)
                return None
            if message.type is aiohttp.WSMsgType.TEXT:
                arrival = messages.read_message(message.data.encode())
            elif message.type is aiohttp.WSMsgType.BINARY:
                arrival = messages.read_message(message.data)
            else:
                if message.type is aiohttp.WSMsgType.CLOSE and message.extra:
                    self._reason = f"the gateway closed it: {message.extra}"
                elif message.type is aiohttp.WSMsgType.ERROR:
                    self._reason = str(message.data)
                return None
            if arrival is not None:
                return arrival
            self.unread += 1

    async def send(self, message: str | bytes) -> None:
        """Send a message; waits while the gateway does not read. Raises OSError when the connection is lost."""
        try:
            if isinstance(message, str):
                await self._socket.send_str(message)
            else:
                await self._socket.send_bytes(message)
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error

    async def close(self) -> None:
        """Close with a handshake; do not wait for a gateway that does not answer."""
        try:
            await self._socket.close()
        finally:
            await self._session.close()


async def join(
    url: str, space: str | None, participant: str, token: str | None, *, timeout_s: float
) -> tuple[SpaceTransport, messages.SpaceEnvelope]:
    """Dial and join; returns the transport and the welcome. Raises PenstockError."""
    try:
        async with asyncio.timeout(timeout_s):
            transport = await _dial(url)
            try:
                await transport.send(messages.join_message(space, participant, token))
                return transport, await _welcome(transport, url)
            except BaseException:
                await asyncio.shield(transport.close())
                raise
    except TimeoutError:
        raise unreachable(f"{url} did not answer in time") from None
    except OSError as error:
        raise unreachable(f"cannot connect to {url}: {reason_of(error)}") from error


async def _welcome(transport: SpaceTransport, url: str) -> messages.SpaceEnvelope:
    while (arrival := await transport.receive()) is not None:
        if not isinstance(arrival, messages.SpaceEnvelope):
            continue
        if arrival.kind == "system/welcome":
            return arrival
        if arrival.kind == "system/error":
            raise messages.SpaceError(messages.object_of(arrival.payload), is_join=True)
    raise unreachable(f"{url} ended the connection before a welcome: {transport.reason}")


async def _dial(url: str) -> SpaceTransport:
    def refused(status: int) -> Refusal:
        code = STATUSES.get(status) or ("Unreachable" if status >= 500 else "Unsupported")
        is_unknown = code == "UnknownRoute"
        hint = "the server may have no spaces; the section `spaces` of its config adds them" if is_unknown else None
        return Refusal(code, f"`{url}` is not a gateway: it answered with status {status}", hint=hint)

    return SpaceTransport(*await dial_websocket(url, refused))
