"""The short way through an HTTP port: plain requests are answered here, without a task and without aiohttp.

A connection begins here. Its first bytes that are not a plain request (see `plain_requests.py`) hand it over to aiohttp for good, together with
these bytes. So whatever is odd, malformed, large or an upgrade is handled in one place, and so is what arrives too slowly.

One request of a connection is answered at a time; what a peer sends meanwhile waits, within bounds. While it does not read
an answer, nothing more is answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

from penstock.transports.exchanges import Answer, BodyTooLargeError, Exchange, HttpHandler
from penstock.transports.http_replies import Reply, StreamingReply, Upgrade, head_of
from penstock.transports.plain_requests import BODY_MAX, HEAD_MAX, PlainHead, parse_head
from penstock.transports.transport import Admission, ByteStreamTransport, ConnectionPort, Download, Upload, tune

BODY_GRACE_S = 0.25
"""How long a body may come after its head: many clients write them one after the other."""
HEAD_TIMEOUT_S = 30.0
"""A peer that connects has this long to ask for something."""
KEEPALIVE_S = 75.0
"""A connection that has asked for something may be idle for this long."""
WAITING_MAX = HEAD_MAX + BODY_MAX
"""Bytes that wait for an answer on its way; then the peer is not read."""
DOWNLOAD_MIN = 256 * 1024
"""Bytes of an answer that counts among the unread bytes of the process until its peer has read it."""
_BODILESS = (204, 304)


class PlainExchange(Exchange):
    """A plain request."""

    __slots__ = ("_connection", "_query_pairs", "body")

    def __init__(self, connection: PlainConnection, head: PlainHead, body: bytes) -> None:
        super().__init__(head.method, head.path, head.headers, connection.peer, head.size)
        self._connection = connection
        self._query_pairs = head.query_pairs
        self.body = body

    def known(self) -> None:
        self._connection.known()

    def _abort(self) -> None:
        if self._connection.transport is not None:
            self._connection.transport.abort()

    def _note(self, upload: Upload, size: int) -> None:
        self._connection.port.handler.note_input(upload, size)

    @property
    def query_pairs(self) -> list[tuple[str, str]]:
        return self._query_pairs()

    async def read(self) -> bytes:
        if len(self.body) > self._connection.port.handler.body_max:
            raise BodyTooLargeError
        self.holds(len(self.body))
        return self.body


HandOver = Callable[["PlainConnection", asyncio.Transport, bytes], None]


class HttpPort:
    """What the connections of one port share."""

    def __init__(self, handler: HttpHandler, hand_over: HandOver) -> None:
        self.handler = handler
        self.hand_over = hand_over
        self.connections: set[PlainConnection] = set()
        self.downloads: set[Download] = set()

    async def stop(self, timeout_s: float) -> None:
        """Close the connections, those with a request when it is answered."""
        if waiting := [future for each in tuple(self.connections) if (future := each.finish()) is not None]:
            await asyncio.wait(waiting, timeout=timeout_s)
        for each in tuple(self.connections):
            each.close()


class PlainConnection(asyncio.Protocol):
    """One connection, until it is handed over."""

    peer = ""
    admission: Admission | None = None
    endpoint: ConnectionPort | None = None
    """Of an answer without an end."""

    def __init__(self, port: HttpPort) -> None:
        self.port = port
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        """None before it is admitted, and when it is lost or handed over."""
        self.has_asked = False
        self.deadline_s = 0.0
        """When it is closed, if it has no request then."""
        self._timer: asyncio.TimerHandle | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._data = b""
        """What was read and is not answered."""
        self._exchange: PlainExchange | None = None
        """The request that is being answered."""
        self._task: asyncio.Task[None] | None = None
        self._download: Download | None = None
        self.is_congested = self._is_held = False
        self._unread = 0
        """What was written and not read when that was last looked at."""
        self._finished: asyncio.Future[None] | None = None
        """Set while the port stops and a request is being answered."""

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)  # uvloop's is not derived from it
        peer = wire.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        admitted = self.port.handler.admit(self.peer, wire.abort)
        if isinstance(admitted, Reply):
            wire.write(head_of(admitted) + admitted.body)
            wire.close()
            return
        tune(wire.get_extra_info("socket"))
        self.transport, self.admission = wire, admitted
        self._wire = ByteStreamTransport(wire)
        self.port.connections.add(self)
        self.deadline_s = self._loop.time() + HEAD_TIMEOUT_S
        self._timer = self._loop.call_at(self.deadline_s, self._expire)

    def data_received(self, data: bytes) -> None:
        if self._data:
            data = self._data + data
        if self._exchange is None and not self.is_congested:
            self._take(data)
            return
        self._data = data
        if len(data) > WAITING_MAX and not self._is_held and self.transport is not None:
            self._is_held = True
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self.is_congested = True
        if self.endpoint is not None:
            self.endpoint.congested(True)

    def resume_writing(self) -> None:
        self.is_congested = False
        if self.endpoint is not None:
            self.endpoint.congested(False)
        self._end_download()
        self.deadline_s = self._loop.time() + KEEPALIVE_S
        if self._data and self._exchange is None:
            self._loop.call_soon(self._next)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._detach()
        self._end_download()
        self._answered()
        if self._task is not None:
            self._task.cancel()
            self._task = None  # its traceback refers to this connection
        if self.admission is not None:
            self.admission.left()

    # Requests

    def _take(self, data: bytes) -> None:
        """Answer the request at the start of these bytes."""
        if self.transport is None or self.transport.is_closing():
            return
        head = parse_head(data)
        if head is None:
            self._hand_over(data)
            return
        if len(data) < head.end:
            self._data = data
            if self._grace is None:
                self._grace = self._loop.call_later(BODY_GRACE_S, self._lose_patience)
            return
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._data = data[head.end :]
        self.has_asked = True
        exchange = self._exchange = PlainExchange(self, head, data[head.start : head.end])
        try:
            work = self.port.handler.begin(exchange, exchange.body, self._answer)
        except Exception as error:
            self._answer(self.port.handler.failed(exchange, error))
            return
        if work is not None:
            self._task = self._loop.create_task(self._wait(exchange, work))

    async def _wait(self, exchange: PlainExchange, work: Coroutine[Any, Any, Answer]) -> None:
        try:
            answer = await work
            if isinstance(answer, Upgrade):
                raise ValueError("not a WebSocket request")
        except ConnectionError:
            self.close()
            return
        except asyncio.CancelledError:  # of the connection, or of something that the handler waited for
            self.close()
            raise
        except Exception as error:
            answer = self.port.handler.failed(exchange, error)
        self._task = None
        self._answer(answer)

    def _next(self) -> None:
        """Answer what has waited."""
        if self._exchange is None and not self.is_congested and self._data:
            data, self._data = self._data, b""
            self._release()
            self._take(data)

    def _answer(self, answer: Reply | StreamingReply) -> None:
        """The handler has answered; the peer may have left."""
        exchange, transport = self._exchange, self.transport
        if exchange is None or transport is None:
            return
        if not isinstance(answer, Reply):
            self._task = self._loop.create_task(stream(transport, self, answer))
            return
        head = format_head(answer)
        if len(answer.body) < DOWNLOAD_MIN:
            self._wire.send([head if answer.status in _BODILESS else head + answer.body])
        else:
            self._send_large(transport, exchange, head, answer.body)
        self._answered()
        self.deadline_s = self._loop.time() + KEEPALIVE_S
        if self._finished is not None:
            self.close()
        elif self._data:
            self._loop.call_soon(self._next)

    def _send_large(self, transport: asyncio.Transport, exchange: PlainExchange, head: bytes, body: bytes) -> None:
        """Write an answer that may wait for the peer to read, or for it to be cut off because it does not."""
        name = f"{exchange.method} {exchange.path[:200]} ({exchange.peer})"
        self._download = Download(transport, name, exchange.peer, exchange.holder)
        self.port.downloads.add(self._download)
        self._wire.send([head, body])
        self.port.handler.note_unread(self._download, len(body))
        if not self.is_congested:
            self._end_download()

    def _end_download(self) -> None:
        reader, self._download = self._download, None
        if reader is not None:
            self.port.downloads.discard(reader)
            self.port.handler.note_unread(reader, 0)

    def _answered(self) -> None:
        if self._exchange is not None and self._exchange.upload is not None:
            self._exchange.holds(0)
        self._exchange = None
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    # The end

    def known(self) -> None:
        """The peer is authenticated."""
        if self.admission is not None:
            self.admission.known()

    def finish(self) -> asyncio.Future[None] | None:
        """Close when the request is answered that is being answered; returns what that sets, or None when there is none."""
        if self._exchange is None:
            self.close()
            return None
        self._data = b""
        self._finished = self._loop.create_future()
        return self._finished

    def close(self) -> None:
        """Close when everything written has left."""
        if self.transport is not None:
            self.transport.close()

    def _expire(self) -> None:
        """Close the connection if it has been idle for too long."""
        if self.is_congested and self._exchange is None and self.transport is not None:
            before, self._unread = self._unread, self.transport.get_write_buffer_size()
            if self._unread == before:  # the peer read nothing of its answer since
                self.transport.abort()
                return
        is_busy = self._exchange is not None or self.is_congested
        if is_busy or self._loop.time() < self.deadline_s:
            at_s = self._loop.time() + KEEPALIVE_S if is_busy else self.deadline_s
            self._timer = self._loop.call_at(at_s, self._expire)
        else:
            self.close()

    def _lose_patience(self) -> None:
        """The body does not come: aiohttp waits for it as long as it may take."""
        self._grace = None
        self._hand_over(self._data)

    def _hand_over(self, data: bytes) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing():
            self._detach()
            self.port.hand_over(self, transport, data)

    def _detach(self) -> None:
        """This is not the connection's protocol any more."""
        self.port.connections.discard(self)
        self._release()
        for timer in (self._timer, self._grace):
            if timer is not None:
                timer.cancel()
        self.transport = None

    def _release(self) -> None:
        if self._is_held and self.transport is not None:
            self._is_held = False
            self.transport.resume_reading()


async def stream(transport: asyncio.Transport, protocol: Any, reply: StreamingReply) -> None:
    """Write an answer until the connection ends; this task is cancelled then."""
    tune(transport.get_extra_info("socket"))
    wire = ByteStreamTransport(transport)
    wire.send([reply.head])
    endpoint = reply.open(wire)
    protocol.endpoint = endpoint
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        protocol.endpoint = None
        if endpoint is not None:
            endpoint.lost()
        transport.abort()


def format_head(reply: Reply) -> bytes:
    """The head of an answer, as aiohttp writes it."""
    more = "".join([f"{name}: {value}\r\n" for name, value in reply.headers.items()]) if reply.headers else ""
    size = "" if reply.status in _BODILESS else f"Content-Length: {len(reply.body)}\r\n"
    text = f"{_status(reply.status)}{more}Content-Type: {reply.content_type}\r\nServer: penstock\r\n{size}"
    return f"{text}Date: {_date(int(time.time()))}\r\n\r\n".encode()


@lru_cache(maxsize=64)
def _status(status: int) -> str:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    return formatdate(now_s, usegmt=True)
