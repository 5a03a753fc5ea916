"""`/v1/connections` with real sockets: who is listed, with which figures, and how a connection is closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.dialects.streamservice.keys import StreamKeys, derive
from tests.integration.serving import Http, run, sockets, until
from tests.server_process import ServerProcess

CONFIG = """\
auth:
  tokens:
    - {token: plain-token, name: plain, agent: sam, scopes: ["streams:*:*"]}
    - {token: admin-token, name: boss, scopes: ["admin:*"]}
spaces:
  - space: {id: demo, name: Demo}
    participants:
      writer: {tokens: [writer-token], capabilities: [{kind: chat}]}
      listener: {tokens: [listener-token], capabilities: [{kind: chat}]}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("connections"), config=CONFIG)
    yield process
    process.kill()


@pytest.fixture
def boss(server: ServerProcess) -> Http:
    return Http(server.http, "admin-token")


def plain(server: ServerProcess) -> Http:
    return Http(server.http, "plain-token")


@pytest.mark.promise("Console", "connections show who, from where, how far behind; closing one returns its leases")
def test_a_connection_is_listed_and_closed(server: ServerProcess, boss: Http) -> None:
    plain(server).enqueue("jobs", "one", "two", "three")

    async def work() -> None:
        async with sockets(server.http) as opened:
            bearer = {"Authorization": "Bearer plain-token"}
            peer = await opened.subscribe("jobs", "credit=1&lease_ms=60000", headers=bearer)
            await peer.deliveries(1)
            (row,) = boss.get("/v1/connections", text="sam").json["connections"]
            assert row["agent"] == "sam" and row["door"] == "subscribe" and row["peer"].startswith("127.0.0.1")
            assert (row["streams"], row["delivered"], row["inflight"], row["credit"]) == (["jobs"], 1, 1, 0)
            assert row["lag"] == 2 and row["slow"] is False
            assert "plain-token" not in str(row)
            assert boss.get("/v1/connections", text="nobody-else").json == {"connections": [], "more": 0}
            answer = boss.ask("DELETE", f"/v1/connections/{row['link']}")
            assert (answer.status, answer.json) == (200, {"link": row["link"]})
            assert (await peer.error())["code"] == "ConnectionClosed"
            assert await peer.closed() == 1001

    run(work())
    until(lambda: plain(server).stats("jobs")["inflight"] == 0, "the return of the lease")
    assert boss.get("/v1/connections", text="sam").json["connections"] == []


@pytest.mark.promise("Console", "connections show who, from where, how far behind; closing one returns its leases")
def test_messages_to_a_participant_and_to_the_reader_of_a_token_stream_are_counted(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--relay", config=CONFIG)
    keys, relay = derive(bytes(32), bytes(32), bytes(32)), penstock.local_relay(server.data)
    assert isinstance(keys, StreamKeys)
    boss = Http(server.http, "admin-token")

    def delivered(door: str, **query: str) -> int:
        rows = boss.get("/v1/connections", **query).json["connections"]
        return sum(row["delivered"] for row in rows if row["door"] == door)

    async def follow() -> None:
        async with sockets(server.http) as opened:
            peer = await opened.open("/v1/relay", headers={"Authorization": "Bearer admin-token"})
            await peer.say({"topic": keys.topic})
            with penstock.SyncTokenPublisher(relay.push, keys, signer=relay.signer) as publisher:
                for token in ("one", "two", "three"):
                    publisher.send(token)
                    publisher.flush()
            await peer.receive()
            assert delivered("token stream") >= 1

    try:
        with (
            penstock.SyncSpace(server.http, participant="listener", token="listener-token"),
            penstock.SyncSpace(server.http, participant="writer", token="writer-token") as writer,
        ):
            before = delivered("space", text="listener")
            for number in range(5):
                writer.chat(f"message {number}")
            until(lambda: delivered("space", text="listener") >= before + 5, "the messages")
        run(follow())
    finally:
        server.kill()


def test_closing_an_unknown_connection_is_refused(boss: Http) -> None:
    for link in ("999999", "x"):
        answer = boss.ask("DELETE", f"/v1/connections/{link}")
        assert (answer.status, answer.code) == (404, "UnknownConnection")


def test_connections_are_for_administrators(server: ServerProcess) -> None:
    for http, status in ((plain(server), 403), (Http(server.http), 401)):
        assert http.get("/v1/connections").status == status
        assert http.ask("DELETE", "/v1/connections/1").status == status
