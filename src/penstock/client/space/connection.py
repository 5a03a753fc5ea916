"""The connection of a participant, which survives its transports, and the envelopes that wait for an echo or an answer.

After a loss it joins again under the same name with a growing back-off. A rejected join is final, and so is a join of another connection
under our name. Senders wait here for a transport, or get the error that ended the connection.

An envelope is confirmed by its echo, which the gateway sends when it is durable, or by the gateway's own answer where it does not echo. An
answer is the first other envelope that is correlated to ours; where only the gateway can answer, envelopes of participants are ignored. A
correlated `system/error` fails the pending envelope.

A transport is one WebSocket to the gateway. A message larger than `LINE_MAX` closes it, which bounds the memory that a peer can use. The
library pings, and closes a silent connection.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from penstock.client.address import STATUSES, reason_of, unreachable
from penstock.client.control.connection import AGAIN
from penstock.client.control.websocket import dial_websocket
from penstock.client.space import messages
from penstock.client.space.messages import SpaceEnvelope, SpaceError, object_of
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.client.space.client import Space

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


BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 5.0

Join = Callable[[], Awaitable[tuple[SpaceTransport, SpaceEnvelope]]]


class ParticipantConnection:
    """The connection of one participant."""

    def __init__(self, url: str, join: Join, listener: Space, *, reconnect: bool) -> None:
        self.reconnects = 0
        """How often the connection was lost and re-established."""
        self._url = url
        self._join = join
        self._listener = listener
        self._may_reconnect = reconnect
        self._transport: SpaceTransport | None = None
        self._is_decided = asyncio.Event()
        """Set while a transport is up, and after the final failure."""
        self._failure: PenstockError | None = None
        self._life: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._transport is not None

    async def ready(self) -> SpaceTransport:
        """The transport; waits while reconnecting. Raises the error that ended the connection."""
        while self._transport is None:
            if self._failure is not None:
                raise self._failure
            if self._life is None:
                raise unreachable("the space was not joined yet", "use `async with Space(…)`, or `await space.open()`")
            await self._is_decided.wait()
        return self._transport

    async def write(self, transport: SpaceTransport, message: str | bytes) -> None:
        """Send on a transport that `ready` returned; waits while the gateway does not read."""
        try:
            await transport.send(message)
        except OSError as error:
            raise self._loss(str(error)) from error

    async def open(self) -> None:
        """Join for the first time. Raises PenstockError when that fails."""
        if self._life is None:
            transport, welcome = await self._join()
            self._arrive(transport, welcome)
            self._life = asyncio.create_task(self._live(transport))
            self._life.add_done_callback(self._died)

    async def close(self) -> None:
        """Leave the space."""
        if self._failure is None:
            self._failure = unreachable("the space was left", "join it again with a new `Space`")
        transport = self._transport
        self._depart(self._failure)
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
        if transport is not None:  # its task may not have started
            await transport.close()

    def _arrive(self, transport: SpaceTransport, welcome: SpaceEnvelope) -> None:
        self._transport = transport
        self._listener._arrived(welcome)
        self._is_decided.set()

    def _depart(self, error: PenstockError) -> None:
        self._transport = None
        if self._failure is None:
            self._is_decided.clear()
        else:
            self._is_decided.set()
        self._listener._lost(error)

    def _end(self, error: PenstockError) -> None:
        if self._failure is None:
            self._failure = error
            self._depart(error)
            self._listener._ended(error)

    async def _live(self, transport: SpaceTransport) -> None:
        """Read until the transport is lost, reconnect, repeat."""
        found: SpaceTransport | None = transport
        while found is not None:
            try:
                while (arrival := await found.receive()) is not None:
                    self._listener._arrived(arrival)
                    await self._listener._room()
                self._transport_lost(found)
            finally:
                await asyncio.shield(found.close())
            found = await self._come_back()

    def _transport_lost(self, transport: SpaceTransport) -> None:
        if transport.is_taken_over:
            hint = "a participant has one connection; give the other program another name"
            self._end(PenstockError(Refusal("Forbidden", "another connection joined under our name", hint=hint)))
            return
        error = self._loss(transport.reason)
        if self._may_reconnect:
            self._depart(error)
        else:
            self._end(error)

    def _loss(self, reason: str) -> PenstockError:
        hint = AGAIN if self._may_reconnect else None
        return unreachable(f"the connection to {self._url} was lost: {reason}", hint)

    async def _come_back(self) -> SpaceTransport | None:
        delay_s = BACKOFF_FIRST_S
        while self._failure is None:
            # Full jitter: participants that lost the same gateway must not reconnect at the same time.
            await asyncio.sleep(random.uniform(0, delay_s))
            try:
                transport, welcome = await self._join()
            except PenstockError as error:
                if not error.retryable:
                    self._end(error)
                delay_s = min(2 * delay_s, BACKOFF_MAX_S)
            else:
                self.reconnects += 1
                self._arrive(transport, welcome)
                return transport
        return None

    def _died(self, life: asyncio.Task[None]) -> None:
        """Fail all callers when the reading task itself crashed, so that none waits forever."""
        error = None if life.cancelled() else life.exception()
        if error is not None:
            self._end(PenstockError(Refusal("Internal", f"reading from {self._url} failed: {error!r}")))


OPEN_MAX = 1_000
"""The most pending envelopes of one participant."""


Wanted = Literal["echo", "answer", "gateway"]
"""What completes a pending envelope: its echo, any answer, or an answer of the gateway."""


class PendingEnvelope:
    """A sent envelope and the future of its echo or answer."""

    def __init__(self, envelope_id: str, wants: Wanted) -> None:
        self.id = envelope_id
        self.wants = wants
        self.future: asyncio.Future[SpaceEnvelope] = asyncio.get_running_loop().create_future()


class PendingEnvelopes:
    """All pending envelopes of a participant."""

    def __init__(self) -> None:
        self._open: dict[str, PendingEnvelope] = {}
        self.slots = asyncio.Semaphore(OPEN_MAX)
        """Hold one while an envelope is pending; waits until one is free."""
        self._stem = secrets.token_hex(6)
        self._serial = 0

    def next_id(self) -> str:
        self._serial += 1
        return f"{self._stem}-{self._serial}"

    def begin(self, wants: Wanted) -> PendingEnvelope:
        """Add a pending envelope; `end` removes it."""
        exchange = PendingEnvelope(self.next_id(), wants)
        self._open[exchange.id] = exchange
        return exchange

    def end(self, exchange: PendingEnvelope) -> None:
        del self._open[exchange.id]
        exchange.future.cancel()

    def take(self, envelope: SpaceEnvelope) -> bool:
        """Whether an envelope from the wire settled something."""
        settled = False
        for cause in envelope.correlation_id:
            exchange = self._open.get(cause)
            if exchange is None or exchange.future.done():
                continue
            if envelope.kind == "system/error" and envelope.is_from_gateway:
                exchange.future.set_exception(SpaceError(object_of(envelope.payload)))
                settled = True
            elif exchange.wants == "answer" or envelope.is_from_gateway:
                exchange.future.set_result(envelope)
                settled = True
        echoed = self._open.get(envelope.id)
        if echoed is not None and echoed.wants == "echo" and not echoed.future.done():
            echoed.future.set_result(envelope)
            settled = True
        return settled

    def fail(self, error: PenstockError) -> None:
        """Fail all pending envelopes: their outcome is unknown."""
        for exchange in self._open.values():
            if not exchange.future.done():
                exchange.future.set_exception(error)
                exchange.future.exception()  # it may be ending at this moment
