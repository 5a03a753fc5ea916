"""HTTP and WebSocket on one port. Plain requests are answered in `plain_http.py`; here aiohttp reads all others and upgrades sockets.

A request goes to its `HttpHandler` once. All aiohttp names of the server are in this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import StreamReader, WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler, RequestPayloadError

from penstock.transports.exchanges import BodyMalformedError, BodyTooLargeError, Exchange, HttpHandler
from penstock.transports.http_replies import Reply, Upgrade
from penstock.transports.narrow_parser import CountingParser, NarrowParser
from penstock.transports.plain_http import DOWNLOAD_MIN, HEAD_TIMEOUT_S, KEEPALIVE_S, HttpPort, PlainConnection, stream
from penstock.transports.transport import (
    Admission,
    ConnectionPort,
    Download,
    InputListener,
    PongListener,
    ServerWebSocketTransport,
    Upload,
    tune,
)

BODY_TIMEOUT_S = 30.0
"""A body that takes longer is given up: one slow peer must not hold memory for long."""


class _RequestExchange(Exchange):
    """A request that aiohttp reads."""

    __slots__ = ("_handler", "_request")

    def __init__(self, request: web.BaseRequest, handler: HttpHandler) -> None:
        super().__init__(request.method, request.path, request.headers, request.remote or "", request.content_length)
        self._request = request
        self._handler = handler
        self.is_upgrade = request.headers.get("Upgrade", "").lower() == "websocket"

    def known(self) -> None:
        protocol = self._request.protocol
        if isinstance(protocol, _Handler):
            protocol.known()

    @property
    def query_pairs(self) -> list[tuple[str, str]]:
        return list(self._request.query.items())

    @property
    def is_unread(self) -> bool:
        """Whether a part of the body has not arrived."""
        return self._request.can_read_body and not self._request.content.is_eof()

    async def read(self) -> bytes:
        request = self._request
        if not request.can_read_body:
            return b""
        try:
            if request.content.is_eof():  # a small body comes with the head and needs no timer
                return await self._collect(request.content)
            async with asyncio.timeout(BODY_TIMEOUT_S):
                if self.headers.get("Expect", "").lower() == "100-continue":
                    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    request.writer.output_size = 0  # the final response has not begun
                return await self._collect(request.content)
        except (RequestPayloadError, HttpProcessingError) as error:
            request.content.feed_eof()  # otherwise aiohttp reads on and fails again
            raise BodyMalformedError(_reason(error)) from error

    async def _collect(self, content: StreamReader) -> bytes:
        """The whole body, counted as it arrives."""
        body, bound = bytearray(), self._handler.body_max
        while piece := await content.readany():
            body += piece
            if len(body) > bound:
                raise BodyTooLargeError
            self.holds(len(body))
        return bytes(body)

    def _abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    def _note(self, upload: Upload, size: int) -> None:
        self._handler.note_input(upload, size)


class _Handler(RequestHandler):
    """aiohttp's protocol. Reports back-pressure to an upgraded endpoint, and closes a peer that begins a request and does not go on."""

    handler: HttpHandler
    endpoint: ConnectionPort | None = None
    admission: Admission | None = None
    _patience: asyncio.TimerHandle | None = None

    def take_over(self, plain: PlainConnection, transport: asyncio.Transport, data: bytes) -> None:
        """Go on with a connection, from the first bytes that are not a plain request."""
        self.admission = plain.admission
        loop = asyncio.get_running_loop()
        until_s = loop.time() + HEAD_TIMEOUT_S if plain.has_asked else plain.deadline_s
        self._patience = loop.call_at(until_s, transport.close)
        transport.set_protocol(self)
        self.connection_made(transport)
        if plain.is_congested:
            self.pause_writing()
        self.data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.asked()
        if self.admission is not None:
            self.admission.left()

    def known(self) -> None:
        """The peer is authenticated."""
        if self.admission is not None:
            self.admission.known()
        if isinstance(self._payload_parser, NarrowParser):
            self._payload_parser = self._payload_parser.widen()

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """aiohttp has an open WebSocket: its parser gets what came with the request at once, so all is counted from here."""
        super().set_parser(CountingParser(parser), data_received_cb)  # type: ignore[arg-type]  # it has what aiohttp uses

    def count(self, collecting: Callable[[int], None]) -> CountingParser:
        """Report what arrives of messages and is not taken."""
        parser = self._payload_parser
        assert isinstance(parser, CountingParser)
        parser.collecting = collecting
        return parser

    def narrow(self, bound: int, too_large: Callable[[], None]) -> None:
        """Read few bytes until the peer is known; `too_large` is called when it sends more."""
        if self.transport is not None:
            self._payload_parser = NarrowParser(self._payload_parser, self.transport, bound, too_large)

    def asked(self) -> None:
        """The first request is there."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """A peer's mistake is answered like every other refusal, and is no error of ours to log."""
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        return _response(self.handler.malformed(_reason(exc)), closes=True)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.endpoint is not None:
            self.endpoint.congested(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.endpoint is not None:
            self.endpoint.congested(False)


class HttpListener:
    """One HTTP port."""

    def __init__(self, handler: HttpHandler) -> None:
        self._handler = handler
        self._port = HttpPort(handler, self._hand_over)
        self._server: web.Server | None = None
        self._listeners: list[asyncio.Server] = []

    async def start(self, hosts: tuple[str, ...], port: int) -> int:
        """Listen on every host, on one port; returns it."""
        loop = asyncio.get_running_loop()
        self._server = web.Server(
            self._handle,
            request_factory=self._make_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            auto_decompress=False,  # the handler bounds what a body may become
            loop=loop,
        )
        for host in hosts:
            try:
                listener = await loop.create_server(lambda: PlainConnection(self._port), host, port, backlog=1024)
            except OSError:
                if not self._listeners:
                    raise
                continue  # no IPv6 on this machine: one address is enough
            self._listeners.append(listener)
            port = listener.sockets[0].getsockname()[1]
        return port

    def cut_downloads(self, renewed: Callable[[Any], object | None]) -> int:
        """End the large answers to holders who have no rights any more; returns how many."""
        gone = [reader for reader in self._port.downloads if renewed(reader.holder) is None]
        for reader in gone:
            reader.cut(0)
        return len(gone)

    def stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def stop(self, timeout_s: float) -> None:
        """Close what is left."""
        self.stop_listening()
        if self._server is not None:
            await asyncio.gather(self._port.stop(timeout_s), self._server.shutdown(timeout_s))

    def _hand_over(self, plain: PlainConnection, transport: asyncio.Transport, data: bytes) -> None:
        assert self._server is not None
        handler = _Handler(self._server, loop=asyncio.get_running_loop(), **self._server._kwargs)
        handler.handler = self._handler
        handler.take_over(plain, transport, data)

    def _make_request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Any:
        loop = asyncio.get_running_loop()
        limit = self._handler.body_max
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=limit)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        exchange = _RequestExchange(request, self._handler)
        if isinstance(request.protocol, _Handler):
            request.protocol.asked()
        try:
            answer = await self._handler.handle(exchange)
            if isinstance(answer, Reply):
                response = _response(answer, closes=exchange.is_unread)
                if len(answer.body) >= DOWNLOAD_MIN and request.transport is not None:
                    name = f"{exchange.method} {exchange.path[:200]} ({exchange.peer})"
                    reader = Download(request.transport, name, exchange.peer, exchange.holder)
                    await self._send_large(request, response, reader, len(answer.body))
                return response
            if isinstance(answer, Upgrade):
                return await self._upgrade(request, answer)
            if request.transport is None:
                raise ConnectionResetError
            await stream(request.transport, request.protocol, answer)
            raise AssertionError("a stream ends with its connection")
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            is_unread = isinstance(error, BodyTooLargeError) and exchange.is_unread
            closes = is_unread or isinstance(error, BodyMalformedError)
            return _response(self._handler.failed(exchange, error), closes=closes)
        finally:
            exchange.holds(0)

    async def _send_large(self, request: web.BaseRequest, response: web.Response, reader: Download, size: int) -> None:
        """Write an answer and wait until the peer has read it, or is cut off because it does not."""
        await response.prepare(request)
        request.writer.send_headers()  # aiohttp copies a body that leaves with its headers
        self._handler.note_unread(reader, size)
        self._port.downloads.add(reader)
        try:
            await response.write_eof()
        finally:
            self._port.downloads.discard(reader)
            self._handler.note_unread(reader, 0)

    async def _upgrade(self, request: web.BaseRequest, plan: Upgrade) -> web.StreamResponse:
        protocols = (plan.subprotocol,) if plan.subprotocol else ()
        # aiohttp's bound is above ours, so that ours can say why before it closes.
        bound = 2 * plan.message_max
        ws = web.WebSocketResponse(
            autoclose=False,
            autoping=False,  # we see them all, because they are counted until they are taken
            compress=False,
            max_msg_size=bound,
            protocols=protocols,
            decode_text=False,
        )
        if not ws.can_prepare(request):
            raise ValueError("not a WebSocket request")
        await ws.prepare(request)
        transport = request.transport
        if transport is None:
            return ws
        tune(transport.get_extra_info("socket"))
        wire = ServerWebSocketTransport(transport, merge=plan.merge)
        endpoint = plan.open(wire)
        protocol = request.protocol
        assert isinstance(protocol, _Handler)
        protocol.endpoint = endpoint
        if isinstance(endpoint, InputListener):
            wire.parser = protocol.count(endpoint.collecting)
        if plan.unauthenticated_max is not None and endpoint is not None:
            over = bytes(plan.unauthenticated_max + 1)  # the endpoint refuses a message of this size
            protocol.narrow(plan.unauthenticated_max, lambda: endpoint.received(over))
        try:
            await self._carry(ws, wire, endpoint, plan)
        finally:
            protocol.endpoint = None
            if endpoint is not None:
                endpoint.lost()
            wire.end()
        return ws

    async def _carry(
        self,
        ws: web.WebSocketResponse[Any],
        wire: ServerWebSocketTransport,
        endpoint: ConnectionPort | None,
        plan: Upgrade,
    ) -> None:
        """Hand messages over until the peer says goodbye. The shortest loop that we can make of it: see it as the hot path."""
        text, binary = WSMsgType.TEXT, WSMsgType.BINARY
        receive, merge, parser = ws.receive, plan.merge, wire.parser
        received = None if endpoint is None else endpoint.received
        while True:
            message = await receive()
            kind = message.type
            if kind is binary or kind is text:
                if parser is not None:
                    parser.taken(len(message.data))
                if received is not None and not wire.is_closing:
                    received(message.data + b"\n" if merge else message.data)
                if wire.is_held:
                    await wire.readable.wait()
            elif kind in (WSMsgType.PING, WSMsgType.PONG):
                if parser is not None:
                    parser.taken(len(message.data))
                if plan.wants_pongs:
                    if kind is WSMsgType.PING:
                        wire.pong(message.data)
                    if isinstance(endpoint, PongListener):
                        endpoint.pong_received()
                elif kind is WSMsgType.PING:
                    await ws.pong(message.data)  # waits for a peer that does not read
            else:
                await asyncio.sleep(0)  # messages that came with the goodbye may wait for a turn
                if kind is WSMsgType.CLOSE and wire.is_held:
                    await wire.readable.wait()
                return


def _reason(error: BaseException) -> str:
    """What the library found wrong, without the bytes that it quotes below."""
    origin = error.__cause__ if isinstance(error, RequestPayloadError) else error
    text = getattr(origin, "message", "") or str(error)
    return text.partition("\n")[0].partition(": bytearray(")[0].rstrip(":.")


def _response(reply: Reply, *, closes: bool) -> web.Response:
    response = web.Response(body=reply.body, status=reply.status, headers=reply.headers or None)
    response.headers["Content-Type"] = reply.content_type
    response.headers["Server"] = "penstock"
    if closes:
        response.force_close()  # the rest of the body is not worth reading
    return response
