"""Who has it: the agent and the peer of consumers and leases, wherever an envelope is looked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import penstock
from penstock.cli import main
from tests.integration.serving import Http, sockets, until
from tests.server_process import ServerProcess

Start = Callable[..., ServerProcess]
TOKENS = """
auth:
  tokens:
    - {token: the-token-of-the-operator-team, name: team, scopes: ["streams:*:*", "views:*:*"]}
    - {token: the-token-of-ann-and-only-her, name: anns, agent: ann, scopes: ["streams:*:*"]}
"""
TEAM, ANN = "the-token-of-the-operator-team", "the-token-of-ann-and-only-her"


@pytest.mark.promise(
    "Queue protocols", "the agent and the peer of a lease are named in where, explain, top, views and rows"
)
def test_the_agent_of_a_lease_is_named_everywhere(start_server: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start_server(config=TOKENS)
    http = Http(server.http, TEAM)
    token = (server.data / "run" / "operator.token").read_text().strip()
    operator = Http(server.http, token)
    http.enqueue("jobs", "a", "b")

    async def work() -> None:
        async with penstock.connect(server.control, TEAM, "sam") as client, client.subscribe("jobs", credit=1) as jobs:
            delivery = await anext(aiter(jobs))
            await asyncio.to_thread(look)
            await delivery.ack()

    def look() -> None:
        (place,) = http.get("/v1/envelopes/a").json["places"]
        assert (place["agent"], place["peer"]) == ("sam", "127.0.0.1")
        assert place["holder"].startswith("sam (link ") and place["holder"].endswith(", 127.0.0.1, token team)")
        (consumer,) = http.get("/v1/streams/jobs/explain").json["consumers"]
        assert (consumer["agent"], consumer["peer"]) == ("sam", "127.0.0.1")
        (row,) = http.get("/v1/snapshot", view="inflight").json["rows"]
        assert (row["row"]["agent"], row["row"]["peer"]) == ("sam", "127.0.0.1")
        capsys.readouterr()
        words = ["--url", server.http, "--token", token, "--interval", "0.2"]
        assert main(["top", "--once", *words]) == 0 and "1: sam" in capsys.readouterr().out

    asyncio.run(work())
    pulled = http.post("/v1/pull", {"stream": "jobs", "agent": "joe"}).json["deliveries"][0]
    (place,) = http.get("/v1/envelopes/b").json["places"]
    assert place["holder"].startswith("joe (pull ")
    assert http.settle("b", "ack", leaseId=pulled["leaseId"]).status == 200
    capsys.readouterr()

    def settled() -> list[str]:
        rows = operator.get("/v1/tail", after=0).json["rows"]
        return [row["peer"] for row in rows if row["event"] == "ack"]

    assert until(lambda: len(found := settled()) == 2 and found, "the rows of the acks") == ["sam", "joe"]


@pytest.mark.promise("Queue protocols", "a client cannot claim a reserved name, or the name or agent of another token")
def test_a_token_without_an_agent_cannot_claim_the_name_of_another(start_server: Start) -> None:
    server = start_server(config=TOKENS)
    team = Http(server.http, TEAM)
    assert team.post("/v1/pull", {"stream": "jobs", "agent": "team"}).status == 200, "its own name"

    async def work() -> None:
        async with sockets(server.http) as ways:
            for claim in ("ann", "anns", "operator", "System", "penstock", "anonymous"):
                refused = await asyncio.to_thread(team.post, "/v1/pull", {"stream": "jobs", "agent": claim})
                assert refused.code == "Forbidden" and f"`{claim}`" in refused.error["message"]
                peer = await ways.subscribe("jobs", f"agent={claim}", headers={"Authorization": f"Bearer {TEAM}"})
                assert (await peer.error())["code"] == "Forbidden" and await peer.closed()
                with pytest.raises(penstock.PenstockError) as caught:
                    await penstock.connect(server.control, TEAM, claim)
                assert caught.value.code == "Forbidden"

    asyncio.run(work())


def test_an_anonymous_client_of_an_open_server_may_claim_names_that_are_not_reserved(start_server: Start) -> None:
    http = Http(start_server().http)
    assert http.post("/v1/pull", {"stream": "jobs", "agent": "bob"}).status == 200
    assert http.post("/v1/pull", {"stream": "jobs", "agent": "operator"}).code == "Forbidden"


def test_a_token_of_an_agent_cannot_claim_another(start_server: Start) -> None:
    server = start_server(config=TOKENS)
    ann = Http(server.http, ANN)
    refused = ann.post("/v1/pull", {"stream": "jobs", "agent": "sam"})
    assert refused.code == "Forbidden" and "speaks for `ann`" in refused.error["message"]
    assert Http(server.http, TEAM).post("/v1/pull", {"stream": "jobs", "agent": "system/x"}).code == "InvalidRequest"
    assert ann.post("/v1/pull", {"stream": "jobs", "agent": "ann"}).status == 200
    assert ann.post("/v1/pull", {"stream": "jobs", "agent": "\n"}).code == "InvalidRequest"

    async def work() -> None:
        with pytest.raises(penstock.PenstockError) as caught:
            await penstock.connect(server.control, ANN, "sam")
        assert caught.value.code == "Forbidden"

    asyncio.run(work())
