"""A gateway that sends exactly what a test scripts, for faults and old versions that the real one cannot produce."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from tests.client.scripted_peer import PATIENCE_S


class Seat:
    """One accepted WebSocket."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.socket = socket
        self.arrived: asyncio.Queue[Any] = asyncio.Queue()
        self.is_over = asyncio.Event()
        self._serial = 0

    async def read(self, kind: str | None = None) -> dict[str, Any]:
        """The next envelope; with `kind`, it must be of that kind."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self.arrived.get()
        assert isinstance(message, str), message
        envelope: dict[str, Any] = msgspec.json.decode(message)
        if kind is not None:
            assert envelope["kind"] == kind, envelope
        return envelope

    async def read_frame(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.arrived.get()
        assert isinstance(message, bytes), message
        return message

    async def say(self, kind: str, payload: Any = None, **fields: Any) -> None:
        self._serial += 1
        envelope = {
            "protocol": "mew/v0.4",
            "id": f"g-{self._serial}",
            "ts": "2026-01-01T00:00:00.000Z",
            "from": "system:gateway",
            "kind": kind,
            "payload": payload,
            **fields,
        }
        await self.socket.send_str(msgspec.json.encode(envelope).decode())

    async def echo(self, envelope: dict[str, Any]) -> None:
        await self.socket.send_str(msgspec.json.encode(envelope).decode())

    async def refuse(self, envelope: dict[str, Any], error: str, **payload: Any) -> None:
        await self.say("system/error", {"error": error, **payload}, correlation_id=[envelope["id"]])

    async def frame(self, stream_id: str, data: bytes) -> None:
        await self.socket.send_bytes(b"#%b#%b" % (stream_id.encode(), data))

    async def welcome(self, join: dict[str, Any], **payload: Any) -> None:
        you = {"id": join["participantId"], "capabilities": [{"kind": "chat"}]}
        told = {"you": you, "participants": [], "active_streams": []} | payload
        await self.say("system/welcome", told, to=[join["participantId"]])

    async def open(self, **payload: Any) -> dict[str, Any]:
        """Read a `stream/request` and open it as the payload says; returns the request."""
        request = await self.read("stream/request")
        await self.echo(request)
        told = {"stream_id": "stream-1", "encoding": "text", "owner": request["from"]}
        told |= {"authorized_writers": [request["from"]]} | payload
        await self.say("stream/open", told, **{"from": "gateway", "correlation_id": [request["id"]]})
        return request

    async def cut(self) -> None:
        """As a broken network would."""
        transport = self.socket._req.transport
        assert transport is not None
        transport.abort()

    async def over(self) -> None:
        """Wait until the participant is gone."""
        async with asyncio.timeout(PATIENCE_S):
            await self.is_over.wait()


class Gateway:
    """A listening gateway; `accept` gives its connections one by one."""

    def __init__(self) -> None:
        self._accepted: asyncio.Queue[Seat] = asyncio.Queue()
        self.seats: list[Seat] = []
        self.joins: list[dict[str, Any]] = []
        self.url = ""

    async def accept(self, *, welcome: bool = True, **payload: Any) -> Seat:
        async with asyncio.timeout(PATIENCE_S):
            seat = await self._accepted.get()
        self.joins.append(await seat.read())
        if welcome:
            await seat.welcome(self.joins[-1], **payload)
        return seat

    async def connected(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        seat = Seat(socket)
        self.seats.append(seat)
        await self._accepted.put(seat)
        async for message in socket:
            if message.type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                await seat.arrived.put(message.data)
        seat.is_over.set()
        return socket


@asynccontextmanager
async def served(path: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Serve one route on a free port; yields the URL of the server."""
    application = web.Application()
    application.router.add_get(path, handler)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway():
    """A gateway on a free port."""
    made = Gateway()
    async with served("/ws", made.connected) as made.url:
        try:
            yield made
        finally:
            for seat in made.seats:
                await seat.cut() if seat.socket._req.transport else None
