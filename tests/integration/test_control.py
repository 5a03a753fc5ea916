"""Control v1 on real TCP and Unix sockets, byte for byte."""

from __future__ import annotations

import os
import re
import stat
import threading

import msgspec
import pytest

from tests.integration.serving import Http, connected, encode, envelope, until
from tests.server_process import ServerProcess

HELLO = b'{"type":"hello","version":"v1","features":[]}\n'
CONDUIT_ENV = {"id": "c1", "ts": "2026-01-01T00:00:00Z", "type": "note", "payload": {"n": 1}}


@pytest.fixture
def peer(server):
    with connected(server.control) as connection:
        yield connection


# What a gateway of the same protocol sends


def test_hello_is_answered_under_its_own_name(peer):
    peer.write(HELLO)
    line = peer.line()
    assert line.startswith(b'{"type":"ok","reqId":"hello","result":{"version":"v1","features":[')
    result = msgspec.json.decode(line)["result"]
    assert set(result) == {"version", "features", "server", "bootId"}
    assert {"credit", "extend", "release", "term", "pull", "peek", "delay", "dlq", "views", "live"} <= set(
        result["features"]
    )


@pytest.mark.promise("Queue protocols", "Control v1 matches the gateway's conversation byte for byte")
def test_the_bytes_of_a_gateways_conversation(peer, http, stream):
    """One connection for everything, no reqIds, envelopes without `to`, unlabelled grants and acks."""
    name = stream.encode()
    peer.write(HELLO)
    peer.frame("ok")
    peer.write(b'{"type":"enqueue","to":"%b","env":%b,"reqId":"r1"}\n' % (name, encode(CONDUIT_ENV)))
    assert peer.line() == b'{"type":"ok","reqId":"r1","result":{"id":"c1","seq":1}}'
    peer.write(b'{"type":"enqueue","to":"%b","env":%b}\n' % (name, encode({**CONDUIT_ENV, "id": "c2"})))
    assert peer.line() == b'{"type":"ok","reqId":"enqueue","result":{"id":"c2","seq":2}}'
    peer.write(b'{"type":"subscribe","stream":"%b"}\n{"type":"grant","n":1}\n' % name)
    assert re.fullmatch(
        rb'\{"type":"deliver","stream":"%b","subId":"s1","env":\{"to":"%b","id":"c1",'
        rb'"ts":"2026-01-01T00:00:00Z","type":"note","payload":\{"n":1\}\},"seq":1,"attempt":1,'
        rb'"leaseId":"[^"]+","leaseExpiresAt":\d{13}\}' % (re.escape(name), re.escape(name)),
        peer.line(),
    )
    peer.write(b'{"type":"nack","id":"c1","delayMs":20}\n{"type":"grant","n":2}\n')
    assert peer.frame("deliver")["env"]["id"] == "c2"
    again = peer.frame("deliver")
    assert (again["env"]["id"], again["attempt"]) == ("c1", 2)
    peer.write(
        b'{"type":"ack","id":"c1"}\n{"type":"ack","id":"c2"}\n{"type":"stats","reqId":"r2","stream":"%b"}\n' % name
    )
    stats = peer.result("r2")
    assert (stats["depth"], stats["inflight"]) == (0, 0)
    peer.write(b'{"type":"metrics","reqId":"r3"}\n')
    assert stream in [row["id"] for row in peer.result("r3")["streams"]]
    peer.write(b'{"type":"snapshot","reqId":"r4","view":"latestPerAgent"}\n')
    assert set(peer.result("r4")) == {"rows", "watermark", "asOf"}
    peer.write(b'{"type":"snapshot","reqId":"r5","view":"nothing"}\n')
    error = peer.error()
    assert (error["reqId"], error["code"]) == ("r5", "UnknownView")
    assert http.counters()[stream]["q.ack"] == 2


def test_one_connection_for_many_subscriptions(peer, http, stream):
    """A grant without a label means the newest; an ack, whichever of them holds the id."""
    names = [f"{stream}/{n}" for n in range(3)]
    for name in names:
        http.enqueue(name, f"{name}-a", f"{name}-b")
    for name in names:
        peer.say({"type": "subscribe", "stream": name}, {"type": "grant", "n": 1})
        assert peer.frame("deliver")["stream"] == name
    peer.say({"type": "grant", "n": 1, "subId": "s1"})
    assert peer.frame("deliver")["env"]["id"] == f"{names[0]}-b"
    for name in reversed(names):
        peer.say({"type": "ack", "id": f"{name}-a"})
    peer.ping()
    counters = http.counters()
    assert [counters[name]["q.ack"] for name in names] == [1, 1, 1]
    peer.say({"type": "ack", "id": "nobody-has-this"})
    error = peer.error()
    assert (error["reqId"], error["code"]) == ("req", "UnknownEnvelope")
    peer.ping()


def test_nothing_is_said_without_need(peer, http, stream):
    """Without a reqId only errors, hello and enqueue are answered."""
    http.enqueue(stream, "a", "b", "c", "d", "e")
    peer.say({"type": "subscribe", "stream": stream, "credit": 5})
    assert [peer.frame("deliver")["env"]["id"] for _ in "abcde"] == list("abcde")
    peer.say(
        {"type": "ack", "id": "a"},
        {"type": "nack", "id": "b", "delayMs": 600_000},
        {"type": "extend", "id": "c", "ms": 5_000},
        {"type": "release", "id": "c"},
        {"type": "term", "id": "d", "reason": "no"},
        {"type": "stats", "stream": stream},
        {"type": "where", "id": "a"},
        {"type": "ping"},
        {"type": "unsubscribe"},
    )
    peer.ping()
    counters = http.counters()[stream]
    assert [counters[key] for key in ("q.ack", "q.nack", "q.dead")] == [1, 1, 1]


# The operations, with reqIds


def test_every_operation_answers_under_its_reqid(peer, stream):
    def ask(operation, **fields):
        peer.say({"type": operation, "reqId": operation, **fields})
        return peer.result(operation)

    many = [envelope(id_) for id_ in "abc"]
    assert ask("enqueue", to=stream, env=many) == {"ids": ["a", "b", "c"], "seqs": [1, 2, 3]}
    assert ask("enqueue", to=stream, env=many[:1]) == {"ids": ["a"], "seqs": [1], "duplicates": ["a"]}
    assert ask("enqueue", to=stream, env=many[0]) == {"id": "a", "seq": 1, "duplicate": True}
    assert ask("enqueue", to=stream, env=envelope("later"), delayMs=600_000) == {"id": "later", "seq": 4}
    sent = ask("send", to=stream, kind="note", payload={"x": 1}, id="sent")
    assert sent == {"id": "sent", "seq": 5, "to": stream, "recipient": {"known": True, "present": False}}
    (pulled,) = ask("pull", stream=stream)["deliveries"]
    assert pulled["deliver"]["id"] == "a" and pulled["leaseExpiresAt"]
    settled = ask("settle", id="a", op="ack", leaseId=pulled["leaseId"])
    assert settled == {"id": "a", "op": "ack", "settled": True}
    assert ask("peek", stream=stream, max=1)["rows"][0]["env"]["id"] == "b"
    assert ask("explain", stream=stream)["reasons"][0]["code"] == "no_consumer"
    assert {"stream": stream, "state": "settled", "seq": 1, "outcome": "acked"} in ask("where", id="a")["places"]
    assert ask("subscribe", stream=stream, subId="mine", expired=True, leaseMs=1_000) == {"subId": "mine"}
    assert ask("grant", n=1, subId="mine")["credit"] in (0, 1)


def test_settles_are_answered_when_asked(peer, http, stream):
    http.enqueue(stream, *"abcdef")
    peer.say({"type": "subscribe", "stream": stream, "credit": 6, "reqId": 0})
    assert peer.result(0) == {"subId": "s1"}
    leases = {}
    for _ in range(6):
        frame = peer.frame("deliver")
        leases[frame["env"]["id"]] = frame["leaseId"]
    peer.say({"type": "ack", "id": ["a", "b"], "reqId": 1})
    assert peer.result(1) == {"id": ["a", "b"]}
    peer.say({"type": "ack", "id": "c", "leaseId": leases["d"], "reqId": 2})
    assert peer.error()["code"] == "LeaseExpired"
    peer.say({"type": "extend", "id": "c", "ms": 60_000, "reqId": 3})
    assert set(peer.result(3)) == {"id", "leaseExpiresAt"}
    peer.say({"type": "nack", "id": "c", "requeue": False, "reason": "bad", "reqId": 4})
    assert peer.result(4) == {"id": "c"}
    peer.say({"type": "ack", "id": ["d", "zzz"], "reqId": 5})
    error = peer.error()
    assert (error["reqId"], error["code"], error["ref"]) == (5, "UnknownEnvelope", "zzz")
    peer.say({"type": "redrive", "stream": stream, "reqId": 6})
    assert peer.result(6)["moved"] == 1
    peer.say({"type": "unsubscribe", "reqId": 7})
    assert peer.result(7) == {"subId": "s1"}
    assert http.stats(stream)["inflight"] == 0


def test_batches_and_expiry_on_a_line(peer, http, stream):
    http.enqueue(stream, *"abc")
    peer.say({"type": "subscribe", "stream": stream, "credit": 3, "batch": 2, "leaseMs": 1000, "expired": True})
    first, second = peer.frame("deliver"), peer.frame("deliver")
    assert [one["id"] for one in first["env"]] == ["a", "b"] and first["seq"] == [1, 2]
    assert [one["id"] for one in second["env"]] == ["c"] and len(second["leaseId"]) == 1
    gone = [peer.frame("expired") for _ in "abc"]
    assert [(one["id"], one["stream"], one["subId"]) for one in gone] == [(id_, stream, "s1") for id_ in "abc"]
    assert [one["leaseId"] for one in gone] == first["leaseId"] + second["leaseId"]


def test_answers_keep_the_order_of_requests(peer, stream):
    """An answer that waits for the journal holds back those behind it."""
    frames = []
    for number in range(0, 300, 3):
        frames += [
            {"type": "enqueue", "to": stream, "env": envelope(str(number)), "reqId": number},
            {"type": "ping", "reqId": number + 1},
            {"type": "stats", "stream": "absent", "reqId": number + 2},
        ]
    peer.say(*frames)
    assert [peer.frame()["reqId"] for _ in range(300)] == list(range(300))


def test_a_waiting_pull_does_not_lose_its_place(peer, http, stream):
    peer.say({"type": "pull", "stream": stream, "waitMs": 9_000, "reqId": "p"}, {"type": "ping", "reqId": "after"})
    until(lambda: http.get("/v1/stats", stream=stream).json.get("consumers"), "the pull waits")
    http.enqueue(stream, "a")
    assert peer.result("p")["deliveries"][0]["deliver"]["id"] == "a"
    assert peer.result("after") == {}


def test_disconnecting_gives_back_what_was_subscribed_and_keeps_what_was_pulled(server, http, stream):
    http.enqueue(stream, "a", "b")
    with connected(server.control) as first:
        first.say({"type": "pull", "stream": stream, "reqId": 1})
        first.result(1)
        first.say({"type": "subscribe", "stream": stream, "credit": 5})
        assert first.frame("deliver")["env"]["id"] == "b"
    (back,) = http.pull(stream, wait_ms=9_000)
    assert (back["deliver"]["id"], back["attempt"]) == ("b", 2)
    assert http.settle("a", "ack", stream=stream).status == 200


# Bytes as they may come


def test_lines_cut_anywhere_are_whole_lines(peer, stream):
    payload = {"text": "zwölf €", "n": [1, 2]}
    lines = b"".join(
        encode({"type": "enqueue", "to": stream, "env": envelope(str(n), payload), "reqId": n}) + b"\n"
        for n in range(4)
    )
    for byte in lines[:200]:
        peer.write(bytes([byte]))
    for start in range(200, len(lines), 13):
        peer.write(lines[start : start + 13])
    assert [peer.result(n)["seq"] for n in range(4)] == [1, 2, 3, 4]


def test_blank_lines_and_carriage_returns_are_no_frames(peer):
    peer.write(b'\r\n\n{"type":"ping","reqId":1}\r\n\n\n {"type":"ping","reqId":2} \n')
    assert (peer.result(1), peer.result(2)) == ({}, {})


@pytest.mark.promise("Security", "the control port closes a peer that speaks another protocol, without an answer")
@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", b"[1]\n", b"\x00\x00\x00\x02{}"]
)
def test_a_peer_that_speaks_something_else_is_closed_unanswered(server, first):
    with connected(server.control) as stranger:
        stranger.write(first)
        assert stranger.rest() == b""


def test_a_bad_line_is_an_error_and_the_next_one_is_heard(peer):
    for line, code in (
        (b'{"type":"ping"', "InvalidJSON"),
        (b"[]", "InvalidJSON"),
        (b'{"type":"ping","reqId":"\xff"}', "InvalidJSON"),
        (b'{"type":"ping","type":"ping"}', "InvalidJSON"),
        (b'{"type":"eat"}', "UnknownOp"),
        (b"{}", "UnknownOp"),
        (b'{"type":5}', "UnknownOp"),
        (b'{"type":"grant","n":"two"}', "InvalidCredit"),
        (b'{"type":"grant","n":1}', "InvalidRequest"),
        (b'{"type":"subscribe"}', "InvalidRequest"),
        (b'{"type":"stats","stream":"absent"}', "UnknownStream"),
        (b'{"type":"enqueue","to":"x","env":{}}', "InvalidEnvelope"),
        (b'{"type":"enqueue","to":"x","env":7}', "InvalidEnvelope"),
        (b'{"type":"hello","version":"v1","token":"wrong?"', "InvalidJSON"),
    ):
        peer.write(line + b"\n")
        error = peer.error()
        assert error["code"] == code, (line, error)
        name = next((name for name in ("enqueue", "hello") if b'"type":"%b"' % name.encode() in line), "req")
        assert error["reqId"] == name
    peer.ping()


def test_an_error_carries_the_reqid_of_its_frame(peer):
    peer.say({"type": "eat", "reqId": "r"}, {"type": "grant", "n": 0.5, "reqId": 7})
    assert (peer.error()["reqId"], peer.error()["reqId"]) == ("r", 7)


def test_another_version_is_refused_and_closed(peer):
    peer.say({"type": "hello", "version": "v2"})
    error = peer.error()
    assert (error["reqId"], error["code"]) == ("hello", "Unsupported")
    assert peer.line() == b""


def test_a_line_over_the_cap_is_dropped_and_the_connection_stays_open(server, http, stream):
    """A line that never ends is refused once, before its end, however much of it comes."""
    with connected(server.control) as peer:
        peer.say({"type": "enqueue", "to": stream, "env": envelope("a"), "reqId": 1})
        assert peer.result(1)["seq"] == 1
        peer.write(b'{"type":"ping","reqId":"long","pad":"' + b" " * (8 * 1024 * 1024))
        error = peer.error()
        assert (error["code"], error["status"], error["reqId"]) == ("TooLarge", 413, "long")
        for _ in range(8):
            peer.write(b"{" * (1024 * 1024))
        peer.write(b'"}\n')
        peer.ping()
    assert http.stats(stream)["depth"] == 1


def test_an_envelope_over_its_bound_is_refused_and_the_line_goes_on(peer, stream):
    peer.say({"type": "enqueue", "to": stream, "env": envelope("big", "x" * (1024 * 1024)), "reqId": 1})
    assert peer.error()["code"] == "TooLarge"
    peer.ping()


def test_a_flood_of_broken_lines_is_closed(server):
    with connected(server.control) as peer:
        peer.write(b"{]\n" * 1000)
        lines = peer.rest().splitlines()
        assert len(lines) == 21
        assert {msgspec.json.decode(line)["code"] for line in lines} == {"InvalidJSON"}


def test_a_flood_of_frames_is_closed(start_server):
    server = start_server(config="limits: {control_rate: 100}")
    with connected(server.control) as peer:
        peer.say(*[{"type": "ping", "reqId": number} for number in range(301)])
        frames = [msgspec.json.decode(line) for line in peer.rest().splitlines()]
        assert frames[-1]["code"] == "RateLimited"
        assert 100 <= len(frames) <= 301


# Tokens and hello


GUARDED = """\
auth:
  tokens:
    - {token: sam-secret, agent: sam, scopes: ["streams:agents/sam/*:*", "streams:agents/*:enqueue"]}
limits: {hello_ms: 400}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    process = ServerProcess(tmp_path_factory.mktemp("guarded"), config=GUARDED)
    yield process
    process.kill()


def test_nothing_is_heard_before_a_token(guarded):
    for frame, req_id in (
        ({"type": "ping"}, "req"),
        ({"type": "enqueue", "to": "agents/sam/inbox", "env": envelope("a"), "reqId": 5}, 5),
        ({"type": "hello", "version": "v1"}, "hello"),
        ({"type": "hello", "version": "v1", "token": "wrong"}, "hello"),
    ):
        with connected(guarded.control) as peer:
            peer.say(frame)
            error = peer.error()
            assert (error["reqId"], error["code"], error["status"]) == (req_id, "Unauthorized", 401)
            assert peer.line() == b""


def test_a_token_opens_what_its_scopes_say(guarded):
    with connected(guarded.control) as peer:
        peer.say({"type": "hello", "version": "v1", "token": "sam-secret"})
        assert peer.result("hello")["version"] == "v1"
        peer.say(
            {"type": "enqueue", "to": "agents/sam/inbox", "env": envelope("a"), "reqId": 1},
            {
                "type": "enqueue",
                "to": "agents/kim/inbox",
                "env": envelope("a", **{"from": "kim"}),
                "reqId": 2,
            },
            {"type": "enqueue", "to": "jobs", "env": envelope("a"), "reqId": 3},
            {"type": "subscribe", "stream": "agents/kim/inbox", "reqId": 4},
            {"type": "subscribe", "stream": "agents/sam/inbox", "credit": 1, "reqId": 5},
        )
        frames = {frame.get("reqId"): frame for frame in (peer.frame() for _ in range(6))}
        assert frames[1]["result"] == {"id": "a", "seq": 1} and frames[5]["type"] == "ok"
        assert [frames[number]["code"] for number in (2, 3, 4)] == ["Forbidden"] * 3
        assert frames[None]["env"]["from"] == "sam"


def test_a_peer_that_says_nothing_is_let_go(guarded):
    with connected(guarded.control) as silent, connected(guarded.control) as known:
        known.say({"type": "hello", "version": "v1", "token": "sam-secret"})
        known.result("hello")
        assert silent.rest() == b""  # closed by the server, at hello_ms
        known.ping()


# A Unix socket


@pytest.mark.promise("Queue protocols", "Control v1 works over TCP, Unix socket, stdio and WebSocket")
def test_a_unix_socket_belongs_to_its_owner_from_the_first_moment(tmp_path):
    path = tmp_path / "c.sock"
    modes = set()
    done = threading.Event()

    def watch():
        while not done.is_set():
            try:
                modes.add(stat.S_IMODE(os.stat(path).st_mode))
            except FileNotFoundError:
                pass

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        server = ServerProcess(tmp_path, "--control", f"unix:{path}")
    finally:
        done.set()
        watching.join()
    modes.add(stat.S_IMODE(os.stat(path).st_mode))
    try:
        assert modes == {0o600}
        assert server.control == f"unix:{path}"
        with connected(server.control) as peer:
            peer.write(HELLO)
            assert peer.result("hello")["version"] == "v1"
        assert Http(server.http).get("/health").status == 200
    finally:
        assert server.stop() == 0


def test_an_envelope_of_several_lines_is_delivered_in_one(server, stream):
    pretty = b'{"to": "%b",\n "envelope": {\n  "id": "p",\r\n  "ts": "2026-01-01T00:00:00Z",\n "type": "t",\n "payload": "a\\nb"}}'
    assert Http(server.http).post("/v1/enqueue", pretty % stream.encode()).status == 200
    with connected(server.control) as line:
        line.say({"type": "subscribe", "stream": stream, "credit": 1})
        assert line.frame("deliver")["env"]["payload"] == "a\nb"
        line.say({"type": "peek", "stream": stream, "state": "inflight", "reqId": 1})
        assert line.result(1)["rows"][0]["env"]["id"] == "p"
