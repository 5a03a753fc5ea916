"""Addresses of pipes, and their byte streams over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.transports import pipe_transports
from penstock.transports.pipe_transports import PipeAddress, PipeTransport, dial, listen, parse_pipe

ANY = PipeAddress("tcp", "127.0.0.1", 0)
PATIENCE_S = 30.0
MUCH = 64_000_000
"""More bytes than the system takes for a peer that does not read."""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:9000", PipeAddress("tcp", "127.0.0.1", 9000)),
        ("tcp://[::1]:9000", PipeAddress("tcp", "::1", 9000)),
        ("ws://localhost:9000/courier", PipeAddress("ws", "localhost", 9000, "/courier")),
        ("ws://localhost:0/", PipeAddress("ws", "localhost", 0, "/")),
    ],
)
def test_an_address_is_read_and_written(text: str, address: PipeAddress) -> None:
    assert parse_pipe(text) == address
    assert str(address) == text


def test_a_websocket_without_a_path_is_at_the_root() -> None:
    assert parse_pipe("ws://localhost:9000") == PipeAddress("ws", "localhost", 9000, "/")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tcp://127.0.0.1:port", "is not a URL"),
        ("tcp://127.0.0.1:65536", "is not a URL"),
        ("tcp://[::1:9000", "is not a URL"),
        ("tcp://127.0.0.1", "should be"),
        ("tcp://:9000", "should be"),
        ("wss://localhost:9000/", "should be"),
        ("127.0.0.1:9000", "should be"),
        ("", "should be"),
        ("tcp://127.0.0.1:9000/path", "more than a host and a port"),
        ("tcp://sam@127.0.0.1:9000", "more than a host and a port"),
        ("ws://localhost:9000/?a=1", "more than a host and a port"),
        ("ws://localhost:9000/#a", "more than a host and a port"),
    ],
)
def test_a_wrong_address_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_pipe(text)


def connected(work: Callable[[PipeTransport, PipeTransport], Awaitable[None]]) -> None:
    """Run a test with both ends of a pipe: the one that dialled, and the one that was accepted."""

    async def go() -> None:
        accepted: asyncio.Queue[PipeTransport] = asyncio.Queue()
        is_over = asyncio.Event()

        async def serve(transport: PipeTransport) -> None:
            accepted.put_nowait(transport)
            await is_over.wait()

        async with asyncio.timeout(PATIENCE_S):
            listener = await listen(ANY, serve, is_public=False)
            ours = await dial(listener.address)
            theirs = await accepted.get()
            try:
                await work(ours, theirs)
            finally:
                await asyncio.gather(ours.close(), theirs.close())
                is_over.set()
                await listener.close()

    asyncio.run(go())


async def read(transport: PipeTransport, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (some := await transport.read()):
        data += some
    return bytes(data)


async def read_and_close(transport: PipeTransport, size: int) -> bytes:
    """Read to the end and close, which the other end waits for when it closes."""
    data = await read(transport, size)
    await transport.close()
    return data


def test_bytes_go_both_ways_and_the_end_is_empty() -> None:
    async def work(ours: PipeTransport, theirs: PipeTransport) -> None:
        assert not ours.heeds_control and not theirs.heeds_control
        await ours.write(b"there")
        assert await read(theirs, 5) == b"there"
        await theirs.write(b"back")
        assert await read(ours, 4) == b"back"
        assert ours.buffered == 0
        _, end = await asyncio.gather(ours.close(), read_and_close(theirs, 1))
        assert end == b""

    connected(work)


def test_what_was_written_before_the_close_arrives_though_the_peer_still_writes() -> None:
    async def work(ours: PipeTransport, theirs: PipeTransport) -> None:
        unread = asyncio.ensure_future(theirs.write(b"." * MUCH))
        while not theirs.buffered:  # noqa: ASYNC110 - the system's buffer fills at its own pace
            await asyncio.sleep(0)
        await ours.write(b"last words")
        _, data, _ = await asyncio.gather(ours.close(), read_and_close(theirs, 11), unread)
        assert data == b"last words"

    connected(work)


def test_a_write_waits_for_a_peer_that_does_not_read() -> None:
    async def work(ours: PipeTransport, theirs: PipeTransport) -> None:
        data = b"." * MUCH
        writing = asyncio.ensure_future(ours.write(data))
        while not ours.buffered:  # noqa: ASYNC110 - the system's buffer fills at its own pace
            await asyncio.sleep(0)
        assert not writing.done()
        assert await read(theirs, len(data)) == data
        await writing
        assert ours.buffered < len(data) // 10

    connected(work)


def test_a_peer_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe_transports, "CLOSE_S", 0.01)

    async def work(ours: PipeTransport, theirs: PipeTransport) -> None:
        await ours.close()
        assert await theirs.read() == b""

        async def keep_writing() -> None:
            while True:
                await theirs.write(b"late")

        with pytest.raises(ConnectionError):
            await keep_writing()

    connected(work)


def test_an_address_where_nothing_listens_cannot_be_dialled_and_a_used_one_not_listened_on() -> None:
    async def go() -> None:
        async def serve(_: PipeTransport) -> None:
            return None

        listener = await listen(ANY, serve, is_public=False)
        assert listener.address.port > 0
        with pytest.raises(OSError, match="in use"):
            await listen(listener.address, serve, is_public=False)
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await dial(listener.address)

    asyncio.run(go())
