"""Lines over a WebSocket: several in a message, both ways, with the reason of its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import WSMsgType, web

from penstock.client.address import parse
from penstock.client.control import websocket
from penstock.client.control.transport import WRITE_HIGH
from penstock.client.control.websocket import MESSAGE_BYTES, open_websocket
from penstock.core.errors import PenstockError
from tests.client.scripted_gateway import served
from tests.client.scripted_peer import PATIENCE_S, run, until


class Receiver:
    """Notes lines and the end."""

    def __init__(self):
        self.lines = []
        self.reasons = []
        self.writable = 0

    def lines_received(self, lines):
        self.lines += lines

    def transport_lost(self, reason):
        self.reasons.append(reason)

    def transport_writable(self):
        self.writable += 1


class Server:
    """Accepts WebSockets at `/v1/control`; `status` refuses them."""

    def __init__(self):
        self.status = None
        self.headers = []
        self.messages = asyncio.Queue()
        self.sockets = asyncio.Queue()
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self.url = ""

    async def connected(self, request):
        self.headers.append(request.headers)
        if self.status is not None:
            return web.Response(status=self.status)
        socket = web.WebSocketResponse(max_msg_size=0, autoclose=False)
        await socket.prepare(request)
        self.sockets.put_nowait(socket)
        while True:
            await self.is_reading.wait()
            message = await socket.receive()
            if message.type is not WSMsgType.TEXT:
                return socket
            self.messages.put_nowait(message.data)

    async def next(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self.messages.get()


@asynccontextmanager
async def serving():
    made = Server()
    async with served("/v1/control", made.connected) as made.url:
        yield made


@asynccontextmanager
async def linked(token=None, *, is_reading=True):
    async with serving() as server:
        if not is_reading:
            server.is_reading.clear()
        receiver = Receiver()
        transport = await open_websocket(parse(server.url), receiver, token)
        try:
            yield server, receiver, transport, await server.sockets.get()
        finally:
            transport.abandon()
            await transport.closed()


@pytest.mark.parametrize(("token", "header"), [("secret", "Bearer secret"), (None, None)])
def test_lines_share_messages_both_ways(token, header):
    async def go():
        async with linked(token) as (server, receiver, transport, socket):
            assert server.headers[0].get("Authorization") == header
            transport.send_lines([b"a\n", b"b\n"])
            transport.send_lines([b"c\n"])
            assert await server.next() == "a\nb\nc\n"
            await socket.send_str("one\ntwo\n")
            await socket.send_bytes(b"three\n")
            await until(lambda: len(receiver.lines) == 5)
            assert [line for line in receiver.lines if line] == [b"one", b"two", b"three"]

    run(go())


def test_a_message_is_bounded_and_a_longer_line_is_sent_alone():
    async def go():
        async with linked() as (server, _, transport, _):
            half, long = b"." * (MESSAGE_BYTES // 2) + b"\n", b"-" * (MESSAGE_BYTES + 5) + b"\n"
            transport.send_lines([half, b"a\n", half, long, b"b\n"])
            assert [len(await server.next()) for _ in range(4)] == [len(half) + 2, len(half), len(long), 2]

    run(go())


def test_what_was_written_before_the_close_is_sent():
    async def go():
        async with linked() as (server, receiver, transport, _):
            transport.send_lines([b"last\n"])
            transport.close()
            await transport.closed()
            assert await server.next() == "last\n"
            assert receiver.reasons == ["the WebSocket was closed with code 1000"]

    run(go())


def test_an_abort_sends_nothing_more_and_reports_its_reason():
    async def go():
        async with linked() as (server, receiver, transport, _):
            transport.send_lines([b"late\n"])
            transport.abort("not Control v1")
            transport.abort("again")
            await transport.closed()
            assert receiver.reasons == ["not Control v1"]
            assert server.messages.empty()

    run(go())


def test_an_abandoned_transport_reports_nothing():
    async def go():
        async with linked() as (_, receiver, transport, socket):
            await socket.send_str("unread\n")
            transport.abandon()
            await transport.closed()
            assert (receiver.lines, receiver.reasons) == ([], [])

    run(go())


def test_the_end_by_the_server_is_reported_once():
    async def go():
        async with linked() as (_, receiver, transport, socket):
            await socket.send_str("last\n")
            await socket.close(code=4003)
            await transport.closed()
            assert receiver.lines[0] == b"last"
            assert receiver.reasons == ["the WebSocket was closed with code 4003"]

    run(go())


def test_messages_wait_while_reading_is_held():
    async def go():
        async with linked() as (server, receiver, transport, socket):
            transport.hold(True)
            for text in ("one", "two", "three"):
                await socket.send_str(text)
            await until(lambda: receiver.lines)
            transport.send_lines([b"a\n"])
            await server.next()
            assert receiver.lines == [b"one"], "the message that was under way"
            transport.hold(False)
            await until(lambda: receiver.lines == [b"one", b"two", b"three"])
            transport.hold(True)
            transport.close()
            await transport.closed()  # a close ends the hold

    run(go())


def test_a_server_that_does_not_read_pauses_the_writer():
    async def go():
        async with linked(is_reading=False) as (server, receiver, transport, _):
            line = b"." * (MESSAGE_BYTES - 1) + b"\n"
            transport.send_lines([line] * 16)
            assert transport.is_paused and 16 * len(line) > WRITE_HIGH
            server.is_reading.set()
            for _ in range(16):
                await server.next()
            await until(lambda: not transport.is_paused)
            assert receiver.writable == 1

    run(go())


def test_a_server_that_does_not_answer_the_close_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(websocket, "CLOSE_S", 0.01)

    async def go():
        async with linked(is_reading=False) as (server, receiver, transport, _):
            transport.close()
            await transport.closed()
            assert receiver.reasons == ["the WebSocket was closed with code 1006"]
            server.is_reading.set()

    run(go())


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "Unauthorized"), (403, "Forbidden"), (404, "UnknownRoute"), (503, "Draining"), (502, "Unreachable")],
)
def test_a_refused_upgrade_is_an_error_by_its_status(status, code):
    async def go():
        async with serving() as server:
            server.status = status
            with pytest.raises(PenstockError, match=str(status)) as caught:
                await open_websocket(parse(server.url), Receiver(), "secret")
            assert caught.value.code == code

    run(go())


def test_an_absent_server_is_an_error_of_the_system():
    async def go():
        async with serving() as server:
            url = server.url
        with pytest.raises(OSError, match="Connect call failed"):
            await open_websocket(parse(url), Receiver(), None)

    run(go())
