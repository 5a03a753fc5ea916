"""Heads of plain requests: what counts as plain, and that aiohttp understands all of it in the same way."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_server import Server

from penstock.transports.plain_requests import BODY_MAX, FIELDS_MAX, HEAD_MAX, parse_head

GET = b"GET /v1/stats?stream=a%20b&x=+ HTTP/1.1\r\nHost: a\r\n\r\n"
POST = (
    b"POST /v1/send HTTP/1.1\r\nHost: a:1\r\nContent-Type:  text/x; a=b \r\nX-Empty:\r\nContent-Length: 4\r\n\r\nbody"
)


def with_field(field: bytes) -> bytes:
    return POST.replace(b"X-Empty:", field)


def test_the_parts_of_a_plain_head() -> None:
    head = parse_head(POST + b"GET /next")
    assert head is not None
    assert (head.method, head.path, head.size) == ("POST", "/v1/send", 4)
    assert POST[head.start : head.end] == b"body" and head.query_pairs() == []
    assert head.headers["CONTENT-type"] == "text/x; a=b" and head.headers["X-Empty"] == ""
    head = parse_head(GET)
    assert head is not None
    assert (head.path, head.size, head.end) == ("/v1/stats", None, len(GET))
    assert head.query_pairs() == [("stream", "a b"), ("x", " ")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        POST[:40],
        POST.replace(b"HTTP/1.1", b"HTTP/1.0"),
        POST.replace(b"POST", b"HEAD"),
        POST.replace(b"POST", b"OPTIONS"),
        POST.replace(b"POST ", b"POST  "),
        POST.replace(b"/v1/send", b"http://a/v1/send"),
        POST.replace(b"/v1/send", b"*"),
        POST.replace(b"/v1/send", b"/v1/send#part"),
        POST.replace(b"/v1/send", b"/v1/s\xc3\xa9nd"),
        POST.replace(b"Host: a:1\r\n", b""),
        POST.replace(b"\r\n", b"\n"),
        b"\r\n" + POST,
        with_field(b"Content-Length: 4"),
        with_field(b"content-length: 5"),
        with_field(b"Host: a:1"),
        with_field(b"Transfer-Encoding: chunked"),
        with_field(b"Expect: 100-continue"),
        with_field(b"Upgrade: websocket"),
        with_field(b"Connection: close"),
        with_field(b"Connection: keep-alive, Upgrade"),
        with_field(b"X-A: 1\r\n folded"),
        with_field(b"X-A: 1\n"),
        with_field(b"X-A: 1\r"),
        with_field(b"X-A: a\rb"),
        with_field(b"X-A: a\x00b"),
        with_field(b"X-A:\t1"),
        with_field(b"X-A : 1"),
        with_field(b" X-A: 1"),
        with_field(b"X_A: 1"),
        with_field(b": 1"),
        with_field(b"X-A"),
        with_field(b"X-A: \xe9"),
        with_field(b"\r\n".join(b"X-%d: 1" % number for number in range(FIELDS_MAX))),
        with_field(b"X-A: " + b"a" * HEAD_MAX),
        *(
            POST.replace(b"Length: 4", b"Length: " + text)
            for text in (b"", b"-1", b"+4", b"4, 4", b"4 4", b"0x4", b"4_0")
        ),
        POST.replace(b"Length: 4", b"Length: %d" % (BODY_MAX + 1)),
        POST.replace(b"Length: 4", b"Length: " + b"9" * 5_000),
    ],
)
def test_anything_odd_is_left_to_aiohttp(data: bytes) -> None:
    assert parse_head(data) is None


PIECES = (
    b"\r",
    b"\n",
    b"\r\n",
    b" ",
    b"\t",
    b":",
    b"\x00",
    b"%41",
    b"%",
    b"?",
    b"&",
    b"=",
    b"#",
    b"/",
    b"..",
    b"\xff",
    b"4",
    b",",
)
FIELDS = (
    b"Content-Length: 4\r\n",
    b"Connection: keep-alive\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Host: b\r\n",
    b"A: b\r\n",
)


def mutated(seed: int) -> bytes:
    dice = random.Random(seed)
    data = dice.choice((GET, POST))
    for _ in range(dice.randint(1, 3)):
        at, more = dice.randrange(len(data)), dice.choice(PIECES + FIELDS)
        data = data[:at] + more + data[at + dice.randint(0, 2) :]
    return data


def test_what_is_plain_means_the_same_to_aiohttp() -> None:
    async def go() -> int:
        loop = asyncio.get_running_loop()
        handler = RequestHandler(Server(None), loop=loop)  # type: ignore[arg-type]
        plain = 0
        for seed in range(4_000):
            data = mutated(seed)
            head = parse_head(data)
            if head is None or len(data) < head.end:
                continue
            plain += 1
            parser: Any = HttpRequestParser(handler, loop, 2**16, auto_decompress=False)
            try:
                messages, is_upgrade, _ = parser.feed_data(data[: head.end])
            except HttpProcessingError as error:
                raise AssertionError(f"aiohttp refuses {data!r}") from error
            assert len(messages) == 1 and not is_upgrade, data
            message, payload = messages[0]
            assert (message.method, message.url.path) == (head.method, head.path), data
            assert list(message.url.query.items()) == head.query_pairs(), data
            theirs = [(name.lower(), value) for name, value in message.headers.items()]
            assert theirs == [(name.lower(), value) for name, value in head.headers.items()], data
            assert not message.should_close and not message.chunked and payload.is_eof(), data
            assert payload.read_nowait(-1) == data[head.start : head.end], data
        return plain

    assert asyncio.run(go()) > 100
