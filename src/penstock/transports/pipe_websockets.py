"""Transports of kernel pipes over WebSockets, with aiohttp: a message may hold several frames, and a frame may span messages.

Web pages can open WebSockets to this machine, and peers of the kernel are not web pages: an upgrade with an `Origin` is rejected, and so
is one for another host name, unless the listener is public.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from urllib.parse import urlsplit

import aiohttp
from aiohttp import WSMsgType, web

from penstock.dialects.courier.wire.kernel_frames import FRAME_MAX
from penstock.transports.pipe_transports import CLOSE_S, PipeAddress, PipeListener, PipeTransport, Serve
from penstock.transports.transport import tune

DIAL_S = 10.0
"""How long a host may take to accept a WebSocket."""

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class WebSocketPipeTransport:
    """A channel over one WebSocket."""

    heeds_control = True

    def __init__(self, socket: Socket, session: aiohttp.ClientSession | None = None) -> None:
        self._socket = socket
        self._session = session

    @property
    def buffered(self) -> int:
        transport = self._socket.get_extra_info("transport")
        return 0 if transport is None else int(transport.get_write_buffer_size())

    async def read(self) -> bytes:
        while True:
            message = await self._socket.receive()
            if message.type is WSMsgType.TEXT:
                data = message.data.encode() or b"\n"  # not a frame: the decoder rejects it
            elif message.type is WSMsgType.BINARY:
                data = message.data
            else:
                return b""
            if data:
                return data

    async def write(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(data)
        except (aiohttp.ClientError, RuntimeError) as error:  # it is closing
            raise ConnectionError(str(error)) from error

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._socket.close()
        except TimeoutError:
            transport = self._socket.get_extra_info("transport")
            if transport is not None:
                transport.abort()
        finally:
            if self._session is not None:
                await self._session.close()


async def listen_sockets(address: PipeAddress, serve: Serve, *, is_public: bool) -> PipeListener:
    """Serve every WebSocket on the address's path."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if (refused := _refusal(request, address.path, is_public)) is not None:
            return refused
        socket = web.WebSocketResponse(compress=False, max_msg_size=FRAME_MAX, timeout=CLOSE_S)
        if not socket.can_prepare(request):
            return web.Response(status=426, text="this is a WebSocket\n", headers={"Upgrade": "websocket"})
        await socket.prepare(request)
        transport = request.transport
        tune(None if transport is None else transport.get_extra_info("socket"))
        await serve(WebSocketPipeTransport(socket))
        return socket

    server = web.Server(handle, access_log=None)
    port = await asyncio.get_running_loop().create_server(server, address.host, address.port)

    async def close() -> None:
        port.close()
        await server.shutdown(CLOSE_S)

    return PipeListener(address._replace(port=port.sockets[0].getsockname()[1]), close)


def _refusal(request: web.BaseRequest, path: str, is_public: bool) -> web.Response | None:
    if request.path != path:
        return web.Response(status=404, text=f"the pipe is at {path}\n")
    if "Origin" in request.headers:
        return web.Response(status=403, text="web pages may not open this pipe\n")
    if not is_public and not _is_here(request.headers.get("Host", "")):
        return web.Response(status=403, text="the Host is not a name of this machine\n")
    return None


def _is_here(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


async def dial_socket(address: PipeAddress) -> PipeTransport:
    """Connect to a host's WebSocket; raises OSError when that fails."""
    session = aiohttp.ClientSession()
    try:
        async with asyncio.timeout(DIAL_S):
            socket = await session.ws_connect(
                str(address), max_msg_size=FRAME_MAX, compress=0, timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
            )
    except (aiohttp.ClientError, TimeoutError) as error:
        await session.close()
        raise OSError(str(error) or "no answer in time") from error
    except BaseException:
        await session.close()
        raise
    return WebSocketPipeTransport(socket, session)
