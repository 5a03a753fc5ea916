"""The HTTP port with a handler of its own: bodies, malformed requests, endless answers and upgrades."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web_protocol
from aiohttp.http_parser import HttpRequestParserPy

from penstock.transports import http, plain_http
from penstock.transports.exchanges import BodyMalformedError, BodyTooLargeError
from penstock.transports.http import HttpListener
from penstock.transports.http_replies import json_reply
from tests.transports.http_ports import BODY_MAX, Handler, Port, Stream, answer, post, serve


def test_requests_of_one_connection_are_answered_in_order_with_their_headers() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(post("/echo", b"one") + post("/echo", b"") + b"GET /seen?a=1&a=2 HTTP/1.1\r\nHost: a\r\n\r\n")
            status, head, body = await answer(reader)
            assert (status, body) == (200, b"one")
            assert b"X-Mine: 1" in head and b"Content-Type: text/plain" in head and b"Server: penstock" in head
            assert (await answer(reader))[2] == b""
            status, head, body = await answer(reader)
            assert body == b'["GET","127.0.0.1",null,false,[["a","1"],["a","2"]]]'
            assert b"Content-Type: application/json" in head

    serve(work)


def test_a_body_of_exactly_the_bound_is_read_and_one_byte_more_is_not() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(post("/echo", b"." * BODY_MAX))
            assert (await answer(reader))[2] == b"." * BODY_MAX
        told = await port.ask(post("/echo", b"." * (BODY_MAX + 1), "Connection: close"))
        assert b"BodyTooLargeError" in told
        assert [type(error) for error in port.handler.failures] == [BodyTooLargeError]

    serve(work)


def test_a_body_that_is_not_read_ends_the_connection() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(b"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\nhalf")
            status, head, _ = await answer(reader)
            assert status == 403 and b"Connection: close" in head

    serve(work)


def test_a_broken_transfer_coding_is_named_and_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiled parser does not report an error in the middle of a body to the reader of the body.
    monkeypatch.setattr(web_protocol, "HttpRequestParser", HttpRequestParserPy)

    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            await port.handler.is_asked.wait()
            writer.write(b"3\r\nabc\r\nnot a size\r\n")
            _, head, body = await answer(reader)
        assert b'"failed":"BodyMalformedError"' in body and b"Connection: close" in head
        assert b"bytearray" not in body
        assert [type(error) for error in port.handler.failures] == [BodyMalformedError]

    serve(work)


def test_a_client_that_waits_for_continue_gets_it_once() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(post("/echo", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 4"))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"late")
            assert (await answer(reader))[::2] == (200, b"late")

    serve(work)


def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_TIMEOUT_S", 0.01)

    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf")
            assert b'"failed":"TimeoutError"' in (await answer(reader))[2]

    serve(work)


def test_a_peer_that_asks_for_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http, "HEAD_TIMEOUT_S", 0.01)

    async def work(port: Port) -> None:
        assert await port.ask(b"") == b""
        assert await port.ask(b"GET /seen HT") == b""

    serve(work)


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET /seen HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
def test_bytes_that_are_no_request_are_answered_by_the_handler(data: bytes) -> None:
    async def work(port: Port) -> None:
        told = await port.ask(data)
        assert b" 400 Bad Request" in told and b'{"malformed":"' in told and b"bytearray" not in told
        assert b"Server: penstock" in told and port.handler.failures == []

    serve(work)


def test_a_handler_that_fails_gets_to_answer_and_the_connection_stays() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(b"GET /broken HTTP/1.1\r\nHost: a\r\n\r\n" + post("/echo", b"next"))
            assert (await answer(reader))[::2] == (500, b'{"failed":"ValueError","text":"broken"}')
            assert (await answer(reader))[2] == b"next"

    serve(work)


def test_an_endless_answer_lasts_until_either_side_closes() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await reader.readexactly(len(Stream.head) + 6) == Stream.head + b"first\n"
            endpoint = await port.handler.endpoints.get()
            endpoint.wire.send([b"second\n"])
            assert await reader.readline() == b"second\n"
            writer.close()
            await endpoint.is_lost.wait()
        async with port.dial() as (reader, writer):
            writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            endpoint = await port.handler.endpoints.get()
            endpoint.wire.send([b"last\n"])
            endpoint.wire.close(1000, "done")
            assert (await reader.read()).endswith(b"first\nlast\n")
            await endpoint.is_lost.wait()

    serve(work)


@pytest.mark.parametrize(("path", "end"), [("/socket", b""), ("/lines", b"\n")])
def test_messages_reach_the_endpoint_of_an_upgrade(path: str, end: bytes) -> None:
    async def work(port: Port) -> None:
        async with aiohttp.ClientSession() as session:
            async with session.ws_connect(port.url + path, protocols=["other", "mine"]) as socket:
                assert socket.protocol == "mine"
                endpoint = await port.handler.endpoints.get()
                await socket.send_str("one")
                await socket.send_bytes(b"two")
                assert [await endpoint.messages.get() for _ in range(2)] == [b"one" + end, b"two" + end]
                endpoint.wire.send([b"back"])
                assert (await socket.receive()).data == "back"
                assert not endpoint.is_lost.is_set()
            await endpoint.is_lost.wait()

    serve(work)


def test_an_upgrade_that_wants_pongs_sees_them_and_answers_pings() -> None:
    async def work(port: Port) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{port.url}/lines", autoping=False) as socket,
        ):
            endpoint = await port.handler.endpoints.get()
            await socket.pong(b"")
            await socket.ping(b"you")
            message = await socket.receive()
            assert (message.type, message.data) == (aiohttp.WSMsgType.PONG, b"you")
            assert endpoint.pongs == 2

    serve(work)


UPGRADE = (
    b"GET %s HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
PART = 70_000


def masked(first: int, payload: bytes) -> bytes:
    head = bytes((first, 0x80 | len(payload))) if len(payload) < 126 else bytes((first, 0xFF))
    return head + (len(payload).to_bytes(8, "big") if len(payload) > 125 else b"") + bytes(4) + payload


@pytest.mark.parametrize(("path", "end"), [(b"/socket", b""), (b"/lines", b"\n")])
def test_parts_of_a_message_are_counted_whatever_comes_between_them(path: bytes, end: bytes) -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            # All in one write, with the request: what comes early is counted too.
            writer.write(UPGRADE % path + masked(0x81, b"one") + masked(0x01, b"x" * PART))
            await reader.readuntil(b"\r\n\r\n")
            endpoint = await port.handler.endpoints.get()
            assert await endpoint.messages.get() == b"one" + end
            for number in range(2, 5):
                writer.write(masked(0x89, b"there?") + masked(0x00, b"x" * PART))
                assert await reader.readexactly(8) == b"\x8a\x06there?"
                while await endpoint.collected.get() < number * PART:
                    pass
            writer.write(masked(0x80, b""))
            assert await endpoint.messages.get() == b"x" * (4 * PART) + end
            while await endpoint.collected.get() != 0:
                pass
            assert endpoint.collected.empty()

    serve(work)


def test_an_upgrade_without_an_endpoint_closes_with_its_reason() -> None:
    async def work(port: Port) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{port.url}/other") as socket:
            message = await socket.receive()
            assert (message.data, message.extra) == (4000, "not you")

    serve(work)


def test_a_plain_request_for_an_upgrade_is_a_failure_of_the_handler() -> None:
    async def work(port: Port) -> None:
        told = await port.ask(b"GET /socket HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"not a WebSocket request" in told
        assert port.handler.endpoints.empty()

    serve(work)


def test_a_reader_that_pauses_is_not_sent_more_messages_of_the_peer() -> None:
    async def work(port: Port) -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{port.url}/socket") as socket:
            endpoint = await port.handler.endpoints.get()
            endpoint.wire.hold(True)
            for text in ("one", "two", "three"):
                await socket.send_str(text)
            assert await endpoint.messages.get() == b"one"
            await socket.ping()
            assert endpoint.messages.empty()
            endpoint.wire.hold(False)
            assert [await endpoint.messages.get() for _ in range(2)] == [b"two", b"three"]

    serve(work)


def test_several_hosts_share_a_port_and_a_used_port_is_an_error() -> None:
    async def go() -> None:
        first, second = HttpListener(Handler()), HttpListener(Handler())
        port = await first.start(("127.0.0.1", "127.0.0.2"), 0)
        try:
            for host in ("127.0.0.1", "127.0.0.2"):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
            with pytest.raises(OSError, match="in use"):
                await second.start(("127.0.0.1",), port)
            first.stop_listening()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        finally:
            await second.stop(0.0)
            await first.stop(0.0)

    asyncio.run(go())


def test_a_connection_is_refused_before_its_request_or_counted_until_it_ends() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(b"GET /seen HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            (admitted,) = port.handler.admitted
            assert (admitted.is_known, admitted.is_gone) == (True, False)
        port.handler.refusal = json_reply(429, {"no": "room"})
        answer = await port.ask(b"")
        assert answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n")
        assert answer.endswith(b'\r\n\r\n{"no":"room"}')
        assert admitted.is_gone

    serve(work)
