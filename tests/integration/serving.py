"""Clients for a real server: plain requests, bytes on a socket, WebSockets, control lines.

Every wait has a deadline and waits for the event itself: an answer, a frame, the end of a connection, or a condition that another
request can see.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

PATIENCE_S = 30.0
"""How long a test waits for what must happen."""
POLL_S = 0.005
TS = "2026-01-01T00:00:00Z"
JSON = {"Content-Type": "application/json"}


def envelope(id_: str, payload: Any = None, **more: Any) -> dict[str, Any]:
    return {"id": id_, "ts": TS, "type": "note", "payload": payload, **more}


def encode(value: Any) -> bytes:
    return value if isinstance(value, bytes) else msgspec.json.encode(value)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run the body of an asynchronous test with a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(6 * PATIENCE_S):
            await work

    asyncio.run(bounded())


def until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Ask again until the answer is true; for states that no frame announces."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(POLL_S)
    raise AssertionError(f"{what} did not come true")


class Answer:
    """What came back from a request."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, after a look at its shape."""
        error: dict[str, Any] = self.json["error"]
        assert list(self.json) == ["error"]
        assert error["status"] == self.status
        assert {"code", "message", "status", "retryable", "hint"} <= set(error)
        assert "\n" not in error["message"] and error["hint"]
        return error

    @property
    def code(self) -> str:
        return str(self.error["code"])

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.body[:300]!r}>"


class Http:
    """Requests to one server, each on a connection of its own."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        parts = urlsplit(url)
        self.address = (parts.hostname or "", parts.port or 0)
        self.host = parts.netloc
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        try:
            data = None if body is None else encode(body)
            connection.request(method, path, data, {**JSON, **self.headers, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> Answer:
        text = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in query.items())
        return self.ask("GET", f"{path}?{text}" if text else path, headers=headers)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        return self.ask("POST", path, body, headers)

    # The requests most tests make

    def enqueue(self, stream: str, *ids: str, **more: Any) -> list[int]:
        """Put envelopes into a stream, with their own ids as payloads; their numbers."""
        body = {"to": stream, "envelopes": [envelope(id_, id_) for id_ in ids], **more}
        answer = self.post("/v1/enqueue", body)
        assert answer.status == 200, answer
        seqs: list[int] = answer.json["seqs"]
        return seqs

    def pull(self, stream: str, **more: Any) -> list[dict[str, Any]]:
        answer = self.post("/v1/pull", {"stream": stream, **more})
        assert answer.status == 200, answer
        deliveries: list[dict[str, Any]] = answer.json["deliveries"]
        return deliveries

    def settle(self, id_: str, op: str, **more: Any) -> Answer:
        return self.post("/v1/settle", {"id": id_, "op": op, **more})

    def stats(self, stream: str) -> dict[str, Any]:
        answer = self.get("/v1/stats", stream=stream)
        assert answer.status == 200, answer
        stats: dict[str, Any] = answer.json
        return stats

    def counters(self) -> dict[str, dict[str, int]]:
        """The counters of every stream, without the figures that change as time passes."""
        passing = ("q.lat.p50", "q.lat.p95", "q.lat.p99", "q.oldestMs")
        return {
            row["id"]: {name: value for name, value in row["q"].items() if name not in passing}
            for row in self.get("/v1/metrics").json["streams"]
        }


def ids(deliveries: list[dict[str, Any]]) -> list[str]:
    return [delivery["deliver"]["id"] for delivery in deliveries]


# Bytes on a socket


class Bytes:
    """A TCP or Unix connection for tests where every byte counts."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(PATIENCE_S)
            self.socket.connect(parts.path)
        else:
            self.socket = socket.create_connection((parts.hostname, parts.port), PATIENCE_S)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def write(self, *chunks: bytes) -> None:
        for chunk in chunks:
            self.socket.sendall(chunk)

    def say(self, *frames: Any) -> None:
        self.write(b"".join(encode(frame) + b"\n" for frame in frames))

    def line(self) -> bytes:
        """The next line, without its end; empty when the server has closed."""
        while b"\n" not in self._rest:
            data = self.socket.recv(65_536)
            if not data:
                assert self._rest == b"", f"the connection ended within a line: {self._rest[:200]!r}"
                return b""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def frame(self, kind: str | None = None) -> dict[str, Any]:
        """The next control frame; with `kind`, it must be of that type."""
        frame: dict[str, Any] = msgspec.json.decode(self.line())
        assert kind is None or frame["type"] == kind, frame
        return frame

    def error(self) -> dict[str, Any]:
        """The next frame, which must be an error of the full shape."""
        frame = self.frame("error")
        assert {"reqId", "code", "detail", "status", "retryable", "hint"} <= set(frame), frame
        return frame

    def result(self, req_id: Any) -> Any:
        """The result of the next frame, which must be the answer to this request."""
        frame = self.frame("ok")
        assert frame["reqId"] == req_id, frame
        return frame["result"]

    def ping(self) -> None:
        """Everything the server said before must have been read."""
        self.say({"type": "ping", "reqId": "nothing before this"})
        assert self.result("nothing before this") == {}

    def rest(self) -> bytes:
        """Everything until the server closes; a reset counts as the end."""
        try:
            while data := self.socket.recv(65_536):
                self._rest += data
        except ConnectionResetError:
            pass
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        self.socket.close()


@contextmanager
def connected(url: str):
    """A raw connection that ends with the block."""
    connection = Bytes(url)
    try:
        yield connection
    finally:
        connection.close()


def request_bytes(url: str, data: bytes) -> Answer:
    """Send bytes to the HTTP port and read one answer."""
    with connected(url.replace("http:", "tcp:")) as connection:
        try:
            connection.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of it was read
        return read_answer(connection)


def read_answer(connection: Bytes) -> Answer:
    response = http.client.HTTPResponse(connection.socket)
    try:
        response.begin()
        return Answer(response.status, response.headers, response.read())
    finally:
        response.close()


# WebSockets


class Peer:
    """The client's end of a WebSocket."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws

    async def say(self, *messages: Any) -> None:
        for message in messages:
            await self.ws.send_str(message if isinstance(message, str) else encode(message).decode())

    async def receive(self) -> aiohttp.WSMessage:
        async with asyncio.timeout(PATIENCE_S):
            return await self.ws.receive()

    async def read(self) -> Any:
        """The next message, which must be JSON text."""
        message = await self.receive()
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return msgspec.json.decode(message.data)

    async def deliveries(self, count: int) -> list[dict[str, Any]]:
        """The next messages, which must be that many deliveries."""
        got = [await self.read() for _ in range(count)]
        assert all(set(one) == {"deliver", "seq", "attempt", "leaseId"} for one in got), got
        return got

    async def error(self) -> dict[str, Any]:
        message = await self.read()
        assert list(message) == ["error"], message
        error: dict[str, Any] = message["error"]
        assert {"code", "message", "status", "retryable", "hint"} <= set(error)
        return error

    async def closed(self) -> int:
        """The code with which the server closes next."""
        message = await self.receive()
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), message
        return int(self.ws.close_code or 0)

    async def nothing(self) -> None:
        """Nothing was sent so far: the answer to a new mistake is the next message."""
        await self.say({"ack": "no-such-id"})
        error = await self.error()
        assert (error["code"], error["ref"]) == ("UnknownEnvelope", "no-such-id")


class Sockets:
    """Opens WebSockets on one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def open(self, path: str, **options: Any) -> Peer:
        return Peer(await self.session.ws_connect(self.url + path, max_msg_size=0, **options))

    async def subscribe(self, stream: str, query: str = "", **options: Any) -> Peer:
        text = f"/v1/subscribe?stream={quote(stream, safe='')}" + (f"&{query}" if query else "")
        return await self.open(text, **options)

    async def refused(self, path: str, **options: Any) -> Answer:
        """A handshake that must fail, with its body."""
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
            **options.pop("headers", {}),
        }
        async with self.session.get(self.url + path, headers=headers, **options) as response:
            return Answer(response.status, response.headers, await response.read())


@asynccontextmanager
async def sockets(url: str):
    """WebSockets that end with the block."""
    async with aiohttp.ClientSession() as session:
        yield Sockets(session, url)


def handshake(url: str, path: str) -> Bytes:
    """A WebSocket by hand, for a client that frames or reads as no library would."""
    connection = Bytes(url.replace("http:", "tcp:"))
    connection.write(
        f"GET {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.socket.recv(1)
    assert head.startswith(b"HTTP/1.1 101"), head
    return connection


def client_frame(first_byte: int, payload: bytes) -> bytes:
    """A masked WebSocket frame; the first byte holds FIN and the opcode."""
    size = len(payload)
    if size < 126:
        head = bytes((first_byte, 0x80 | size))
    elif size < 65_536:
        head = bytes((first_byte, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first_byte, 0x80 | 127)) + size.to_bytes(8, "big")
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[i & 3] for i, byte in enumerate(payload))


def server_frame(connection: Bytes) -> tuple[int, bytes]:
    """The next frame of the server: opcode and payload."""
    first, size = _exactly(connection, 2)
    if size == 126:
        size = int.from_bytes(_exactly(connection, 2), "big")
    elif size == 127:
        size = int.from_bytes(_exactly(connection, 8), "big")
    return first & 0x0F, _exactly(connection, size)


def _exactly(connection: Bytes, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.socket.recv(size - len(data))
        assert part, "the connection ended within a frame"
        data += part
    return data
