"""Byte-stream listeners: chunks reach their endpoint, other protocols are closed, and Unix sockets are private."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from penstock.transports.byte_streams import READ_MAX, TURN_S, listen_tcp, listen_unix
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


def run(work: Callable[[], Awaitable[None]], make: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await work()

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(limited())


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


class TurnCounter:
    """Counts the turns of the loop until it is closed."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self.count += 1
        self._loop.call_soon(self._next)


class TurnsOfReads(Endpoint):
    """Notes in which turn of the loop each chunk arrives, and stops reading after the first if it is asked to."""

    def __init__(self, wire: ByteStreamTransport, peer: str, turns: TurnCounter) -> None:
        super().__init__(wire, peer)
        self.turns, self.chunks, self.holds = turns, list[tuple[int, int]](), False
        self.has_read = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.chunks.append((self.turns.count, len(data)))
        self.has_read.set()
        if self.holds:
            self.wire.hold(True)


@pytest.mark.parametrize("holds", [False, True])
def test_a_fast_peer_is_read_once_a_turn(holds: bool) -> None:
    async def work() -> None:
        accepted: asyncio.Future[TurnsOfReads] = asyncio.get_running_loop().create_future()
        turns = TurnCounter()

        def accept(wire: ByteStreamTransport, peer: str) -> TurnsOfReads:
            accepted.set_result(TurnsOfReads(wire, peer, turns))
            accepted.result().holds = holds
            return accepted.result()

        async with await listen_tcp("127.0.0.1", 0, accept) as server:
            with socket.create_connection(server.sockets[0].getsockname()) as peer:
                peer.setblocking(False)
                sent = peer.send(b"{" * 4 * READ_MAX)
                assert sent > 2 * READ_MAX, "the kernel took too little to show anything"
                endpoint = await accepted
                if holds:
                    await endpoint.has_read.wait()
                    for _ in range(100):
                        await asyncio.sleep(0)
                    assert len(endpoint.chunks) == 1
                    endpoint.holds = False
                    endpoint.wire.hold(False)
            await endpoint.is_lost.wait()
            assert sum(size for _, size in endpoint.chunks) == sent
            found = [turn for turn, _ in endpoint.chunks]
            assert len(set(found)) == len(found) > 2

    run(work, uvloop.new_event_loop)


class SlowEndpoint(TurnsOfReads):
    """Takes as long for a chunk as a turn allows for all of them."""

    def received(self, data: bytes) -> None:
        super().received(data)
        until_s = time.monotonic() + TURN_S
        while time.monotonic() <= until_s:
            pass

    def lost(self) -> None:
        assert self.chunks, "the end came before what was sent"
        super().lost()


def test_what_many_peers_send_at_once_takes_several_turns_and_others_have_theirs() -> None:
    async def work() -> None:
        made: list[SlowEndpoint] = []
        turns, are_made = TurnCounter(), asyncio.Event()

        def accept(wire: ByteStreamTransport, peer: str) -> SlowEndpoint:
            made.append(SlowEndpoint(wire, peer, turns))
            if len(made) == 5:
                are_made.set()
            return made[-1]

        async with await listen_tcp("127.0.0.1", 0, accept) as server:
            peers = [socket.create_connection(server.sockets[0].getsockname()) for _ in range(5)]
            await are_made.wait()
            await asyncio.sleep(0)  # the fifth is read too from now on
            for peer in peers:
                peer.sendall(b"{}\n")
                peer.close()
            for endpoint in made:
                await endpoint.is_lost.wait()
            assert len({turn for endpoint in made for turn, _ in endpoint.chunks}) == 5

    run(work, uvloop.new_event_loop)


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
