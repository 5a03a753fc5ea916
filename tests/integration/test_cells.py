"""`penstock up --cells N`: the streams in several processes behind one address."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, suppress

import pytest

import penstock
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from tests.integration.serving import Http, connected, encode, envelope, ids, run, sockets, until

A, B = "{red}/a", "jobs/b"
"""Streams of different processes: shard 0 and shard 15."""


@pytest.mark.promise("Cells", "one address serves the streams of all processes, over HTTP, WebSockets and Control v1")
def test_a_client_does_not_see_the_processes(start_server):
    assert (shard_of_stream(A), shard_of_stream(B)) == (0, 15)
    server = start_server("--cells", "2")
    http = Http(server.http)
    for name in (A, B):
        http.enqueue(name, "one", "two")
    places = http.get("/v1/envelopes/one").json["places"]
    assert {place["stream"] for place in places} == {A, B}
    assert http.counters()[A]["q.in"] == http.counters()[B]["q.in"] == 2
    (taken,) = http.pull(B, lease_ms=60_000)
    assert http.settle("one", "ack", leaseId=taken["leaseId"]).json["settled"] is True
    assert http.settle("one", "ack", leaseId=taken["leaseId"]).status == 409
    repeat = {"Idempotency-Key": "k1"}
    body = {"to": A, "envelope": envelope("three")}
    first, second = http.post("/v1/enqueue", body, repeat), http.post("/v1/enqueue", body, repeat)
    assert (first.json, second.headers["Idempotency-Replayed"]) == (second.json, "true")
    assert http.get("/v1/stats", stream="nowhere").code == "UnknownStream"
    assert http.get("/v1/snapshot", view="latestPerAgent").json["rows"] == []
    text = http.get("/metrics", streams=1).body.decode()
    assert 'penstock_q_in_total{shard="0",stream="{red}/a"} 3' in text
    cells = http.get("/health").json["cells"]
    assert [len(one["shards"]) for one in cells] == [8, 8]

    with connected(server.control) as line:
        frames = [{"type": "enqueue", "to": (A, B)[n % 2], "env": envelope(f"c{n}"), "reqId": n} for n in range(20)]
        line.say(*frames, {"type": "metrics", "reqId": "all"})
        assert [line.frame("ok")["reqId"] for _ in range(21)] == [*range(20), "all"]

    async def subscribe() -> None:
        async with sockets(server.http) as doors:
            peer = await doors.subscribe(B, "credit=2&confirm=1")
            got = await peer.deliveries(2)
            assert ids(got) == ["two", "c1"]
            await peer.say({"ack": "two"})
            assert (await peer.read())["settled"] == "two"
            live = await doors.open("/v1/live?view=latestPerAgent")
            assert (await live.read())["snapshot"]["rows"] == []
            http.post("/v1/send", {"to": "sam", "type": "note", "payload": 1})
            assert (await live.read())["delta"]["addr"] == "agents/sam/inbox"
            control = await doors.open("/v1/control")
            await control.say({"type": "stats", "stream": A, "reqId": 1})
            assert (await control.read())["result"]["depth"] == 13

    run(subscribe())
    assert server.stop() == 0


@pytest.mark.promise("Cells", "the number of processes may change at every start, and nothing is lost")
def test_another_number_of_processes_finds_the_same_envelopes(start_server):
    server = start_server("--cells", "2")
    http = Http(server.http)
    for name in (A, B):
        http.enqueue(name, "one", "two")
    http.pull(A)
    server.kill()  # its processes notice, and the next server waits until they are gone
    http = Http(start_server("--cells", "3").http)
    assert [len(one["shards"]) for one in http.get("/health").json["cells"]] == [6, 5, 5]
    for name in (A, B):
        assert ids(http.pull(name, max=5)) == ["one", "two"]


@pytest.mark.promise("Cells", "a process that is killed is restarted, and clients of the SDK notice a pause only")
def test_the_sdk_survives_a_killed_process(start_server):
    server = start_server("--cells", "2")
    http = Http(server.http)

    async def traffic() -> None:
        async with penstock.connect(server.control) as client, client.subscribe(B, credit=8) as jobs:
            await client.enqueue(B, envelope("before"))
            first = await anext(aiter(jobs))
            await first.ack(confirm=True)
            os.kill(http.get("/health").json["cells"][1]["pid"], signal.SIGKILL)
            await client.enqueue(B, envelope("after"))
            async for job in jobs:
                assert job.id == "after"
                await job.ack(confirm=True)
                break

    run(traffic())
    (process,) = [one for one in http.get("/health").json["cells"] if one["restarts"]]
    assert (process["process"], process["up"]) == (1, True)
    assert http.stats(B)["depth"] == 0


def test_a_rule_over_two_shards_is_refused(start_server):
    server = start_server("--cells", "2")
    token = (server.data / "run" / "operator.token").read_text().strip()
    http = Http(server.http, token)
    rule = {"id": "r", "when": {"to": A}, "do": [{"action": "notify", "to": B}]}
    assert http.ask("PUT", "/v1/triggers/r", rule).code == "CrossShard"
    rule["do"] = [{"action": "notify", "to": "{red}/audit"}]
    assert http.ask("PUT", "/v1/triggers/r", rule).json["created"] is True
    http.enqueue(A, "one")
    until(lambda: http.stats("{red}/audit")["depth"] == 1)
    assert http.get("/v1/triggers").json["triggers"][0]["counters"]["run"] == 1
    assert http.get("/v1/tail").code == "Unsupported"


def test_undivided_directories_are_not_started_with_cells(start_server):
    assert start_server().stop() == 0
    with pytest.raises(AssertionError, match="penstock cluster import"):
        start_server("--cells", "2")


@pytest.mark.promise(
    "Hold under hostile conditions", "bodies that wait at a front for a process that stands still are bounded"
)
def test_bodies_for_a_process_that_stands_still_are_bounded(start_server):
    server = start_server("--cells", "2", config="limits: {input_total_max: 8388608}")
    http = Http(server.http)
    pids = [cell["pid"] for cell in http.get("/health").json["cells"]]
    http.enqueue("a", "first")
    with ExitStack() as opened:
        peers = [opened.enter_context(connected(server.http.replace("http:", "tcp:"))) for _ in range(3)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            opened.callback(os.kill, pid, signal.SIGCONT)
        for name, peer in zip("xyz", peers, strict=True):
            items = [envelope(f"{name}{n}", "." * 750_000) for n in range(4)]
            body = encode({"to": "a", "envelopes": items})
            head = f"POST /v1/enqueue HTTP/1.1\r\nHost: {http.host}\r\nConnection: close\r\n"
            with suppress(ConnectionError):  # one of them is cut, perhaps before it has sent all
                peer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode(), body)
        until(lambda: "sender.cut" in server.log(), "the cut")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        answers = [peer.rest() for peer in peers]
    assert sorted(answer[:12] for answer in answers) == [b"", b"HTTP/1.1 200", b"HTTP/1.1 200"]
