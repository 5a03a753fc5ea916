"""A Control v1 peer that sends exactly what a test scripts, for faults that a real server cannot produce."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec

PATIENCE_S = 10.0
"""How long a test waits for what must happen."""
LEASE_S = 600.0
"""The lease of a delivery: no renewal comes between the frames of a script that a busy machine delays."""


class Line:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self, kind: str | None = None) -> dict[str, Any]:
        """The next frame; with `kind`, it must be of that type."""
        async with asyncio.timeout(PATIENCE_S):
            line = await self.reader.readline()
        assert line.endswith(b"\n"), "the client closed the connection"
        frame: dict[str, Any] = msgspec.json.decode(line)
        if kind is not None:
            assert frame["type"] == kind, frame
        return frame

    def say(self, *frames: dict[str, Any]) -> None:
        self.writer.write(b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames))

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    def ok(self, frame: dict[str, Any], **result: Any) -> None:
        self.say({"type": "ok", "reqId": frame["reqId"], "result": result})

    def refuse(self, frame: dict[str, Any], code: str, **more: Any) -> None:
        self.say({"type": "error", "reqId": frame["reqId"], "code": code, "detail": "no", **more})

    def deliver(self, seq: int, *, sub_id: str = "s1", attempt: int = 1, **envelope: Any) -> None:
        self.say(
            {
                "type": "deliver",
                "env": {
                    "id": f"m{seq}",
                    "ts": "2026-01-01T00:00:00Z",
                    "type": "t",
                    "payload": seq,
                    **envelope,
                },
                "stream": "jobs",
                "subId": sub_id,
                "seq": seq,
                "attempt": attempt,
                "leaseId": f"lease-{seq}-{attempt}",
                "leaseExpiresAt": int((time.time() + LEASE_S) * 1000),
            }
        )

    async def greet(self) -> dict[str, Any]:
        """Answer hello."""
        hello = await self.read("hello")
        self.ok(hello, version="v1", features=[], server="scripted", bootId="b")
        return hello

    async def agree(self) -> dict[str, Any]:
        """Answer subscribe."""
        frame = await self.read("subscribe")
        self.ok(frame, subId=frame["subId"])
        return frame

    async def cut(self) -> None:
        await self.writer.drain()
        self.writer.transport.abort()


class Peer:
    """A listening socket; `accept` gives its connections one by one."""

    def __init__(self) -> None:
        self._accepted: asyncio.Queue[Line] = asyncio.Queue()
        self.lines: list[Line] = []
        self.url = ""
        self.server: asyncio.Server | None = None

    def close(self) -> None:
        """Refuse further connections."""
        assert self.server is not None
        self.server.close()

    async def accept(self, *, greet: bool = True) -> Line:
        async with asyncio.timeout(PATIENCE_S):
            line = await self._accepted.get()
        if greet:
            await line.greet()
        return line

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer)
        self.lines.append(line)
        await self._accepted.put(line)


@asynccontextmanager
async def peer(path: str | None = None):
    """A peer on a free port, or on a Unix socket."""
    made = Peer()
    limit = 64 * 1024 * 1024
    if path is None:
        server = await asyncio.start_server(made._connected, "127.0.0.1", 0, limit=limit)
        made.url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        server = await asyncio.start_unix_server(made._connected, path, limit=limit)
        made.url = f"unix:{path}"
    made.server = server
    try:
        yield made
    finally:
        server.close()
        for line in made.lines:
            line.writer.transport.abort()
        await server.wait_closed()


async def until(condition: Callable[[], Any]) -> None:
    """Let everything else run until something is so."""
    while not condition():  # noqa: ASYNC110 - what is awaited has no event to wait for
        await asyncio.sleep(0)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a test's coroutine; one that hangs fails instead."""

    async def bounded() -> Any:
        async with asyncio.timeout(4 * PATIENCE_S):
            return await coroutine

    return asyncio.run(bounded())
