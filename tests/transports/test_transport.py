"""Transports: one write a turn, WebSocket frames of every size, and closing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from penstock.transports.transport import (
    BINARY,
    CLOSE,
    PONG,
    TEXT,
    ByteStreamTransport,
    ServerWebSocketTransport,
    frame,
    frame_head,
    tune,
    unframed,
)


def carried(work: Callable[[asyncio.Transport], Awaitable[None]]) -> bytes:
    """The bytes that a peer reads from a transport until it is closed."""

    async def go() -> bytes:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        reader, writer = await asyncio.open_connection(sock=theirs)
        await work(transport)
        transport.close()
        async with asyncio.timeout(5):
            data = await reader.read()
        writer.close()
        return data

    return asyncio.run(go())


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such option")
def test_what_a_slow_peer_reads_is_seen_soon() -> None:
    """The kernel takes megabytes by default, and reports progress when a third of that is read."""

    async def go() -> int:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[asyncio.Transport] = loop.create_future()

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                made.set_result(transport)

        server = await loop.create_server(Accepted, "127.0.0.1", 0)
        with socket.socket() as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, server.sockets[0].getsockname())
            transport = await made
            wire = ServerWebSocketTransport(transport, merge=False)
            wire.show_progress()
            wire.is_framed = True
            wire.send([bytes(32 << 20)])
            seen, read, since, most = wire.buffered, 0, 0, 0
            while read < 8 << 20:
                since += (size := len(await loop.sock_recv(peer, 16_384)))
                read += size
                for _ in range(3):
                    await asyncio.sleep(0)
                if wire.buffered < seen:
                    seen, most, since = wire.buffered, max(most, since), 0
            transport.abort()
        server.close()
        return max(most, since)

    assert asyncio.run(go()) < 1 << 20


@pytest.mark.parametrize(
    ("size", "head"),
    [
        (0, b"\x82\x00"),
        (125, b"\x82\x7d"),
        (126, b"\x82\x7e\x00\x7e"),
        (65_535, b"\x82\x7e\xff\xff"),
        (65_536, b"\x82\x7f" + (65_536).to_bytes(8, "big")),
    ],
)
def test_a_frame_begins_with_the_shortest_form_of_its_size(size: int, head: bytes) -> None:
    assert frame_head(size) == head
    assert frame(BINARY, b"." * size) == head + b"." * size


def test_the_messages_of_a_turn_are_written_in_order_and_none_after_the_close() -> None:
    async def work(transport: asyncio.Transport) -> None:
        wire = ByteStreamTransport(transport)
        wire.send([b"a", b"b"])
        wire.send([b"c"])
        wire.close(1000, "done")
        wire.send([b"late"])

    assert carried(work) == b"abc"


@pytest.mark.parametrize(
    ("merge", "sent"), [(True, frame(TEXT, b"a\nb\n")), (False, frame(TEXT, b"a\n") + frame(TEXT, b"b\n"))]
)
def test_control_lines_of_a_turn_share_a_frame_and_other_messages_do_not(merge: bool, sent: bytes) -> None:
    async def work(transport: asyncio.Transport) -> None:
        ServerWebSocketTransport(transport, merge=merge).send([b"a\n", b"b\n"])

    assert carried(work) == sent


def test_messages_that_are_frames_already_pass_unchanged() -> None:
    async def work(transport: asyncio.Transport) -> None:
        wire = ServerWebSocketTransport(transport, merge=False)
        wire.is_framed = True
        wire.send([frame(BINARY, b"x"), frame(BINARY, b"y")])

    assert carried(work) == frame(BINARY, b"x") + frame(BINARY, b"y")


def test_a_close_is_sent_once_with_a_bounded_reason_and_pings_are_ignored_after_it() -> None:
    async def work(transport: asyncio.Transport) -> None:
        wire = ServerWebSocketTransport(transport, merge=False)
        wire.pong(b"1")
        wire.hold(True)
        wire.close(1008, "r" * 200)
        assert wire.readable.is_set(), "the peer's close must be read"
        wire.close(1001, "again")
        wire.pong(b"2")
        wire.end()

    assert carried(work) == frame(PONG, b"1") + frame(CLOSE, (1008).to_bytes(2, "big") + b"r" * 120)


def test_holding_stops_reading_until_it_is_released() -> None:
    async def work(transport: asyncio.Transport) -> None:
        wire = ByteStreamTransport(transport)
        wire.hold(True)
        assert not transport.is_reading()
        wire.hold(False)
        assert transport.is_reading()

    assert carried(work) == b""


def test_a_tcp_socket_sends_small_writes_at_once() -> None:
    with socket.socket() as tcp:
        tune(tcp)
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    with socket.socket(socket.AF_UNIX) as unix:
        tune(unix)
    tune(None)


def test_large_messages_are_handed_over_as_they_are_and_small_ones_joined() -> None:
    written: list[bytes] = []

    class Recording(asyncio.Transport):
        def is_closing(self) -> bool:
            return False

        def write(self, data: bytes) -> None:  # type: ignore[override]
            written.append(data)

        def writelines(self, messages: list[bytes]) -> None:  # type: ignore[override]
            written.extend(messages)

    large = b"x" * 100_000
    ByteStreamTransport(Recording()).send([large, b"y"])
    ServerWebSocketTransport(Recording(), merge=True).send([large, b"y"])
    assert [message is large for message in written] == [True, False, False, True, False]
    assert b"".join(written[2:]) == frame(TEXT, large + b"y")
    written.clear()
    ByteStreamTransport(Recording()).send([b"a"] * 3)
    assert written == [b"aaa"]


def test_a_peer_that_takes_nothing_holds_no_buffer_after_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.transports.transport.CLOSE_TIMEOUT_S", 0.01)

    async def go() -> None:
        ours, theirs = socket.socketpair()
        lost = asyncio.Event()

        class Watched(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                lost.set()

        transport, _ = await asyncio.get_running_loop().create_connection(Watched, sock=ours)
        wire = ByteStreamTransport(transport)
        wire.send([b"x" * 8_000_000])
        wire.close(1000, "")
        async with asyncio.timeout(5):
            await lost.wait()
        assert wire.buffered == 0
        theirs.close()

    asyncio.run(go())
    uvloop.run(go())


def test_a_close_waits_for_a_reader_that_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.transports.transport.CLOSE_TIMEOUT_S", 0.001)

    async def go() -> None:
        aborted = asyncio.Event()
        lefts = iter([900, 800, 700, 600, 600])

        class Slow(asyncio.Transport):
            def write(self, data: bytes | bytearray | memoryview) -> None: ...

            def is_closing(self) -> bool:
                return False

            def get_write_buffer_size(self) -> int:
                return next(lefts)

            def abort(self) -> None:
                aborted.set()

        ServerWebSocketTransport(Slow(), merge=False).close(1000, "")
        async with asyncio.timeout(5):
            await aborted.wait()
        assert next(lefts, None) is None, "not before a time without progress"

    asyncio.run(go())


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_frames_of_every_size_are_read_one_after_the_other(size: int) -> None:
    content = b"." * size
    data = frame(BINARY, content) + frame(TEXT, b"{}") + frame(BINARY, content)
    found = list(unframed(data))
    assert [one for _, one in found] == [content, b"{}", content]
    assert [opcode for opcode, _ in found] == [BINARY, TEXT, BINARY]


def test_a_peer_that_reads_a_little_now_and_then_is_cut_at_the_total_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.transports.transport.CLOSE_TIMEOUT_S", 0.001)
    monkeypatch.setattr("penstock.transports.transport.CLOSE_TOTAL_S", 0.02)

    async def go() -> None:
        aborted = asyncio.Event()

        class Trickle(asyncio.Transport):
            left = 1 << 40

            def get_write_buffer_size(self) -> int:
                self.left -= 1
                return self.left

            def get_extra_info(self, name: str, default: object = None) -> object:
                return name

            def close(self) -> None: ...

            def abort(self) -> None:
                aborted.set()

        ByteStreamTransport(Trickle()).close(1000, "")
        async with asyncio.timeout(10):
            await aborted.wait()

    asyncio.run(go())
