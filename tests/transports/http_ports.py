"""An HTTP port with a handler of its own, and connections to it that write bytes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from penstock.transports.exchanges import Answer, Answered, Exchange
from penstock.transports.http import HttpListener
from penstock.transports.http_replies import Reply, StreamingReply, Upgrade, json_reply
from penstock.transports.transport import (
    Admission,
    ByteStreamTransport,
    ConnectionPort,
    ServerWebSocketTransport,
    UnreadBytes,
    Upload,
)

BODY_MAX = 1_000
LARGE = 32 * 1024 * 1024
"""More than a connection takes that is not read."""
PATIENCE_S = 30.0
Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Endpoint:
    """Notes what it receives."""

    def __init__(self, wire: ByteStreamTransport | ServerWebSocketTransport) -> None:
        self.wire = wire
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.pongs = 0
        self.collected: asyncio.Queue[int] = asyncio.Queue()
        self.is_lost = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.messages.put_nowait(data)

    def lost(self) -> None:
        self.is_lost.set()

    def congested(self, on: bool) -> None:
        return None

    def collecting(self, size: int) -> None:
        self.collected.put_nowait(size)

    def pong_received(self) -> None:
        self.pongs += 1


class Socket(Upgrade):
    """An upgrade; with `takes=False` it has no endpoint."""

    message_max = 1_000_000

    def __init__(self, handler: Handler, *, merge: bool = False, wants_pongs: bool = False, takes: bool = True) -> None:
        self.handler = handler
        self.merge = merge
        self.wants_pongs = wants_pongs
        self.takes = takes
        self.subprotocol = "mine"

    def open(self, wire: ServerWebSocketTransport) -> ConnectionPort | None:
        if not self.takes:
            wire.close(4000, "not you")
            return None
        return self.handler.add(wire)


class Stream(StreamingReply):
    """An answer without an end."""

    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def open(self, wire: ByteStreamTransport) -> ConnectionPort | None:
        wire.send([b"first\n"])
        return self.handler.add(wire)


class Admitted:
    def __init__(self) -> None:
        self.is_known = self.is_gone = False

    def known(self) -> None:
        self.is_known = True

    def left(self) -> None:
        self.is_gone = True


class Handler:
    """Answers by the path."""

    body_max = BODY_MAX

    def __init__(self) -> None:
        self.endpoints: asyncio.Queue[Endpoint] = asyncio.Queue()
        self.failures: list[Exception] = []
        self.refusal: Reply | None = None
        self.admitted: list[Admitted] = []
        self.unread: list[int] = []
        self.inputs: list[int] = []
        self.counted = asyncio.Event()
        """Set by each of these."""
        self.is_asked = asyncio.Event()
        self.begun: list[str] = []
        """The paths of plain requests."""
        self.later: asyncio.Queue[Answered] = asyncio.Queue()
        """How to answer the plain requests for `/later`."""
        self.is_cancelled = asyncio.Event()

    def add(self, wire: ByteStreamTransport | ServerWebSocketTransport) -> Endpoint:
        endpoint = Endpoint(wire)
        self.endpoints.put_nowait(endpoint)
        return endpoint

    def admit(self, peer: str, close: Callable[[], None]) -> Admission | Reply:
        if self.refusal is not None:
            return self.refusal
        self.admitted.append(Admitted())
        return self.admitted[-1]

    def note_unread(self, reader: UnreadBytes, size: int) -> None:
        self.unread.append(size)

    def note_input(self, upload: Upload, size: int) -> None:
        self.inputs.append(size)
        self.counted.set()

    async def handle(self, exchange: Exchange) -> Reply | StreamingReply | Upgrade:
        self.is_asked.set()
        match exchange.path:
            case "/echo":
                return Reply(200, await exchange.read(), "text/plain", {"X-Mine": "1"})
            case "/seen":
                pairs = [list(pair) for pair in exchange.query_pairs]
                exchange.known()
                seen = [exchange.method, exchange.peer, exchange.size, exchange.is_upgrade, pairs]
                return json_reply(200, seen)
            case "/empty":
                return Reply(204, b"")
            case "/same":
                return Reply(304, b"", "text/plain", {"ETag": "1"})
            case "/large":
                return Reply(200, bytes(LARGE), "text/plain")
            case "/wait":
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self.is_cancelled.set()
            case "/refused":
                return json_reply(403, {"no": True})
            case "/broken":
                raise ValueError("broken")
            case "/stream":
                return Stream(self)
            case "/socket":
                return Socket(self)
            case "/lines":
                return Socket(self, merge=True, wants_pongs=True)
            case _:
                return Socket(self, takes=False)

    def begin(self, exchange: Exchange, body: bytes, done: Answered) -> Coroutine[Any, Any, Answer] | None:
        self.begun.append(exchange.path)
        if exchange.path != "/later":
            return self.handle(exchange)
        self.later.put_nowait(done)
        return None

    def failed(self, exchange: Exchange, error: Exception) -> Reply:
        self.failures.append(error)
        return json_reply(500, {"failed": type(error).__name__, "text": str(error)})

    def malformed(self, reason: str) -> Reply:
        return json_reply(400, {"malformed": reason})


class Port:
    """A listening port, and connections to it that write bytes."""

    def __init__(self, handler: Handler, listener: HttpListener, port: int) -> None:
        self.handler = handler
        self.listener = listener
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Raw]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def ask(self, data: bytes) -> bytes:
        """All that comes back until the server closes the connection."""
        async with self.dial() as (reader, writer):
            writer.write(data)
            return await reader.read()


def serve(work: Callable[[Port], Awaitable[None]]) -> None:
    async def go() -> None:
        handler = Handler()
        listener = HttpListener(handler)
        async with asyncio.timeout(PATIENCE_S):
            port = await listener.start(("127.0.0.1",), 0)
            try:
                await work(Port(handler, listener, port))
            finally:
                await listener.stop(0.0)

    asyncio.run(go())


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """One answer of a connection that stays: status, head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    assert length is not None
    return int(head[9:12]), head, await reader.readexactly(int(length[1]))


def post(path: str, body: bytes, *headers: str) -> bytes:
    fields = "".join(f"{header}\r\n" for header in (f"Content-Length: {len(body)}", *headers))
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n".encode() + body
