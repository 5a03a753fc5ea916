"""Peers of kernel pipes, written from the description of the format, and a server in this process to connect them to."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from penstock.client.address import Address, parse
from penstock.server.config.load import Config
from penstock.server.config.sections import ListenSection
from penstock.server.files.addresses import parse_control
from tests.server.http.driving import HttpDriver, envelope

PATIENCE_S = 30.0
HELLO = {"type": "hello", "version": "v1"}


def framed(kind: str, payload: bytes = b"", **more: Any) -> bytes:
    metadata = json.dumps({"type": kind, "timestamp": 1, **more}).encode()
    return struct.pack(">II", len(metadata), len(payload)) + metadata + payload


def said(*frames: Any) -> bytes:
    """Control v1 lines in one data frame."""
    return framed("data", b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames), sequenceId=0)


class Peer:
    """The other end of a TCP pipe."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, port: int) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def say(self, *frames: Any) -> None:
        self.writer.write(said(*frames))

    async def frame(self) -> tuple[dict[str, Any], bytes]:
        """The next frame: metadata and payload."""
        first, second = struct.unpack(">II", await self._reader.readexactly(8))
        return json.loads(await self._reader.readexactly(first)), await self._reader.readexactly(second)

    async def lines(self, count: int) -> list[Any]:
        """That many control frames, however many pipe frames they take."""
        got: list[Any] = []
        while len(got) < count:
            metadata, payload = await self.frame()
            assert metadata["type"] == "data" and payload.endswith(b"\n"), (metadata, payload[-100:])
            got += [msgspec.json.decode(line) for line in payload.splitlines()]
        assert len(got) == count, got
        return got

    async def ends(self) -> None:
        """Nothing follows but the close frame."""
        metadata, payload = await self.frame()
        assert (metadata["type"], payload) == ("close", b"")
        assert await self._reader.read() == b""
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class PipedServer(HttpDriver):
    """A server in this process with a control port."""

    address: Address

    async def start(self) -> None:
        url = await self.service.control.start(parse_control(self.service._config.listen.control))
        assert url is not None
        self.address = parse(url)

    def stop(self) -> None:
        """Close the port and every connection."""
        self.service.control.close()
        for connection in list(self.service.runtime.peers.all()):
            connection.wire.abort()

    async def enqueue(self, stream: str, *ids: str, payload: str = "") -> None:
        body = {"to": stream, "envelopes": [envelope(id_, payload=payload) for id_ in ids]}
        assert (await self.ask("POST", "/v1/enqueue", body))[0] == 200

    async def stats(self, stream: str) -> dict[str, Any]:
        return dict((await self.ask("GET", "/v1/stats", query={"stream": stream}))[1])


@asynccontextmanager
async def serving(config: Config | None = None) -> AsyncIterator[PipedServer]:
    """A server for one test."""
    config = msgspec.structs.replace(config or Config(), listen=ListenSection(control="127.0.0.1:0"))
    server = PipedServer(config)
    await server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.service.run_dir, ignore_errors=True)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(bounded())
