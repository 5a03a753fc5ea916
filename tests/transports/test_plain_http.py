"""Plain requests: answered as aiohttp answers them, one after the other, and handed over where they are not plain."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from collections.abc import Callable

import pytest

from penstock.transports import plain_http
from penstock.transports.http_replies import Reply
from penstock.transports.plain_http import PlainConnection
from penstock.transports.plain_requests import parse_head
from tests.transports.http_ports import BODY_MAX, LARGE, Port, answer, post, serve

LATER = b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n"
ODD = b"X-Odd:\t1\r\n\r\n"  # a tab is not plain


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


REQUESTS = (
    post("/echo", b"text"),
    post("/echo", b""),
    post("/echo", b"." * (BODY_MAX + 1)),
    get("/seen?a=1&a=%C3%A9&b=+&c"),
    get("/se%65n"),
    get("/seen").replace(b"Host", b"Connection: keep-alive\r\nhost"),
    get("/empty").replace(b"GET", b"DELETE"),
    get("/same"),
    get("/refused").replace(b"GET", b"PUT"),
    get("/broken"),
    get("/socket"),
)


@pytest.mark.parametrize("request_", REQUESTS)
def test_an_answer_is_the_same_byte_for_byte_as_through_aiohttp(request_: bytes) -> None:
    async def work(port: Port) -> None:
        told = []
        for data in (request_, request_.replace(b"\r\n\r\n", b"\r\n" + ODD, 1)):
            async with port.dial() as (reader, writer):
                writer.write(data + LATER.replace(b"Host", b"Connection: close\r\nHost").replace(b"later", b"refused"))
                told.append(re.sub(rb"Date: [^\r]+ GMT", b"Date: now", await reader.read()))
        assert told[0] == told[1] and told[0].count(b"Date: now") == 2
        assert len(port.handler.begun) == 1

    assert parse_head(request_) is not None
    serve(work)


def test_requests_wait_for_the_answer_before_them() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(LATER + post("/echo", b"two") + get("/refused").replace(b"\r\n\r\n", b"\r\n" + ODD))
            done = await port.handler.later.get()
            writer.write(post("/echo", b"four"))
            assert port.handler.begun == ["/later"]
            done(Reply(200, b"one"))
            done(Reply(200, b"again"))
            assert [(await answer(reader))[2] for _ in range(4)] == [b"one", b"two", b'{"no":true}', b"four"]
        assert port.handler.begun == ["/later", "/echo"]  # aiohttp has the rest of the connection

    serve(work)


def test_a_body_may_come_after_its_head() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            for _ in range(2):
                data = post("/echo", b"body")
                writer.write(data[:-4])
                await until(lambda: len(held(port)) == 1 and bool(held(port)[0]._data))
                writer.write(data[-4:])
                assert (await answer(reader))[2] == b"body"
        assert port.handler.begun == ["/echo", "/echo"]

    serve(work)


def test_a_body_that_comes_later_than_that_is_awaited_by_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http, "BODY_GRACE_S", 0.0)

    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            data = post("/echo", b"body")
            writer.write(data[:-4])
            await port.handler.is_asked.wait()
            writer.write(data[-4:])
            assert (await answer(reader))[2] == b"body"
            assert port.handler.begun == [] and not held(port)
            (admitted,) = port.handler.admitted
            assert not admitted.is_gone
        await until(lambda: admitted.is_gone)

    serve(work)


def test_a_peer_that_leaves_cancels_its_request_and_a_late_answer_is_dropped() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (_, writer):
            writer.write(get("/wait"))
            await port.handler.is_asked.wait()
        await port.handler.is_cancelled.wait()
        async with port.dial() as (_, writer):
            writer.write(LATER)
            done = await port.handler.later.get()
        await until(lambda: all(admitted.is_gone for admitted in port.handler.admitted))
        done(Reply(200, b""))

    serve(work)


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http, "KEEPALIVE_S", 0.01)
    monkeypatch.setattr(plain_http, "HEAD_TIMEOUT_S", 0.01)

    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer), port.dial() as (idle, _):
            writer.write(LATER)
            done = await port.handler.later.get()
            assert await idle.read() == b""
            done(Reply(200, b"here"))
            assert (await reader.read()).endswith(b"here")

    serve(work)


def test_a_port_that_stops_waits_for_answers_and_not_for_idle_peers() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer), port.dial() as (idle, other), port.dial() as (slow, third):
            other.write(get("/refused"))
            await answer(idle)
            third.write(get("/wait"))
            writer.write(LATER)
            done = await port.handler.later.get()
            stopping = asyncio.create_task(port.listener.stop(0.2))
            assert await idle.read() == b""
            done(Reply(200, b"last"))
            assert (await reader.read()).endswith(b"last") and not stopping.done()
            assert await slow.read() == b""
            await stopping
            await port.handler.is_cancelled.wait()

    serve(work)


def test_a_large_answer_counts_until_it_is_read_and_nothing_is_answered_meanwhile() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(get("/large") + get("/refused"))
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Content-Length: %d" % LARGE in head
            await until(lambda: bool(port.handler.unread))
            writer.write(get("/refused"))
            await until(lambda: len(held(port)[0]._data) == 2 * len(get("/refused")))
            assert port.handler.begun == ["/large"] and port.handler.unread == [LARGE]
            await reader.readexactly(LARGE)
            assert [(await answer(reader))[0] for _ in range(2)] == [403, 403]
            assert port.handler.unread == [LARGE, 0]
        async with port.dial() as (reader, writer):
            writer.write(get("/large"))
            await until(lambda: len(port.handler.unread) == 3)
            assert port.listener.cut_downloads(lambda holder: None) == 1
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(2 * LARGE)
            assert port.handler.unread == [LARGE, 0, LARGE, 0]

    serve(work)


def test_a_peer_that_sends_much_while_it_waits_is_not_read() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(LATER)
            done = await port.handler.later.get()
            data = post("/echo", b"." * BODY_MAX) * 1_000
            writer.write(data)
            connection = held(port)[0]
            await until(lambda: connection.transport is not None and not connection.transport.is_reading())
            assert len(connection._data) < len(data)
            done(Reply(200, b""))
            for _ in range(1_001):
                await answer(reader)

    serve(work)


def held(port: Port) -> list[PlainConnection]:
    """The connections that are not handed over."""
    return list(port.listener._port.connections)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what happens in the connection sets no event
        await asyncio.sleep(0)


def test_an_answer_without_an_end_leaves_nothing_to_the_cycle_collector() -> None:
    async def work(port: Port) -> None:
        gc.disable()
        try:
            async with port.dial() as (reader, writer):
                writer.write(get("/stream"))
                assert (await reader.readuntil(b"first\n")).startswith(b"HTTP/1.1 200")
                (connection,) = port.listener._port.connections
                is_freed = asyncio.Event()
                watched = weakref.ref(connection, lambda _: is_freed.set())
                del connection
            await is_freed.wait()
            assert watched() is None
        finally:
            gc.enable()

    serve(work)


def test_a_peer_that_reads_nothing_of_its_answer_is_cut_off() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(get("/large"))
            await port.handler.is_asked.wait()
            (connection,) = port.listener._port.connections
            while connection.transport is not None:  # its timer does this, at the end of each `KEEPALIVE_S`
                connection._expire()
                await asyncio.sleep(0)
            assert port.handler.unread[-1] == 0 and connection.admission is not None

    serve(work)


def test_a_handler_that_is_cancelled_from_within_ends_the_connection() -> None:
    async def work(port: Port) -> None:
        async with port.dial() as (reader, writer):
            writer.write(get("/wait"))
            await port.handler.is_asked.wait()
            (connection,) = port.listener._port.connections
            assert connection._task is not None
            connection._task.cancel()
            assert await reader.read() == b""
            assert port.handler.is_cancelled.is_set()

    serve(work)
