"""A proxy between a client and any server that tests can cut or make one-way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Cable:
    """Forwards bytes both ways; the loop of the test does the work."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._scheme, self._host, self._port = parts.scheme, parts.hostname, parts.port
        self._ends: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.is_alive = asyncio.Event()
        """Cleared, what the client says is held up here."""
        self.is_alive.set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"{self._scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)

    def cut(self) -> None:
        """Every connection is lost; new ones go through."""
        ends, self._ends = self._ends, []
        for end in ends:
            end.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.is_alive.set()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        self._ends += [writer, back]
        for source, sink, is_up in ((reader, back, True), (there, writer, False)):
            task = asyncio.create_task(self._forward(source, sink, is_up))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_up: bool) -> None:
        try:
            while data := await source.read(65_536):
                if is_up:
                    await self.is_alive.wait()
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


@asynccontextmanager
async def cable(url: str):
    """A cable that ends with the block."""
    made = Cable(url)
    await made.open()
    try:
        yield made
    finally:
        await made.close()
