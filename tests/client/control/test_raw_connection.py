"""Raw lines both ways: the hello, the marker at the end, and bounded buffers."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.address import parse
from penstock.client.control import raw_connection
from penstock.client.control.raw_connection import READ_HIGH, RawConnection
from penstock.core.errors import PenstockError
from tests.client.scripted_peer import peer, run, until

LINE = b'{"type":"deliver"}\n'


async def linked(server):
    """A connection without a hello, and the server's end of it."""
    return await asyncio.gather(RawConnection.open(parse(server.url)), server.accept(greet=False))


def test_a_token_is_sent_in_a_hello_whose_answer_is_not_passed_on():
    async def go():
        async with peer() as server:
            opening = asyncio.ensure_future(RawConnection.open(parse(server.url), "secret"))
            line = await server.accept(greet=False)
            hello = await line.read("hello")
            assert (hello["version"], hello["token"]) == ("v1", "secret")
            line.ok(hello)
            line.raw(LINE)
            connection = await opening
            assert await connection.read() == LINE
            assert connection.held == 0
            await connection.close()

    run(go())


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (b'{"type":"error","reqId":"uplink","code":"Unauthorized","detail":"no"}\n', "Unauthorized", "no"),
        (b"HTTP/1.1 400 Bad Request\r\n", "Unreachable", "does not speak Control v1"),
        (b'{"type":"live","subId":"s"}\n', "Unreachable", "unexpected frame"),
        (None, "Unreachable", "no connection to"),
    ],
)
def test_a_hello_that_is_not_accepted_is_the_error(answer, code, message):
    async def go():
        async with peer() as server:
            opening = asyncio.ensure_future(RawConnection.open(parse(server.url), "secret"))
            line = await server.accept(greet=False)
            await line.read("hello")
            if answer is None:
                await line.cut()
            else:
                line.raw(answer)
            with pytest.raises(PenstockError, match=message) as caught:
                await opening
            assert caught.value.code == code
            if answer is not None:
                assert await line.reader.read() == b"", "the connection is closed"

    run(go())


def test_a_silent_server_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(raw_connection, "OPEN_S", 0.05)

    async def go():
        async with peer() as server:
            with pytest.raises(PenstockError, match="did not answer in time") as caught:
                await RawConnection.open(parse(server.url), "secret")
            assert caught.value.code == "Unreachable"

    run(go())


def test_an_absent_server_is_unreachable():
    async def go():
        async with peer() as server:
            address = parse(server.url)
        with pytest.raises(PenstockError, match="connection refused") as caught:
            await RawConnection.open(address)
        assert caught.value.code == "Unreachable"

    run(go())


def test_lines_pass_both_ways_and_the_end_is_empty():
    async def go():
        async with peer() as server:
            connection, line = await linked(server)
            await connection.write(b'{"type":"ping","reqId":"a"}\n{"type":"ping","reqId":"b"}\n')
            assert [(await line.read("ping"))["reqId"] for _ in "ab"] == ["a", "b"]
            line.raw(LINE + b"\n" + LINE + b'{"type":"half')
            assert await connection.read() == LINE + LINE, "whole lines, and no empty one"
            reading = asyncio.ensure_future(connection.read())
            await line.cut()
            assert await reading == b"" and connection.reason
            with pytest.raises(PenstockError, match="no connection to"):
                await connection.write(LINE)
            await connection.close()

    run(go())


def test_after_finish_the_answers_that_remain_are_read_and_then_the_end():
    async def go():
        async with peer() as server:
            connection, line = await linked(server)
            await connection.write(b'{"type":"ping","reqId":"mine"}\n')
            await connection.finish()
            mine, marker = await line.read("ping"), await line.read("ping")
            assert marker["reqId"].startswith("last-")
            line.ok(mine)
            line.ok(marker)
            line.raw(LINE)
            answers = b""
            while some := await connection.read():
                answers += some
            assert answers == b'{"type":"ok","reqId":"mine","result":{}}\n'
            await connection.close()

    run(go())


def test_a_reader_that_is_slow_stops_the_server_and_resumes_it():
    async def go():
        async with peer() as server:
            connection, line = await linked(server)
            sent = LINE * (8 * READ_HIGH // len(LINE))
            line.raw(sent)
            await until(lambda: connection.is_held)
            assert READ_HIGH < connection.held < 2 * READ_HIGH
            received = 0
            while received < len(sent):
                received += len(await connection.read())
                assert not connection.is_held
            assert received == len(sent)
            await connection.close()

    run(go())


def test_a_writer_waits_while_the_server_does_not_read():
    async def go():
        async with peer() as server:
            connection, line = await linked(server)
            line.writer.transport.pause_reading()
            data = b'{"pad":"' + b"." * 1_000_000 + b'"}\n'
            written = 0

            async def write():
                nonlocal written
                for _ in range(30):
                    await connection.write(data)
                    written += 1

            writing = asyncio.ensure_future(write())
            await until(lambda: connection._transport.is_paused)
            assert 0 < written < 30
            line.writer.transport.resume_reading()
            for _ in range(30):
                assert await line.reader.readline() == data
            await writing
            await connection.close()

    run(go())


def test_a_server_that_does_not_read_is_dropped_at_the_close(monkeypatch):
    monkeypatch.setattr(raw_connection, "CLOSE_S", 0.01)

    async def go():
        async with peer() as server:
            connection, line = await linked(server)
            line.writer.transport.pause_reading()
            await connection.write(b"." * 16_000_000 + b"\n")
            assert connection._transport.is_paused
            await connection.close()
            assert await connection.read() == b"" and connection.reason == "the connection was closed"
            await connection.close()

    run(go())
