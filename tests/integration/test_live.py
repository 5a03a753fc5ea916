"""Snapshots and live views of a real server: sockets, server-sent events, tokens, restarts, and the SDK on top."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

import penstock
from tests.integration.serving import (
    PATIENCE_S,
    Bytes,
    Http,
    envelope,
    handshake,
    request_bytes,
    run,
    server_frame,
    sockets,
    until,
)
from tests.server_process import ServerProcess

LIVE = "/v1/live?view=latestPerAgent"
TOKENS = """
auth:
  tokens:
    - {token: all, scopes: ["streams:*:enqueue", "streams:*:subscribe", "views:*:read"]}
    - {token: sam, scopes: ["views:latestPerAgent:read", "streams:agents/sam/*:read"]}
    - {token: none, scopes: ["streams:*:*"]}
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A server whose inboxes no other test fills, with frequent heartbeats."""
    process = ServerProcess(tmp_path_factory.mktemp("live"), config="limits: {live_heartbeat_ms: 200}")
    yield process
    process.kill()


def rows(http: Http, view: str = "latestPerAgent", **query) -> dict:
    answer = http.get("/v1/snapshot", view=view, **query)
    assert answer.status == 200, answer
    return {row["addr"]: row.get("env", row.get("row")) for row in answer.json["rows"]}


class Events:
    """A reader of server-sent events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.comments = 0

    async def next(self) -> tuple[str | None, dict]:
        """The next event: its id and its data."""
        while True:
            async with asyncio.timeout(PATIENCE_S):
                block = (await self.response.content.readuntil(b"\n\n")).decode()
            fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] not in ("", ":"))
            if "data" in fields:
                return fields.get("id"), msgspec.json.decode(fields["data"])
            self.comments += 1


@asynccontextmanager
async def events(url: str, query: str = "view=latestPerAgent", **headers: str):
    path = f"{url}/v1/live?{query}"
    async with aiohttp.ClientSession() as session, session.get(path, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream"
        yield Events(response)


def test_a_snapshot_by_http(alone, stream):
    http = Http(alone.http)
    inbox = "agents/snapshot/inbox"
    http.enqueue(inbox, "a", "b")
    (delivery, _) = http.pull(inbox, max=2)
    http.settle("a", "ack", leaseId=delivery["leaseId"])
    answer = http.get("/v1/snapshot", view="latestPerAgent", addr=inbox)
    assert set(answer.json) == {"rows", "watermark", "asOf"}
    (row,) = answer.json["rows"]
    assert (row["addr"], row["env"]["id"]) == (inbox, "b")
    assert rows(http, "inflight", addr=inbox)[f"{inbox}#2"]["id"] == "b"
    assert rows(http, "views/metrics:streams", addr=inbox)[inbox]["q"]["q.ack"] == 1
    assert http.get("/v1/snapshot").code == "InvalidRequest"
    unknown = http.get("/v1/snapshot", view="nope")
    assert (unknown.status, unknown.code) == (404, "UnknownView")
    assert "metrics:streams" in unknown.error["hint"]


def test_a_socket_gets_the_table_and_then_one_change_an_enqueue(alone):
    http = Http(alone.http)

    async def work() -> None:
        async with sockets(alone.http) as open_:
            peer = await open_.open(LIVE + "&addr=agents/socket*")
            assert (await peer.read())["snapshot"]["rows"] == []
            for id_, op in (("a", "add"), ("b", "update")):
                http.enqueue("agents/socket/inbox", id_)
                delta = (await peer.read())["delta"]
                assert (delta["op"], delta["env"]["id"]) == (op, id_)
            http.enqueue("agents/socket/inbox", "b")  # a duplicate is no news
            http.enqueue("agents/socket2/inbox", "c")
            delta = (await peer.read())["delta"]
            assert (delta["op"], delta["addr"]) == ("add", "agents/socket2/inbox")

    run(work())


@pytest.mark.promise("Views", "followers use credits, and a late follower receives each row once")
def test_a_socket_with_credit_receives_each_row_once(alone):
    http = Http(alone.http)

    async def work() -> None:
        async with sockets(alone.http) as open_:
            peer = await open_.open(LIVE + "&credit=0&addr=agents/credit/*")
            await peer.read()
            for n in range(20):
                http.enqueue("agents/credit/inbox", f"e{n}")
            await peer.say({"credit": 5})
            assert (await peer.read())["delta"]["env"]["id"] == "e19"
            await peer.say({"credit": -1})
            assert (await peer.error())["code"] == "InvalidCredit"
            await peer.say("{")
            assert (await peer.error())["code"] == "InvalidJSON"
            assert await peer.closed() == 1007

    run(work())


@pytest.mark.promise("Views", "`since`, `Last-Event-ID`, heartbeats and `compat=1` work")
def test_events_carry_versions_and_are_resumed_by_the_last_one(alone):
    http = Http(alone.http)
    query = "view=latestPerAgent&addr=agents/events/*"

    async def work() -> None:
        async with events(alone.http, query) as reader:
            first_id, first = await reader.next()
            assert first_id == str(first["snapshot"]["watermark"])
            http.enqueue("agents/events/inbox", "a")
            seen, event = await reader.next()
            assert (event["delta"]["op"], seen) == ("add", str(event["delta"]["version"]))
        http.enqueue("agents/events/inbox", "b")
        async with events(alone.http, query, **{"Last-Event-ID": seen}) as reader:
            _, event = await reader.next()
            assert (event["delta"]["op"], event["delta"]["prev"]) == ("update", int(seen))
        async with events(alone.http, f"{query}&since={seen}") as reader:
            _, event = await reader.next()
            assert event["delta"]["env"]["id"] == "b"
        async with events(alone.http, query, **{"Last-Event-ID": "nonsense"}) as reader:
            _, event = await reader.next()
            assert len(event["snapshot"]["rows"]) == 1

    run(work())


@pytest.mark.promise("Views", "`since`, `Last-Event-ID`, heartbeats and `compat=1` work")
def test_events_in_the_shape_of_the_first_courier(alone):
    http = Http(alone.http)

    async def work() -> None:
        async with events(alone.http, "view=latestPerAgent&compat=1&addr=agents/compat/*") as reader:
            content = reader.response.content
            async with asyncio.timeout(PATIENCE_S):
                assert await content.readuntil(b"\n\n") == b'data: {"connected":true}\n\n'
                http.enqueue("agents/compat/inbox", "a")
                told = await content.readuntil(b"\n\n")
            assert told.startswith(b'data: {"addr":"agents/compat/inbox","env":{') and told.count(b"\n") == 2
            assert json.loads(told[6:])["env"]["id"] == "a"

    run(work())


@pytest.mark.promise("Views", "`since`, `Last-Event-ID`, heartbeats and `compat=1` work")
def test_a_silent_connection_hears_a_heartbeat(alone):
    async def work() -> None:
        async with events(alone.http, "view=latestPerAgent&addr=none") as reader:
            await reader.next()
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.response.content.readuntil(b"\n\n") == b": heartbeat\n\n"

    run(work())
    peer = handshake(alone.http, LIVE + "&addr=none")
    assert server_frame(peer)[0] == 0x1
    assert server_frame(peer) == (0x9, b"")
    peer.close()


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "InvalidRequest"),
        ("?view=nope", 404, "UnknownView"),
        ("?view=inflight&since=x", 400, "InvalidRequest"),
        ("?view=inflight&sinse=1", 400, "InvalidRequest"),
        ("?view=inflight&credit=5", 400, "InvalidCredit"),
        ("?view=inflight&addr=", 400, "InvalidRequest"),
    ],
)
def test_a_wrong_wish_is_answered_with_a_status(alone, query, status, code):
    answer = Http(alone.http).get(f"/v1/live{query}")
    assert (answer.status, answer.code) == (status, code)


def test_a_head_request_has_no_end_to_wait_for(alone):
    host = Http(alone.http).host
    answer = request_bytes(alone.http, f"HEAD {LIVE} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert (answer.status, answer.headers["Content-Type"], answer.body) == (200, "text/event-stream", b"")


@pytest.mark.promise("Views", "rows are filtered by the reader's scopes")
def test_tokens_decide_who_follows_and_which_rows_are_seen(start_server):
    server = start_server(config=TOKENS)
    everything, sam, none, nobody = (Http(server.http, token) for token in ("all", "sam", "none", None))
    everything.enqueue("agents/sam/inbox", "a")
    everything.enqueue("agents/jen/inbox", "b")
    assert sorted(rows(everything)) == ["agents/jen/inbox", "agents/sam/inbox"]
    assert sorted(rows(sam)) == ["agents/sam/inbox"]
    for path in ("/v1/snapshot", "/v1/live"):
        assert (nobody.get(path, view="latestPerAgent").status) == 401
        assert (none.get(path, view="latestPerAgent").status) == 403
        assert (sam.get(path, view="inflight").status) == 403

    async def work() -> None:
        async with sockets(server.http) as open_:
            assert (await open_.refused(LIVE)).status == 401
            assert (await open_.refused(LIVE, headers={"Authorization": "Bearer none"})).status == 403
            soft = await open_.open(LIVE + "&softAuth=1", headers={"Authorization": "Bearer none"})
            assert (await soft.error())["code"] == "Forbidden"
            assert await soft.closed() == 1008
            peer = await open_.open(LIVE, headers={"Authorization": "Bearer sam"})
            assert [row["addr"] for row in (await peer.read())["snapshot"]["rows"]] == ["agents/sam/inbox"]
            async with events(server.http, Authorization="Bearer sam") as reader:
                await reader.next()
                everything.enqueue("agents/jen/inbox", "c")
                everything.enqueue("agents/sam/inbox", "d")
                assert (await peer.read())["delta"]["env"]["id"] == "d"
                assert (await reader.next())[1]["delta"]["env"]["id"] == "d"

    run(work())


@pytest.mark.promise("Views", "rows survive a restart, also through the live file; versions are never reused")
def test_rows_survive_a_crash_and_a_seal_and_old_versions_get_the_table(start_server):
    server = start_server()
    http = Http(server.http)
    for name in ("sam", "jen"):
        http.enqueue(f"agents/{name}/inbox", "a", "b")
        for one in http.pull(f"agents/{name}/inbox", max=2):
            http.settle(one["deliver"]["id"], "ack", leaseId=one["leaseId"])
    before = http.get("/v1/snapshot", view="latestPerAgent").json
    token = (server.data / "run" / "operator.token").read_text().strip()
    assert Http(server.http, token).post("/v1/journal/seal", {}).status == 200
    http.enqueue("agents/jen/inbox", "c")
    server.kill()
    again = start_server()
    http = Http(again.http)
    found = rows(http)
    assert {addr: env["id"] for addr, env in found.items()} == {
        "agents/sam/inbox": "b",
        "agents/jen/inbox": "c",
    }
    assert http.get("/v1/snapshot", view="latestPerAgent").json["watermark"] > before["watermark"]

    async def work() -> None:
        async with sockets(again.http) as open_:
            peer = await open_.open(f"{LIVE}&since={before['watermark']}")
            assert len((await peer.read())["snapshot"]["rows"]) == 2

    run(work())


@pytest.mark.promise("Views", "drain closes followers")
def test_a_shutdown_closes_followers_politely(start_server):
    server = start_server()

    async def work() -> None:
        async with sockets(server.http) as open_, events(server.http) as reader:
            peer = await open_.open(LIVE)
            await peer.read()
            await reader.next()
            server.process.terminate()
            assert (await peer.error())["code"] == "Draining"
            assert await peer.closed() == 1001
            assert (await reader.next())[1]["error"]["code"] == "Draining"
            assert await reader.response.content.read() == b""

    run(work())
    server.process.wait(PATIENCE_S)
    assert server.stop() == 0


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.promise("Views", "a follower that does not read costs nothing")
def test_a_follower_that_does_not_read_costs_little_and_stalls_no_other(start_server):
    server = start_server()
    http = Http(server.http)
    inbox = "agents/loud/inbox"
    text = "x" * 100_000

    def pass_through(name: str, count: int) -> None:
        for n in range(count):
            body = {"to": inbox, "envelope": envelope(f"{name}{n}", text)}
            assert http.post("/v1/enqueue", body).status == 200
            (one,) = http.pull(inbox)
            http.settle(one["deliver"]["id"], "ack", leaseId=one["leaseId"])

    pass_through("first", 100)  # what the journal needs for itself
    unread = [_silent(server.http, kind) for kind in ("socket", "events") * 5]
    before = resident(server.process.pid)

    async def work() -> None:
        async with sockets(server.http) as open_:
            reader = await open_.open(LIVE)
            await reader.read()
            pass_through("e", 100)
            while (await reader.read())["delta"]["env"]["id"] != "e99":
                pass

    run(work())
    # 100 MB were due to followers that do not read.
    assert resident(server.process.pid) - before < 20_000_000
    for connection in unread:
        connection.close()
    until(lambda: http.get("/health").json["clients"] == 0, "the end of the followers")


def _silent(url: str, kind: str):
    """A follower that asks and then reads nothing more."""
    if kind == "socket":
        return handshake(url, LIVE)
    connection = Bytes(url.replace("http:", "tcp:"))
    connection.write(f"GET {LIVE} HTTP/1.1\r\nHost: {Http(url).host}\r\n\r\n".encode())
    assert connection.socket.recv(17) == b"HTTP/1.1 200 OK\r\n"
    return connection


# The SDK


def test_the_sync_twin_follows_too(alone):
    Http(alone.http).enqueue("agents/sync/inbox", "a")
    with penstock.connect_sync(alone.control) as client:
        assert client.snapshot("latestPerAgent", addr="agents/sync/*")["rows"][0]["env"]["id"] == "a"
        with client.live("latestPerAgent", addr="agents/sync/*") as view:
            assert next(view).row["id"] == "a"
            assert list(view.rows) == ["agents/sync/inbox"]
