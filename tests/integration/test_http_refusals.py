"""The HTTP routes of a real server: rejected requests get the right code and change nothing."""

from __future__ import annotations

import pytest

from tests.integration.serving import Http, connected, encode, envelope, read_answer, request_bytes
from tests.server_process import ServerProcess

MIB = 1024 * 1024
STREAM = "jobs"
CONFIG = """\
streams:
  perStreamCaps:
    small: {maxDepth: 3}
    narrow: {maxBytes: 2000}
"""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """A server on which nothing happens but what a test does."""
    process = ServerProcess(tmp_path_factory.mktemp("quiet"), config=CONFIG)
    http = Http(process.http)
    http.enqueue(STREAM, "old", "held")
    http.pull(STREAM, lease_ms=3_600_000)
    yield http
    process.kill()


@pytest.fixture
def unchanged(quiet):
    """Whatever a test does, the counters are the same before and after."""
    before = quiet.counters()
    yield quiet
    assert quiet.counters() == before


def enqueue_body(raw: bytes) -> bytes:
    return b'{"to":"jobs","envelope":%b}' % raw


def with_field(name: str, value: object) -> bytes:
    return enqueue_body(encode(envelope("new", **{name: value}) if name != "id" else envelope(value)))


def without(name: str) -> bytes:
    return enqueue_body(encode({key: value for key, value in envelope("new").items() if key != name}))


def nested(levels: int) -> bytes:
    """An envelope of that many levels, its own object among them."""
    return b'{"id":"deep","ts":"2026-01-01T00:00:00Z","type":"t","payload":%b}' % (
        b"[" * (levels - 1) + b"]" * (levels - 1)
    )


GOOD = encode(envelope("new"))

MALFORMED = {
    "nothing": b"",
    "half": b'{"to":"jobs","envelope":{"id":"n',
    "two values": enqueue_body(GOOD) + b"{}",
    "a comma too many": enqueue_body(GOOD)[:-1] + b",}",
    "single quotes": b"{'to':'jobs'}",
    "NaN outside": b'{"to":"jobs","delayMs":NaN,"envelope":%b}' % GOOD,
    "NaN inside": enqueue_body(GOOD.replace(b"null", b"NaN")),
    "infinity": enqueue_body(GOOD.replace(b"null", b"-Infinity")),
    "key twice outside": b'{"to":"jobs","to":"jobs","envelope":%b}' % GOOD,
    "key twice inside": enqueue_body(GOOD.replace(b'"type"', b'"id":"other","type"')),
    "key twice in the payload": enqueue_body(GOOD.replace(b"null", b'{"k":1,"k":1}')),
    "key twice by an escape": enqueue_body(GOOD.replace(b"null", b'{"k":1,"\\u006b":1}')),
    "key twice among blanks": enqueue_body(GOOD.replace(b"null", b'{"k":1 , "k" :1}')),
    "not UTF-8 in a text": enqueue_body(GOOD.replace(b"null", b'"\xff\xfe"')),
    "not UTF-8 in a key": enqueue_body(GOOD.replace(b"null", b'{"\xc3":1}')),
    "overlong UTF-8": enqueue_body(GOOD.replace(b"null", b'"\xc0\xaf"')),
    "too deep": enqueue_body(nested(65)),
    "far too deep": enqueue_body(nested(100_000)),
    "deep and open": b'{"to":"jobs","envelope":' + b"[" * 500_000,
    "a BOM": b"\xef\xbb\xbf" + enqueue_body(GOOD),
    "UTF-16": enqueue_body(GOOD).decode().encode("utf-16"),
    "a raw line break in a text": enqueue_body(GOOD.replace(b"null", b'"a\nb"')),
}


@pytest.mark.promise("Invariants", "10: bad input changes nothing")
@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_json_is_named_and_changes_nothing(unchanged, body):
    answer = unchanged.post("/v1/enqueue", body)
    assert (answer.status, answer.code) == (400, "InvalidJSON")


NO_REQUESTS = {
    "a body that is not packed": b"POST /v1/enqueue HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde",
    "two lengths": b"POST /v1/enqueue HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "a length and chunks": b"POST /v1/enqueue HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "a chunk without size": b"POST /v1/enqueue HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    "a long line": b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01",
}


@pytest.mark.parametrize("data", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_an_invalid_request_gets_our_error(unchanged, data):
    answer = request_bytes(unchanged.url, data)
    assert (answer.status, answer.code) == (400, "InvalidRequest")
    assert answer.headers["Server"] == "penstock"
    assert "bytearray" not in answer.error["message"]


@pytest.mark.parametrize("path", ["/v1/send", "/v1/pull", "/v1/settle", "/v1/redrive", "/v1/purge"])
@pytest.mark.parametrize("body", [b"", b"{", b'{"stream":"jobs","stream":"jobs"}', b'{"stream":"\xff"}'])
def test_every_other_body_is_read_as_strictly(unchanged, path, body):
    answer = unchanged.post(path, body)
    assert answer.status == 400
    assert answer.code in ("InvalidJSON", "InvalidRequest")


WRONG_ENVELOPES = {
    "no id": (without("id"), "id"),
    "no ts": (without("ts"), "ts"),
    "no type": (without("type"), "type"),
    "no payload": (without("payload"), "payload"),
    "empty id": (with_field("id", ""), "id"),
    "long id": (with_field("id", "x" * 257), "id"),
    "number as id": (with_field("id", 7), "id"),
    "null id": (with_field("id", None), "id"),
    "long type": (with_field("type", "x" * 257), "type"),
    "empty type": (with_field("type", ""), "type"),
    "ts without offset": (with_field("ts", "2026-01-01T00:00:00"), "ts"),
    "ts as a number": (with_field("ts", 1_700_000_000), "ts"),
    "a day that is none": (with_field("ts", "2026-02-30T00:00:00Z"), "ts"),
    "version as a text": (with_field("version", "1"), "version"),
    "version as a fraction": (with_field("version", 1.5), "version"),
    "refs of numbers": (with_field("refs", [1]), "refs[0]"),
    "tags as a text": (with_field("tags", "a"), "tags"),
    "headers of lists": (with_field("headers", {"a": []}), "headers[...]"),
    "from as a number": (with_field("from", 1), "from"),
    "an array": (enqueue_body(b"[]"), None),
    "a text": (enqueue_body(b'"new"'), None),
    "null": (enqueue_body(b"null"), None),
}


@pytest.mark.parametrize(("body", "field"), WRONG_ENVELOPES.values(), ids=WRONG_ENVELOPES)
def test_a_wrong_envelope_error_names_the_field(unchanged, body, field):
    answer = unchanged.post("/v1/enqueue", body)
    assert (answer.status, answer.code, answer.error.get("ref")) == (400, "InvalidEnvelope", field)


WRONG_REQUESTS = {
    "no to": ("/v1/enqueue", {"envelope": envelope("new")}, "to"),
    "to is a number": ("/v1/enqueue", {"to": 1, "envelope": envelope("new")}, "to"),
    "an empty name": ("/v1/enqueue", {"to": "", "envelope": envelope("new")}, "stream"),
    "a long name": ("/v1/enqueue", {"to": "x" * 513, "envelope": envelope("new")}, "stream"),
    "a colon": ("/v1/enqueue", {"to": "a:b", "envelope": envelope("new")}, "stream"),
    "a star": ("/v1/enqueue", {"to": "a/*", "envelope": envelope("new")}, "stream"),
    "a control character": ("/v1/enqueue", {"to": "a\x00b", "envelope": envelope("new")}, "stream"),
    "no envelope": ("/v1/enqueue", {"to": STREAM}, "envelope"),
    "both": ("/v1/enqueue", {"to": STREAM, "envelope": envelope("n"), "envelopes": []}, "envelope"),
    "an empty array": ("/v1/enqueue", {"to": STREAM, "envelopes": []}, "envelopes"),
    "a long array": ("/v1/enqueue", {"to": STREAM, "envelopes": [envelope("n")] * 4097}, "envelopes"),
    "an unknown key": ("/v1/enqueue", {"to": STREAM, "envelope": envelope("n"), "delay": 1}, "delay"),
    "a delay below 0": ("/v1/enqueue", {"to": STREAM, "envelope": envelope("n"), "delayMs": -1}, "delayMs"),
    "a long delay": ("/v1/enqueue", {"to": STREAM, "envelope": envelope("n"), "delayMs": 10**12}, "delayMs"),
    "a huge delay": ("/v1/enqueue", {"to": STREAM, "envelope": envelope("n"), "delayMs": 10**30}, "delayMs"),
    "an odd time": (
        "/v1/enqueue",
        {"to": STREAM, "envelope": envelope("n"), "deliverAt": "soon"},
        "deliverAt",
    ),
    "send without type": ("/v1/send", {"to": "sam", "payload": 1}, "type"),
    "send without payload": ("/v1/send", {"to": "sam", "type": "t"}, "payload"),
    "send to nobody": ("/v1/send", {"to": "a:b", "type": "t", "payload": 1}, "stream"),
    "pull none": ("/v1/pull", {"stream": STREAM, "max": 0}, "max"),
    "pull too many": ("/v1/pull", {"stream": STREAM, "max": 1001}, "max"),
    "pull for ever": ("/v1/pull", {"stream": STREAM, "wait_ms": 60_001}, "wait_ms"),
    "a short lease": ("/v1/pull", {"stream": STREAM, "lease_ms": 999}, "lease_ms"),
    "a long lease": ("/v1/pull", {"stream": STREAM, "lease_ms": 43_200_001}, "lease_ms"),
    "an unknown op": ("/v1/settle", {"id": "old", "op": "eat", "stream": STREAM}, "op"),
    "neither lease nor stream": ("/v1/settle", {"id": "old", "op": "ack"}, "leaseId"),
    "a nack far away": (
        "/v1/settle",
        {"id": "old", "op": "nack", "stream": STREAM, "delayMs": 10**7},
        "delayMs",
    ),
    "redrive none": ("/v1/redrive", {"stream": STREAM, "max": 0}, "max"),
}


@pytest.mark.parametrize(("path", "body", "field"), WRONG_REQUESTS.values(), ids=WRONG_REQUESTS)
def test_a_wrong_request_error_names_the_field(unchanged, path, body, field):
    answer = unchanged.post(path, body)
    assert (answer.status, answer.code, answer.error["ref"]) == (400, "InvalidRequest", field)


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"1"])
def test_a_body_that_is_no_object(unchanged, body):
    answer = unchanged.post("/v1/enqueue", body)
    assert (answer.status, answer.code) == (400, "InvalidRequest")
    assert "ref" not in answer.error


def test_the_inner_address_must_be_the_outer(unchanged):
    answer = unchanged.post("/v1/enqueue", {"to": STREAM, "envelope": envelope("new", to="elsewhere")})
    assert (answer.status, answer.code) == (400, "AddressMismatch")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/stats", "stream"),
        ("/v1/stats?stream=jobs&x=1", "x"),
        ("/v1/metrics?stream=jobs", "stream"),
        ("/v1/peek?stream=jobs&max=ten", "max"),
        ("/v1/peek?stream=jobs&max=0", "max"),
        ("/v1/peek?stream=jobs&state=lost", "state"),
        ("/v1/stats?stream=", "stream"),
        ("/v1/stats?stream=a%3Ab", "stream"),
        ("/v1/streams/a%3Ab/explain", "stream"),
        ("/v1/streams/jobs/explain?deep=1", "deep"),
    ],
)
def test_a_wrong_query_error_names_the_parameter(unchanged, path, field):
    answer = unchanged.get(path)
    assert (answer.status, answer.code, answer.error["ref"]) == (400, "InvalidRequest", field)


def test_a_parameter_given_twice_is_refused(unchanged):
    assert unchanged.get("/v1/stats?stream=jobs&stream=jobs").code == "InvalidRequest"


def test_a_post_takes_no_query(unchanged):
    answer = unchanged.post("/v1/enqueue?delayMs=5", enqueue_body(GOOD))
    assert (answer.status, answer.code, answer.error["ref"]) == (400, "InvalidRequest", "delayMs")


def test_unknown_things_are_404(unchanged):
    for path, code in (
        ("/v1/stats?stream=absent", "UnknownStream"),
        ("/v1/envelopes/absent", "UnknownEnvelope"),
        ("/v1/envelopes/", "UnknownRoute"),
        ("/v1", "UnknownRoute"),
        ("/favicon.ico", "UnknownRoute"),
        ("/v1/enqueue/", "UnknownRoute"),
        ("//v1/enqueue", "UnknownRoute"),
        ("/v1/../v1/%00", "UnknownRoute"),
    ):
        answer = unchanged.get(path)
        assert (answer.status, answer.code) == (404, code), path


def test_a_websocket_route_without_an_upgrade_says_so(unchanged):
    for path in ("/v1/subscribe?stream=jobs", "/v1/control"):
        answer = unchanged.get(path)
        assert (answer.status, answer.code) == (400, "InvalidRequest")
        assert "WebSocket" in answer.error["hint"]


# Sizes


def test_an_envelope_over_its_bound_is_413(unchanged):
    body = enqueue_body(encode(envelope("big", "x" * (2 * MIB))))
    answer = unchanged.post("/v1/enqueue", body)
    assert (answer.status, answer.code) == (413, "TooLarge")


def test_the_bound_is_exact(quiet):
    rest = len(encode(envelope("b0", "", to=STREAM)))
    fits = quiet.post("/v1/enqueue", {"to": STREAM, "envelope": envelope("b0", "x" * (MIB - rest), to=STREAM)})
    over = quiet.post("/v1/enqueue", {"to": STREAM, "envelope": envelope("b1", "x" * (MIB - rest + 1), to=STREAM)})
    assert (fits.status, over.status) == (200, 413)
    deepest = quiet.post("/v1/enqueue", enqueue_body(nested(64)))
    assert deepest.status == 200, deepest


def head(quiet: Http, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", f"Host: {quiet.host}", *lines, "", ""]).encode()


@pytest.mark.promise("Security", "size and depth are checked before parsing")
@pytest.mark.parametrize(("path", "size"), [("/v1/enqueue", 12 * MIB), ("/v1/pull", 100_000), ("/v1/nix", 12 * MIB)])
def test_a_large_body_is_refused_before_it_is_sent(unchanged, path, size):
    answer = request_bytes(unchanged.url, head(unchanged, path, f"Content-Length: {size}") + b"{" * 1000)
    assert (answer.status, answer.code) == ((404, "UnknownRoute") if "nix" in path else (413, "TooLarge"))
    assert answer.headers["Connection"] == "close"


def test_a_large_body_sent_whole_gets_its_answer(unchanged):
    data = head(unchanged, "/v1/enqueue", f"Content-Length: {12 * MIB}") + b" " * (12 * MIB)
    answer = request_bytes(unchanged.url, data)
    assert (answer.status, answer.code) == (413, "TooLarge")


def test_a_chunked_body_is_cut_off_at_the_bound(unchanged):
    chunk = b"%x\r\n%b\r\n" % (MIB, b" " * MIB)
    with connected(unchanged.url.replace("http:", "tcp:")) as connection:
        connection.write(head(unchanged, "/v1/enqueue", "Transfer-Encoding: chunked"), *([chunk] * 9))
        answer = read_answer(connection)  # the body has not ended
    assert (answer.status, answer.code) == (413, "TooLarge")
    assert answer.headers["Connection"] == "close"


def test_an_expectation_is_refused_without_the_body(unchanged):
    data = head(unchanged, "/v1/enqueue", f"Content-Length: {12 * MIB}", "Expect: 100-continue")
    assert request_bytes(unchanged.url, data).status == 413


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
    ],
    ids=["no request", "two lengths", "a long path", "a long header"],
)
def test_bytes_that_are_no_request_are_400(unchanged, data):
    assert request_bytes(unchanged.url, data).status == 400


# Bounds that are retryable


@pytest.mark.promise("Streams", "overflow `reject` answers 429 with Retry-After")
def test_a_full_stream_answers_429_and_when_to_come_back(quiet):
    quiet.enqueue("small", "a", "b")
    over = quiet.post("/v1/enqueue", {"to": "small", "envelopes": [envelope("c"), envelope("d")]})
    assert (over.status, over.code) == (429, "StreamFull")
    assert over.error["retryable"] is True and int(over.headers["Retry-After"]) >= 1
    assert quiet.stats("small")["depth"] == 2
    quiet.enqueue("small", "c")
    # What is leased still counts, and a refused id is not remembered.
    quiet.pull("small")
    refused = quiet.post("/v1/enqueue", {"to": "small", "envelope": envelope("d", "d")})
    assert refused.status == 429 and quiet.counters()["small"]["q.reject"] == 3
    assert quiet.settle("a", "ack", stream="small").status == 200
    assert quiet.enqueue("small", "d") == [4]
    # A duplicate needs no room.
    again = quiet.post("/v1/enqueue", {"to": "small", "envelope": envelope("d", "d")})
    assert again.json == {"id": "d", "seq": 4, "duplicate": True}


def test_a_stream_full_of_bytes_answers_429(quiet):
    assert quiet.post("/v1/enqueue", {"to": "narrow", "envelope": envelope("a", "x" * 1500)}).status == 200
    assert quiet.post("/v1/enqueue", {"to": "narrow", "envelope": envelope("b", "x" * 1500)}).code == "StreamFull"


# Browsers


@pytest.mark.promise("Security", "Host and Origin are checked")
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "", "localhost@evil"])
def test_a_name_that_is_not_this_machine_is_refused(unchanged, host):
    answer = unchanged.post("/v1/enqueue", enqueue_body(GOOD), headers={"Host": host})
    assert (answer.status, answer.code) == (403, "Forbidden")
    assert unchanged.get("/v1/metrics", headers={"Host": host}).status == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8787", "LOCALHOST:8787"])
def test_names_of_this_machine_are_served(unchanged, host):
    assert unchanged.get("/v1/metrics", headers={"Host": host}).status == 200


@pytest.mark.promise("Security", "Host and Origin are checked")
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1:1"])
def test_a_page_of_another_site_is_refused(unchanged, origin):
    answer = unchanged.post("/v1/enqueue", enqueue_body(GOOD), headers={"Origin": origin})
    assert (answer.status, answer.code) == (403, "Forbidden")
    assert "listen.origins" in answer.error["hint"]


def test_a_page_of_this_server_is_served(unchanged):
    assert unchanged.get("/v1/metrics", headers={"Origin": unchanged.url}).status == 200


def test_a_preflight_allows_nothing(unchanged):
    answer = unchanged.ask(
        "OPTIONS", "/v1/enqueue", headers={"Origin": unchanged.url, "Access-Control-Request-Method": "POST"}
    )
    assert answer.status == 405
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_a_wrong_token_is_never_anonymous(unchanged):
    answer = unchanged.get("/v1/metrics", headers={"Authorization": "Bearer guess"})
    assert (answer.status, answer.code) == (401, "Unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert unchanged.get("/v1/metrics", headers={"Authorization": "Basic eDp5"}).status == 401


def test_bodies_that_are_no_json_are_counted(quiet):
    def counted(code: str = "InvalidJSON") -> float:
        lines = quiet.get("/metrics").body.decode().splitlines()
        name = f'penstock_inputs_refused_total{{code="{code}",door="http"}}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = counted()
    for body in (b"{", enqueue_body(b'{"a":1,"a":2}'), enqueue_body(b"[" * 70_000 + b"]" * 70_000)):
        assert quiet.ask("POST", "/v1/enqueue", body).code in ("InvalidJSON", "TooLarge")
    assert counted() >= before + 2
    large = counted("TooLarge")
    assert quiet.ask("POST", "/v1/pull", b" " * 2_000_000).code == "TooLarge"
    assert counted("TooLarge") == large + 1
