"""Plain requests and all others take two ways through the port of a real server: both give the same answers, byte for byte."""

from __future__ import annotations

import gzip
import re

import pytest

from penstock.transports.plain_requests import parse_head
from tests.integration.serving import connected, encode, envelope

ODD = b"X-Odd:\t1\r\n"  # a tab makes a request odd, and means nothing
END = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
STREAM = "parity/0"
"""Each way has a stream of its own."""
VARYING = re.compile(rb'(?<=Date: )[^\r]+ GMT|(?<="id":")[^"]+|"(?:ts|asOf|lastTs)":"[^"]*"|parity/.')


def make(method: str, path: str, body: object = None, **fields: str) -> bytes:
    data = b"" if body is None else encode(body)
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in {"Host": "localhost", **fields}.items())
    return f"{method} {path} HTTP/1.1\r\n{more}Content-Length: {len(data)}\r\n\r\n".encode() + data


def enqueue(*envelopes: object, **fields: str) -> bytes:
    return make(
        "POST", "/v1/enqueue", {"to": STREAM, "envelope": envelopes[0] if len(envelopes) == 1 else envelopes}, **fields
    )


RULE = {"when": {"to": STREAM}, "do": [{"action": "notify", "to": "x", "payload": {}}]}
REQUESTS = {
    "one envelope": enqueue(envelope("one")),
    "the same again": enqueue(envelope("one")),
    "another with its id": enqueue(envelope("one", 2)),
    "many envelopes": enqueue(envelope("two"), envelope("three")),
    "a repetition": enqueue(envelope("four"), Idempotency_Key=STREAM) + enqueue(envelope("four"), Idempotency_Key=STREAM),
    "a message": make("POST", "/v1/send", {"to": STREAM, "type": "t", "payload": {}}),
    "no JSON": make("POST", "/v1/send", b"{"),
    "no body": make("POST", "/v1/send"),
    "a wrong field": make("POST", "/v1/send", {"to": 1}),
    "a packed body": make("POST", "/v1/pull", gzip.compress(b'{"stream":"parity/none","waitMs":0}'), Content_Encoding="gzip"),
    "an unknown coding": make("POST", "/v1/send", {}, Content_Encoding="br"),
    "a pull of nothing": make("POST", "/v1/pull", {"stream": "parity/none", "waitMs": 0}),
    "an unknown lease": make("POST", "/v1/settle", {"leaseId": "none", "op": "ack"}),
    "figures by an escaped name": make("GET", "/v1/stats?stream=parity%2Fnone"),
    "envelopes": make("GET", f"/v1/peek?stream={STREAM}"),
    "an unknown stream": make("GET", "/v1/stats?stream=none"),
    "a parameter twice": make("GET", "/v1/stats?stream=a&stream=b"),
    "a path with escapes": make("GET", "/v1/streams/parity%2Fnone/explain"),
    "an unknown path": make("GET", "/v1/enqeue"),
    "a wrong method": make("PUT", "/v1/enqueue"),
    "a WebSocket without an upgrade": make("GET", "/v1/subscribe?stream=a"),
    "a new rule": make("PUT", "/v1/triggers/parity", RULE),
    "no rule": make("DELETE", "/v1/triggers/none"),
    "the document": make("GET", "/openapi.json"),
    "the first page": make("GET", "/"),
    "participants": make("GET", "/participants"),
    "another host": make("GET", "/v1/schemas", Host="example.org"),
    "another site": make("POST", "/v1/send", {}, Origin="http://example.org"),
    "an unknown token": make("GET", "/v1/schemas", Authorization="Bearer none"),
    "no token": make("GET", "/v1/schemas", Authorization="Basic none"),
}  # fmt: skip


def told(url: str, data: bytes) -> bytes:
    with connected(url.replace("http:", "tcp:")) as connection:
        connection.socket.sendall(data + END)
        return VARYING.sub(b"", connection.rest())


@pytest.mark.promise("Queue protocols", "an HTTP answer does not depend on how its request is spelled")
@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_plain_request_and_an_odd_one_get_the_same_answer(http, request_):
    assert parse_head(request_) is not None
    # Only the first of two gets the field: aiohttp keeps the connection.
    odd = request_.replace(b"parity/0", b"parity/1").replace(b"\r\n", b"\r\n" + ODD, 1)
    answers = told(http.url, request_), told(http.url, odd)
    assert answers[0] == answers[1]
    assert answers[0].count(b"HTTP/1.1 ") == request_.count(b"HTTP/1.1\r\n") + 1
