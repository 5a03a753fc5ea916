"""Who has it: the agent and the peer of consumers and leases, wherever an envelope is looked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

import penstock
from penstock.cli import main
from penstock.journal.reader import JournalReader
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


SPACE = """
spaces:
  - space: {id: demo}
    participants: {pam: {tokens: [the-token-of-pam], capabilities: [{kind: "*"}]}}
"""
Identity = tuple[str, str | None, str, str | None]
IDENTITIES: list[Identity] = [
    (TEAM, "sam", "sam", "team"),  # connect(agent=…): the token vouches for it
    (TEAM, None, "team", None),
    (ANN, None, "ann", None),
]


@pytest.mark.promise(
    "Queue protocols", "each kind of identity is named on every surface that shows a consumer or lease"
)
@pytest.mark.parametrize(("token", "claim", "agent", "voucher"), IDENTITIES)
def test_every_identity_is_named_on_every_surface(
    start_server: Start,
    capsys: pytest.CaptureFixture[str],
    token: str,
    claim: str | None,
    agent: str,
    voucher: str | None,
) -> None:
    server = start_server(config=TOKENS)
    team = Http(server.http, TEAM)
    secret = (server.data / "run" / "operator.token").read_text().strip()
    operator = Http(server.http, secret)
    team.enqueue("jobs", *"abcd")

    def said(*words: str) -> str:
        capsys.readouterr()
        assert main([*words, "--url", server.http, "--token", secret]) == 0
        return capsys.readouterr().out

    def surfaces() -> dict[str, tuple[str, str | None]]:
        """Who and where, by surface."""
        (place,) = team.get("/v1/envelopes/a").json["places"]
        (consumer,) = team.get("/v1/streams/jobs/explain").json["consumers"]
        (view,) = [one["row"] for one in team.get("/v1/snapshot", view="inflight").json["rows"]]
        (peeked,) = team.get("/v1/peek", stream="jobs", state="inflight").json["rows"]
        (connection,) = operator.get("/v1/connections").json["connections"]
        (stats,) = team.stats("jobs")["agents"]
        assert f"{agent} (link " in place["holder"] and (f"token {voucher}" in place["holder"]) == bool(voucher)
        assert place["holder"] == consumer["holder"] == view["holder"]
        assert connection["token"] == (voucher or ("anns" if token == ANN else "team"))
        assert f"1: {agent}" in said("top", "--once", "--interval", "0.2")
        for words in (("where", "a"), ("explain", "jobs")):
            assert agent in said(*words) and "127.0.0.1" in said(*words)
        rows = {"where": place, "explain": consumer, "view": view, "peek": peeked, "console": connection}
        return {name: (row["agent"], row["peer"]) for name, row in rows.items()} | {"stats": (stats, "127.0.0.1")}

    async def work() -> None:
        async with penstock.connect(server.control, token, claim) as client, client.subscribe("jobs", credit=1) as jobs:
            deliveries = aiter(jobs)
            for end in ("ack", "nack", "term"):
                delivery = await anext(deliveries)
                if end == "ack":
                    assert set((await asyncio.to_thread(surfaces)).values()) == {(agent, "127.0.0.1")}
                await getattr(delivery, end)()

    asyncio.run(work())

    def settles() -> dict[str, tuple[str, str | None]]:
        reader = JournalReader(server.data)
        batches = reader.batches(0, reader.bounds().end, ["event", "peer", "meta"])
        rows = [row for batch in batches for row in batch.to_pylist() if row["event"] in ("ack", "nack", "dead")]
        return {row["event"]: (row["peer"], json.loads(row["meta"] or "{}").get("token")) for row in rows}

    wanted = dict.fromkeys(("ack", "nack", "dead"), (agent, voucher))
    until(lambda: settles() == wanted, "the rows of the settles")


def test_a_participant_is_named_by_the_console_the_rows_and_the_tokens(start_server: Start) -> None:
    """A participant of a space takes no leases; what it reads and sends is in the rows and among the connections."""
    server = start_server(config=TOKENS + SPACE)
    operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())

    async def work() -> None:
        async with sockets(server.http) as ends:
            peer = await ends.open("/?space=demo")
            await peer.say({"kind": "system/join", "participantId": "pam", "token": "the-token-of-pam"})
            assert (await peer.read())["kind"] == "system/welcome"
            await peer.say({"kind": "chat", "to": ["pam"], "payload": {"text": "hello"}})
            assert (await peer.read())["from"] == "pam"
            (row,) = (await asyncio.to_thread(operator.get, "/v1/connections")).json["connections"]
            assert (row["agent"], row["token"], row["peer"], row["door"]) == ("pam", "", "127.0.0.1", "space")

    asyncio.run(work())

    def rows() -> dict[str, str]:
        found = operator.get("/v1/tail", after=0).json["rows"]
        return {row["event"]: row.get("peer") or row["sender"] for row in found if row["door"] == "mew"}

    found = until(lambda: {"join", "envelope", "leave"} <= set(seen := rows()) and seen, "the rows of the space")
    assert {found["join"], found["envelope"], found["leave"]} == {"pam"}
