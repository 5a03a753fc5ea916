"""The subscribe socket and the control socket of a real server."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType

from tests.integration.serving import (
    Http,
    client_frame,
    encode,
    envelope,
    handshake,
    run,
    server_frame,
    sockets,
    until,
)
from tests.server_process import ServerProcess

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 0x1, 0x2, 0x8, 0x9, 0xA, 0x0
FIN = 0x80


def ids(deliveries):
    return [one["deliver"]["id"] for one in deliveries]


# Credit


@pytest.mark.promise("Queue protocols", "the subscribe socket delivers and settles")
def test_no_credit_no_delivery_and_credit_adds_up(http, server, stream):
    async def go():
        http.enqueue(stream, *"abcdef")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream)
            await peer.nothing()
            await peer.say({"credit": 1})
            (first,) = await peer.deliveries(1)
            assert (first["deliver"], first["seq"], first["attempt"]) == (envelope("a", "a", to=stream), 1, 1)
            await peer.nothing()
            await peer.say({"credit": 1}, {"credit": 2})
            assert ids(await peer.deliveries(3)) == ["b", "c", "d"]
            await peer.nothing()
            # An ack gives no credit back.
            await peer.say({"ack": "a"})
            await peer.nothing()

    run(go())


@pytest.mark.parametrize("credit", [0, -1, 100_001, 1.5, "1", None])
def test_credit_that_is_no_whole_number_that_fits_is_refused_whole(http, server, stream, credit):
    async def go():
        http.enqueue(stream, "a")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream)
            await peer.say({"credit": credit})
            error = await peer.error()
            assert (error["code"], error["status"]) == ("InvalidCredit", 400)
            await peer.nothing()
            await peer.say({"credit": 1})
            assert ids(await peer.deliveries(1)) == ["a"]

    run(go())


def test_auto_keeps_its_credit_by_itself(http, server, stream):
    async def go():
        http.enqueue(stream, *"abcd")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream, "auto=1")
            for id_ in "abcd":
                assert ids(await peer.deliveries(1)) == [id_]
                await peer.nothing()
                await peer.say({"ack": id_})

    run(go())


@pytest.mark.promise("Delivery", "deliveries and acks can be batched")
def test_batches_are_arrays_of_up_to_n(http, server, stream):
    async def go():
        http.enqueue(stream, *"abcde")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream, "credit=5&batch=3&confirm=1")
            first, second = await peer.deliveries(2)
            assert [one["id"] for one in first["deliver"]] == ["a", "b", "c"]
            assert first["seq"] == [1, 2, 3] and first["attempt"] == [1, 1, 1]
            assert len(set(first["leaseId"] + second["leaseId"])) == 5
            assert [one["id"] for one in second["deliver"]] == ["d", "e"]
            await peer.say({"ack": ["a", "b", "c", "d", "e"]})
            assert [(await peer.read())["settled"] for _ in "abcde"] == [*"abcde"]
            assert http.counters()[stream]["q.ack"] == 5

    run(go())


# Settling


def settled(delivery, op):
    """The confirmation of one settle."""
    return {
        "settled": delivery["deliver"]["id"],
        "leaseId": delivery["leaseId"],
        "op": op,
        "attempt": delivery["attempt"],
    }


@pytest.mark.promise("The document's testing strategy", "Integration: HTTP and WebSocket flows")
@pytest.mark.promise("Queue protocols", "the subscribe socket delivers and settles")
def test_every_settle_does_what_it_says_and_is_confirmed(http, server, stream):
    async def go():
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream, "credit=100&confirm=1")
            http.enqueue(stream, "a")
            (delivery,) = await peer.deliveries(1)
            messages = [{"nack": "a"}, {"nack": "a", "delayMs": 50, "reason": "busy"}, {"release": "a"}]
            for attempt, message in enumerate(messages, 2):
                await peer.say(message)
                frames = [await peer.read(), await peer.read()]  # in either order
                assert settled(delivery, next(iter(message))) in frames
                (delivery,) = [frame for frame in frames if "deliver" in frame]
                assert delivery["attempt"] == attempt
            counters = http.counters()[stream]
            assert (counters["q.nack"], counters["q.release"]) == (2, 1)
            await peer.say({"term": "a", "reason": "never"})
            assert await peer.read() == settled(delivery, "term")
            (row,) = http.get("/v1/peek", stream=stream, state="dead").json["rows"]
            assert row["env"]["headers"]["x-courier"]["lastError"] == "never"

    run(go())


def test_extend_moves_the_deadline(http, server, stream):
    async def go():
        http.enqueue(stream, "a")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream, "credit=1&lease_ms=1000")
            await peer.deliveries(1)

            def expires():
                return http.get("/v1/peek", stream=stream, state="inflight").json["rows"][0]["leaseExpiresAt"]

            before = expires()
            await peer.say({"extend": "a", "ms": 60_000})
            await peer.nothing()
            assert expires() > before + 50_000

    run(go())


def test_a_lease_id_is_checked_exactly(http, server, stream):
    async def go():
        http.enqueue(stream, "a")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream, "credit=9&confirm=1")
            (first,) = await peer.deliveries(1)
            await peer.say({"nack": "a", "leaseId": first["leaseId"]})
            frames = [await peer.read(), await peer.read()]
            (second,) = [frame for frame in frames if "deliver" in frame]
            assert settled(first, "nack") in frames and second["leaseId"] != first["leaseId"]
            await peer.say({"ack": "a", "leaseId": first["leaseId"]})
            error = await peer.error()
            assert (error["code"], error["ref"]) == ("LeaseExpired", "a")
            await peer.say({"ack": "a", "leaseId": second["leaseId"]})
            assert await peer.read() == settled(second, "ack")

    run(go())


def test_wrong_settles_are_errors_and_leave_the_socket_open(http, server, stream):
    async def go():
        http.enqueue(stream, "a", "b")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream, "credit=1&confirm=1")
            other = await ways.subscribe(stream)
            await peer.deliveries(1)
            await other.say({"ack": "a"})
            assert (await other.error())["code"] == "NotLeaseHolder"
            await peer.say({"ack": ["a", "b", "zzz"]})
            assert (await peer.error())["ref"] == "b" and (await peer.error())["code"] == "UnknownEnvelope"
            assert (await peer.read())["settled"] == "a"
            await peer.say({"ack": "a"})
            assert (await peer.error())["code"] == "AlreadyAcked"
            for wrong in ({"ack": 5}, {"nack": ["a"]}, {"nack": "b", "delayMs": "soon"}, {"ack": [1]}, []):
                await peer.say(wrong)
                assert (await peer.error())["code"] == "InvalidRequest"
            await peer.nothing()
            await peer.say('{"ack":"a","ack":"a"}')
            assert (await peer.error())["code"] == "InvalidJSON"
            assert await peer.closed() == 1007

    run(go())


# Leases


@pytest.mark.promise("Delivery", "an expired lease is redelivered without any request")
def test_an_expired_lease_is_announced_and_delivered_again_by_itself(http, server, stream):
    async def go():
        http.enqueue(stream, "a")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream, "credit=5&lease_ms=1000&expired=1")
            (first,) = await peer.deliveries(1)
            started = time.monotonic()
            frames = [await peer.read(), await peer.read()]
            assert 0.5 < time.monotonic() - started < 5
            (notice,) = [frame for frame in frames if "expired" in frame]
            assert (notice["expired"], notice.get("leaseId")) == ("a", first["leaseId"])
            (again,) = [frame for frame in frames if "deliver" in frame]
            assert (again["deliver"]["id"], again["attempt"]) == ("a", 2)
            await peer.say({"ack": "a", "leaseId": first["leaseId"]})
            assert (await peer.error())["code"] == "LeaseExpired"

    run(go())


def test_an_expired_lease_goes_to_another_subscriber(http, server, stream):
    async def go():
        http.enqueue(stream, "a")
        async with sockets(server.http) as ways:
            slow = await ways.subscribe(stream, "credit=1&lease_ms=1000")
            await slow.deliveries(1)
            next_ = await ways.subscribe(stream, "credit=1")
            (again,) = await next_.deliveries(1)  # nothing else happens: the clock alone brings it
            assert again["attempt"] == 2
            await slow.say({"ack": "a"})
            error = await slow.error()
            assert (error["code"], error["status"]) == ("LeaseExpired", 409)
            await next_.say({"ack": "a"})
            await next_.nothing()
            assert http.counters()[stream]["q.ack"] == 1

    run(go())


def test_sockets_on_different_streams_never_cross(http, server, stream):
    async def go():
        one, two = f"{stream}/one", f"{stream}/two"
        async with sockets(server.http) as ways:
            first = await ways.subscribe(one, "credit=100")
            second = await ways.subscribe(two, "credit=100")
            for number in range(20):
                http.enqueue(one, f"one-{number}")
                http.enqueue(two, f"two-{number}")
            assert ids(await first.deliveries(20)) == [f"one-{n}" for n in range(20)]
            assert ids(await second.deliveries(20)) == [f"two-{n}" for n in range(20)]
            await first.say({"ack": "two-0"})
            assert (await first.error())["code"] == "UnknownEnvelope"
            await first.nothing()
            await second.nothing()

    run(go())


def test_subscribers_share_fairly_and_a_leaver_gives_back_at_once(http, server, stream):
    async def go():
        async with sockets(server.http) as ways:
            greedy = await ways.subscribe(stream, "credit=1000")
            modest = await ways.subscribe(stream, "credit=10")
            http.enqueue(stream, *(str(n) for n in range(20)))
            mine, yours = await greedy.deliveries(10), await modest.deliveries(10)
            assert sorted(map(int, ids(mine) + ids(yours))) == list(range(20))
            await modest.say({"ack": ids(yours)[:3]})
            await modest.nothing()
            await modest.ws.close()
            back = await greedy.deliveries(7)
            assert ids(back) == ids(yours)[3:] and all(one["attempt"] == 2 for one in back)
            # The stream lives on after its subscriber, and a new one is served.
            await greedy.ws.close()
            until(lambda: http.stats(stream)["consumers"] == 0, "both have left")
            late = await ways.subscribe(stream, "credit=17")
            assert len(await late.deliveries(17)) == 17

    run(go())


def test_a_cut_connection_gives_back_too(http, server, stream):
    async def go():
        http.enqueue(stream, "a")
        peer = handshake(server.http, f"/v1/subscribe?stream={stream}&credit=1")
        assert b'"id":"a"' in server_frame(peer)[1]
        async with sockets(server.http) as ways:
            waiting = await ways.subscribe(stream, "credit=1")
            await waiting.nothing()
            peer.close()
            (again,) = await waiting.deliveries(1)
            assert again["attempt"] == 2

    run(go())


# The end of a socket


@pytest.mark.parametrize("data", ["{", "nonsense", '{"credit":NaN}', '{"credit":1}{}'])
def test_malformed_json_gets_an_error_and_a_close_with_1007(server, stream, data):
    async def go():
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream)
            await peer.say(data)
            assert (await peer.error())["code"] == "InvalidJSON"
            assert await peer.closed() == 1007

    run(go())


def test_text_that_is_not_utf8_gets_an_error_and_a_close_with_1007(server, stream):
    peer = handshake(server.http, f"/v1/subscribe?stream={stream}")
    peer.write(client_frame(FIN | TEXT, b'{"ack":"\xff\xfe"}'))
    opcode, payload = server_frame(peer)
    assert opcode == TEXT and msgspec.json.decode(payload)["error"]["code"] == "InvalidJSON"
    opcode, payload = server_frame(peer)
    assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, 1007)
    peer.close()


def test_unknown_operations_get_errors_and_finally_a_close_with_1003(http, server, stream):
    async def go():
        http.enqueue(stream, "a")
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream, "credit=1")
            await peer.deliveries(1)
            for number in range(21):
                await peer.say({"eat": number})
                assert (await peer.error())["code"] == "UnknownOp"
            assert await peer.closed() == 1003
            assert http.pull(stream, wait_ms=5_000)[0]["attempt"] == 2

    run(go())


@pytest.mark.promise(
    "The document's testing strategy",
    "errors quote at most a kilobyte of the input; messages on a subscribe socket are bounded",
)
def test_a_message_over_the_bound_gets_an_error_and_a_close_with_1009(server, stream):
    async def go():
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream)
            await peer.say('{"ack":"' + "x" * (1024 * 1024) + '"}')
            assert (await peer.error())["code"] == "TooLarge"
            assert await peer.closed() == 1009

    run(go())


def test_a_message_far_over_the_bound_is_closed_with_1009(server, stream):
    peer = handshake(server.http, f"/v1/subscribe?stream={stream}")
    # Only the head of the frame: the size alone is enough to refuse.
    peer.write(bytes((FIN | TEXT, 0x80 | 127)) + (1 << 40).to_bytes(8, "big") + b"mask")
    opcode, payload = server_frame(peer)
    assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, 1009)
    peer.close()


def test_a_flood_gets_an_error_and_a_close_with_1008(start_server):
    server = start_server(config="limits: {control_rate: 50}")

    async def go():
        async with sockets(server.http) as ways:
            peer = await ways.subscribe("jobs")
            with suppress(ConnectionResetError):  # we may be cut off before all is said
                await peer.say(*[{"credit": 1}] * 300)  # a second may end in between
            error = await peer.error()
            assert (error["code"], error["status"]) == ("RateLimited", 429)
            assert await peer.closed() == 1008

    run(go())


def test_a_server_that_stops_says_so_and_closes_with_1001(start_server):
    server = start_server()

    async def go():
        async with sockets(server.http) as ways:
            peer = await ways.subscribe("jobs", "credit=1")
            server.process.terminate()
            error = await peer.error()
            assert (error["code"], error["retryable"]) == ("Draining", True)
            assert await peer.closed() == 1001

    run(go())
    assert server.process.wait(10) == 0
    server.stop()


# Frames as they may come


def test_fragments_and_binary_frames_are_messages_like_any_other(http, server, stream):
    http.enqueue(stream, "a", "b")
    peer = handshake(server.http, f"/v1/subscribe?stream={stream}")
    peer.write(
        client_frame(TEXT, b'{"cre'),
        client_frame(FIN | PING, b"between"),
        client_frame(CONTINUATION, b'dit":'),
        client_frame(FIN | CONTINUATION, b"1}"),
    )
    assert server_frame(peer) == (PONG, b"between")
    assert b'"id":"a"' in server_frame(peer)[1]
    peer.write(client_frame(FIN | BINARY, b'{"credit":1}'))
    opcode, payload = server_frame(peer)
    assert opcode == TEXT and b'"id":"b"' in payload
    frame = client_frame(FIN | TEXT, b'{"ack":"a"}') + client_frame(FIN | TEXT, b'{"ack":"never"}')
    for byte in frame:
        peer.write(bytes([byte]))
    assert b'"UnknownEnvelope"' in server_frame(peer)[1]
    peer.write(client_frame(FIN | CLOSE, (1000).to_bytes(2, "big")))
    assert server_frame(peer)[0] == CLOSE
    assert http.counters()[stream]["q.ack"] == 1
    peer.close()


def test_an_unmasked_frame_or_a_broken_one_is_closed_with_1002(server, stream):
    for data in (
        bytes((FIN | TEXT | 0x40, 0x80)) + b"mask",
        client_frame(FIN | CONTINUATION, b"x"),
        client_frame(0x83, b""),
    ):
        peer = handshake(server.http, f"/v1/subscribe?stream={stream}")
        peer.write(data)
        opcode, payload = server_frame(peer)
        assert (opcode, int.from_bytes(payload[:2], "big")) == (CLOSE, 1002)
        peer.close()


def test_ping_is_answered(server, stream):
    async def go():
        async with sockets(server.http) as ways:
            peer = await ways.subscribe(stream, autoping=False)
            await peer.ws.ping(b"there?")
            message = await peer.receive()
            assert (message.type, message.data) == (WSMsgType.PONG, b"there?")

    run(go())


# The handshake


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/subscribe", 400, "InvalidRequest"),
        ("/v1/subscribe?stream=", 400, "InvalidRequest"),
        ("/v1/subscribe?stream=a:b", 400, "InvalidRequest"),
        ("/v1/subscribe?stream=jobs&credit=-1", 400, "InvalidCredit"),
        ("/v1/subscribe?stream=jobs&credit=100001", 400, "InvalidCredit"),
        ("/v1/subscribe?stream=jobs&batch=0", 400, "InvalidRequest"),
        ("/v1/subscribe?stream=jobs&lease_ms=999", 400, "InvalidRequest"),
        ("/v1/subscribe?stream=jobs&credits=5", 400, "InvalidRequest"),
        ("/v1/subscrib?stream=jobs", 404, "UnknownRoute"),
        ("/v1/metrics", 400, "InvalidRequest"),
    ],
)
def test_a_wrong_handshake_is_refused_with_a_real_status(server, path, status, code):
    async def go():
        async with sockets(server.http) as ways:
            answer = await ways.refused(path)
            assert (answer.status, answer.code) == (status, code)
            if code == "UnknownRoute":
                assert "`/v1/subscribe`" in answer.error["hint"]

    run(go())


def test_a_page_of_another_site_cannot_open_a_socket(server):
    async def go():
        async with sockets(server.http) as ways:
            for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
                answer = await ways.refused("/v1/subscribe?stream=jobs", headers=headers)
                assert (answer.status, answer.code) == (403, "Forbidden")
            peer = await ways.subscribe("jobs", headers={"Origin": server.http})
            await peer.nothing()

    run(go())


TOKENS = """\
auth:
  tokens:
    - {token: taker, scopes: ["streams:jobs/*:subscribe"]}
    - {token: giver, scopes: ["streams:jobs/*:enqueue"]}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that wants tokens."""
    process = ServerProcess(tmp_path_factory.mktemp("guarded"), config=TOKENS)
    yield process
    process.kill()


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "Unauthorized"),
        ({"Authorization": "Bearer wrong"}, 401, "Unauthorized"),
        ({"Sec-WebSocket-Protocol": "bearer.wrong"}, 401, "Unauthorized"),
        ({"Authorization": "Bearer giver"}, 403, "Forbidden"),
    ],
)
def test_a_handshake_without_the_right_is_refused(guarded, headers, status, code):
    async def go():
        async with sockets(guarded.http) as ways:
            answer = await ways.refused("/v1/subscribe?stream=jobs/1", headers=headers)
            assert (answer.status, answer.code) == (status, code)
            # A page cannot read that, so it may ask for the error on the socket.
            peer = await ways.subscribe("jobs/1", "softAuth=1", headers=headers)
            error = await peer.error()
            assert (error["code"], error["status"]) == (code, status)
            assert await peer.closed() == 1008

    run(go())


def test_soft_refusals_choose_a_protocol_too(guarded):
    """A browser hangs up, unread, on a handshake that chooses none of what it offered."""

    async def go():
        async with sockets(guarded.http) as ways:
            peer = await ways.subscribe("jobs/1", "softAuth=1", protocols=("bearer.wrong",))
            assert peer.ws.protocol == "bearer.wrong"
            assert (await peer.error())["code"] == "Unauthorized"

    run(go())


@pytest.mark.parametrize("offered", [("bearer.taker",), ("courier.v1", "bearer.taker")])
def test_a_token_may_come_as_a_subprotocol(guarded, offered):
    async def go():
        async with sockets(guarded.http) as ways:
            peer = await ways.subscribe("jobs/1", protocols=offered)
            assert peer.ws.protocol == offered[0]
            await peer.nothing()

    run(go())


def test_a_token_in_the_query_is_not_looked_at(guarded):
    async def go():
        async with sockets(guarded.http) as ways:
            answer = await ways.refused("/v1/subscribe?stream=jobs/1&access_token=taker")
            assert answer.status == 401

    run(go())


def test_tokens_hold_on_the_control_socket(guarded):
    async def go():
        async with sockets(guarded.http) as ways:
            assert (await ways.refused("/v1/control")).status == 401
            peer = await ways.open("/v1/control", headers={"Authorization": "Bearer taker"})
            await peer.say({"type": "subscribe", "stream": "jobs/1", "reqId": 1})
            assert (await peer.read())["type"] == "ok"
            await peer.say({"type": "enqueue", "to": "jobs/1", "env": envelope("a"), "reqId": 2})
            refused = await peer.read()
            assert (refused["type"], refused["reqId"], refused["code"]) == ("error", 2, "Forbidden")

    run(go())


# A peer that does not read


def resident_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.promise("Foundations", "every outbox is bounded and has an overflow policy")
def test_a_peer_that_does_not_read_costs_little_and_stalls_no_other(start_server):
    server = start_server()
    http = Http(server.http)
    count, size = 3000, 16_384
    text = "x" * size
    for start in range(0, count, 100):
        many = [envelope(str(number), text) for number in range(start, start + 100)]
        assert http.post("/v1/enqueue", {"to": "jobs", "envelopes": many}).status == 200
    before = resident_kib(server.process.pid)
    deaf = handshake(server.http, "/v1/subscribe?stream=jobs&credit=100000")

    async def go():
        async with sockets(server.http) as ways:
            until(lambda: http.stats("jobs")["inflight"] > 0, "the first deliveries leave")
            peer = await ways.subscribe("jobs", "auto=50&batch=50")
            seen = 0
            started = time.monotonic()
            while seen < count - http.stats("jobs")["inflight"] - 50:
                (batch,) = await peer.deliveries(1)
                some = [one["id"] for one in batch["deliver"]]
                seen += len(some)
                await peer.say({"ack": some})
                assert time.monotonic() - started < 30
            held = http.stats("jobs")["inflight"] * size
            assert held < 12 * 1024 * 1024  # an outbox and what the two kernels hold of it
            assert http.get("/v1/streams/jobs/explain").status == 200
            assert seen > count // 2
            # The deaf peer is waited for, not cut off: it asked for no answers.
            assert http.stats("jobs")["consumers"] == 2
            assert b"penstock_slow_peers_cut_total 0.0" in http.get("/metrics").body

    run(go())
    assert resident_kib(server.process.pid) - before < 24 * 1024
    deaf.close()
    until(lambda: http.stats("jobs")["inflight"] == 0, "what the deaf peer held is back")
    assert http.counters()["jobs"]["q.timeout"] == 0


def test_a_peer_that_asks_and_never_reads_is_not_served_for_ever(start_server):
    server = start_server(config="limits: {outbox_max: 65536, outbox_hard_max: 262144}")
    http = Http(server.http)
    deaf = handshake(server.http, "/v1/subscribe?stream=jobs")
    deaf.socket.settimeout(5)
    # Each message is answered with an error that is never read.
    message = client_frame(FIN | TEXT, b'{"ack":"no-such-id"}')
    # More than the two kernels can hold, or it might all be sent without being read.
    enough = 1_000_000
    sent = 0
    try:
        while sent < enough:
            deaf.write(message * 1000)
            sent += 1000
    except (TimeoutError, ConnectionError):
        pass
    assert sent < enough, "the server went on reading"
    started = time.monotonic()
    assert http.enqueue("other", "a") == [1]
    assert time.monotonic() - started < 2
    assert resident_kib(server.process.pid) < 200 * 1024
    deaf.close()


# Control lines on a WebSocket


@pytest.mark.promise("Queue protocols", "Control v1 works over TCP, Unix socket, stdio and WebSocket")
def test_control_lines_on_a_websocket_several_a_message_both_ways(server, stream):
    async def go():
        async with sockets(server.http) as ways:
            peer = await ways.open("/v1/control")
            lines = [
                {"type": "hello", "version": "v1"},
                {"type": "subscribe", "stream": stream, "credit": 10, "reqId": "sub"},
                *({"type": "enqueue", "to": stream, "env": envelope(str(n)), "reqId": n} for n in range(5)),
                {"type": "ping", "reqId": "end"},
            ]
            # The last line of a message needs no end of its own.
            await peer.say("\n".join(encode(line).decode() for line in lines))
            answers, delivered, messages = [], [], 0
            while len(answers) < 8 or len(delivered) < 5:
                message = await peer.receive()
                assert message.type is WSMsgType.TEXT and message.data.endswith("\n")
                messages += 1
                for line in message.data.splitlines():
                    frame = msgspec.json.decode(line)
                    (delivered if frame["type"] == "deliver" else answers).append(frame)
            assert [frame["reqId"] for frame in answers] == ["hello", "sub", 0, 1, 2, 3, 4, "end"]
            assert [frame["env"]["id"] for frame in delivered] == list("01234")
            assert messages < 13
            await peer.say('{"type":"ping","reqId":1}\n{"type":"ping","reqId":2}\n')
            got = ""
            while got.count("\n") < 2:
                got += (await peer.receive()).data
            assert [msgspec.json.decode(line)["reqId"] for line in got.splitlines()] == [1, 2]

    run(go())


def test_the_control_socket_survives_a_bad_line(server):
    async def go():
        async with sockets(server.http) as ways:
            peer = await ways.open("/v1/control")
            await peer.say("nonsense")
            assert (await peer.read())["code"] == "InvalidJSON"
            await peer.say({"type": "ping", "reqId": 1})
            assert await peer.read() == {"type": "ok", "reqId": 1, "result": {}}

    run(go())


def test_many_sockets_at_once(http, server, stream):
    async def go():
        async with aiohttp.ClientSession() as session:
            opened = await asyncio.gather(
                *(session.ws_connect(f"{server.http}/v1/subscribe?stream={stream}&credit=1") for _ in range(100))
            )
            http.enqueue(stream, *(str(n) for n in range(100)))
            got = await asyncio.gather(*(peer.receive_json(timeout=10) for peer in opened))
            assert sorted(int(one["deliver"]["id"]) for one in got) == list(range(100))
            await asyncio.gather(*(peer.close() for peer in opened))

    run(go())
    until(lambda: http.stats(stream)["consumers"] == 0, "all have left")
    assert http.stats(stream)["depth"] == 100
