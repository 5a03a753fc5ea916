"""Byte-stream listeners: chunks reach their endpoint, other protocols are closed, and Unix sockets are private."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.transports.byte_streams import listen_tcp, listen_unix
from penstock.transports.transport import ByteStreamTransport


class Endpoint:
    """Answers every chunk with itself."""

    def __init__(self, wire: ByteStreamTransport, peer: str) -> None:
        self.wire = wire
        self.peer = peer
        self.is_lost = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.wire.send([data])

    def lost(self) -> None:
        self.is_lost.set()

    def congested(self, on: bool) -> None:
        return None


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await work()

    asyncio.run(limited())


async def dial(server: asyncio.Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.sockets[0].getsockname()[:2]
    return await asyncio.open_connection(host, port)


def test_after_a_large_chunk_others_are_read_first_and_a_hold_stays() -> None:
    class Source:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def is_closing(self) -> bool:
            return False

        def pause_reading(self) -> None:
            self.calls.append("pause")

        def resume_reading(self) -> None:
            self.calls.append("resume")

    async def work() -> None:
        wire = ByteStreamTransport(cast(asyncio.WriteTransport, None))
        wire.source = source = cast(Any, Source())
        wire.give_way()
        assert source.calls == ["pause"]
        await asyncio.sleep(0)
        assert source.calls == ["pause", "resume"]
        wire.give_way()
        wire.hold(True)
        await asyncio.sleep(0)
        assert source.calls[2:] == ["pause", "pause"], "a connection that is held stays so"

    run(work)


def test_chunks_reach_the_endpoint_and_its_end_is_reported() -> None:
    async def work() -> None:
        made: list[Endpoint] = []

        def accept(wire: ByteStreamTransport, peer: str) -> Endpoint:
            made.append(Endpoint(wire, peer))
            return made[-1]

        async with await listen_tcp("127.0.0.1", 0, accept) as server:
            reader, writer = await dial(server)
            writer.write(b'{"a":1}\n')
            assert await reader.readline() == b'{"a":1}\n'
            assert made[0].peer == "127.0.0.1"
            writer.close()
            await made[0].is_lost.wait()

    run(work)


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"hello"])
def test_a_peer_of_another_protocol_is_closed_without_an_answer(first: bytes) -> None:
    async def work() -> None:
        async with await listen_tcp("127.0.0.1", 0, Endpoint) as server:
            reader, writer = await dial(server)
            writer.write(first)
            assert await reader.read() == b""
            writer.close()

    run(work)


def test_a_rejected_connection_is_closed() -> None:
    async def work() -> None:
        async with await listen_tcp("127.0.0.1", 0, lambda wire, peer: None) as server:
            reader, writer = await dial(server)
            assert await reader.read() == b""
            writer.close()

    run(work)


def test_a_unix_socket_is_for_its_owner_and_replaces_one_that_a_crash_left(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))

    async def work() -> None:
        async with await listen_unix(path, Endpoint):
            assert path.stat().st_mode & 0o777 == 0o600
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"{}\n")
            assert await reader.readline() == b"{}\n"
            writer.close()

    run(work)


def test_a_unix_socket_that_a_server_listens_on_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def work() -> None:
        async with await listen_unix(path, Endpoint):
            with pytest.raises(OSError, match="listens on"):
                await listen_unix(path, Endpoint)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"{}\n")
            assert await reader.readline() == b"{}\n"
            writer.close()

    run(work)
