"""Pipes over WebSockets: who may open one, and how messages become bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from penstock.dialects.courier.wire.kernel_frames import FRAME_MAX
from penstock.transports import pipe_websockets
from penstock.transports.pipe_transports import PipeAddress, PipeTransport, dial, listen

PATIENCE_S = 10.0


class Port:
    """A listener, and the peers that it accepted."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[PipeTransport] = asyncio.Queue()
        self.is_over = asyncio.Event()
        self.address = PipeAddress("ws", "127.0.0.1", 0, "/courier")

    async def serve(self, transport: PipeTransport) -> None:
        self.accepted.put_nowait(transport)
        await self.is_over.wait()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[PipeTransport, PipeTransport]]:
        """Both ends of a pipe: the one that dialled, and the one that was accepted."""
        ours = await dial(self.address)
        theirs = await self.accepted.get()
        try:
            yield ours, theirs
        finally:
            await asyncio.gather(ours.close(), theirs.close())


def listening(work: Callable[[Port], Awaitable[None]], *, is_public: bool = False) -> None:
    async def go() -> None:
        port = Port()
        async with asyncio.timeout(PATIENCE_S):
            listener = await listen(port.address, port.serve, is_public=is_public)
            port.address = listener.address
            try:
                await work(port)
            finally:
                port.is_over.set()
                await listener.close()

    asyncio.run(go())


async def status(port: Port, path: str, headers: dict[str, str]) -> int:
    url = f"http://127.0.0.1:{port.address.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status


@pytest.mark.promise("Stream Kernel", "only authorised clients may open a pipe")
@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/", {}, 404),
        ("/courier", {"Origin": "http://evil.example"}, 403),
        ("/courier", {"Host": "evil.example"}, 403),
        ("/courier", {"Host": "[::1"}, 403),
        ("/courier", {"Host": "localhost:80"}, 426),
        ("/courier", {"Host": "[::1]:80"}, 426),
        ("/courier", {}, 426),
    ],
)
def test_web_pages_and_wrong_paths_are_turned_away(path: str, headers: dict[str, str], expected: int) -> None:
    async def work(port: Port) -> None:
        assert await status(port, path, headers) == expected

    listening(work)


@pytest.mark.promise("Stream Kernel", "only authorised clients may open a pipe")
def test_a_public_listener_has_other_names_and_still_turns_web_pages_away() -> None:
    async def work(port: Port) -> None:
        assert await status(port, "/courier", {"Host": "pipe.example"}) == 426
        assert await status(port, "/courier", {"Host": "pipe.example", "Origin": "http://pipe.example"}) == 403

    listening(work, is_public=True)


def test_bytes_go_both_ways_and_the_end_is_empty() -> None:
    async def work(port: Port) -> None:
        async with port.connected() as (ours, theirs):
            assert ours.heeds_control and theirs.heeds_control
            await ours.write(b"there")
            assert await theirs.read() == b"there"
            await theirs.write(b"")
            await theirs.write(b"back")
            assert await ours.read() == b"back", "an empty message is no end"
            assert ours.buffered == 0
            _, end = await asyncio.gather(ours.close(), theirs.read())
            assert end == b""
            assert ours.buffered == 0
            with pytest.raises(ConnectionError):
                await ours.write(b"late")

    listening(work)


@pytest.mark.parametrize(("text", "data"), [("hello", b"hello"), ("", b"\n")])
def test_a_text_message_is_bytes_that_are_no_frame(text: str, data: bytes) -> None:
    async def work(port: Port) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(str(port.address)) as socket:
            theirs = await port.accepted.get()
            await socket.send_str(text)
            assert await theirs.read() == data
            port.is_over.set()

    listening(work)


def test_a_message_over_the_bound_ends_the_pipe() -> None:
    async def work(port: Port) -> None:
        async with port.connected() as (ours, theirs):
            sending = asyncio.ensure_future(ours.write(bytes(FRAME_MAX + 1)))
            assert await theirs.read() == b""
            await asyncio.wait([sending])
            sending.exception()

    listening(work)


def test_a_peer_that_does_not_answer_the_close_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe_websockets, "CLOSE_S", 0.01)

    async def work(port: Port) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(str(port.address)) as socket:
            theirs = await port.accepted.get()
            await theirs.close()
            port.is_over.set()
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE

    listening(work)


@pytest.mark.parametrize("path", ["/courier", "/other"])
def test_a_host_that_has_no_pipe_cannot_be_dialled(path: str) -> None:
    async def work(port: Port) -> None:
        wrong = port.address._replace(path=path, port=port.address.port if path == "/other" else 1)
        with pytest.raises(OSError, match=r"404|Cannot connect"):
            await dial(wrong)

    listening(work)
