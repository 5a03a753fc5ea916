"""Tenants of a real server, over every protocol of Courier."""

from __future__ import annotations

import pytest

from tests.integration.serving import Http, connected, envelope, run, sockets
from tests.server_process import ServerProcess

CONFIG = """
auth:
  tokens:
    - {token: a-1, agent: sam, tenant: acme, scopes: ["streams:*:*", "views:*:read"]}
    - {token: b-2, agent: sam, tenant: beta, scopes: ["streams:*:*", "views:*:read"]}
    - {token: w-3, name: wide, scopes: ["streams:*:*", "views:*:*"]}
tenants:
  acme: {envelopes_max: 4}
streams:
  perStreamCaps:
    jobs: {maxDepth: 2}
    t/beta/jobs: {maxDepth: 3}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    process = ServerProcess(tmp_path_factory.mktemp("tenants"), config=CONFIG)
    yield process
    process.kill()


@pytest.mark.promise("Tenants", "two tenants use the same names and never see each other")
def test_the_same_names_and_never_a_meeting(server: ServerProcess) -> None:
    acme, beta, wide = (Http(server.http, token) for token in ("a-1", "b-2", "w-3"))

    async def follow() -> None:
        async with sockets(server.http) as ends:
            bearer = {"headers": {"Authorization": "Bearer b-2"}}
            inbox = await ends.subscribe("agents/sam/inbox", "&credit=5", **bearer)
            live = await ends.open("/v1/live?view=latestPerAgent", **bearer)
            await live.read()
            acme.post("/v1/send", {"to": "sam", "type": "note", "payload": 1})
            beta.post("/v1/send", {"to": "sam", "type": "note", "payload": 2})
            (delivery,) = await inbox.deliveries(1)
            assert (delivery["deliver"]["payload"], delivery["deliver"]["to"]) == (2, "agents/sam/inbox")
            change = (await live.read())["delta"]
            assert (change["addr"], change["env"]["payload"]) == ("agents/sam/inbox", 2)
            await inbox.say({"ack": delivery["deliver"]["id"]})
            await inbox.nothing()

    run(follow())
    rows = acme.get("/v1/snapshot", view="latestPerAgent").json["rows"]
    assert [(row["addr"], row["env"]["payload"]) for row in rows] == [("agents/sam/inbox", 1)]
    assert wide.get("/v1/snapshot", view="latestPerAgent").json["rows"] == []
    assert wide.get("/v1/stats", stream="t/acme/agents/sam/inbox").code == "Forbidden"
    assert [row["id"] for row in acme.get("/v1/metrics").json["streams"]] == ["agents/sam/inbox"]
    assert wide.get("/v1/metrics").json["streams"] == []


def test_settings_go_by_the_whole_name_and_then_by_the_tenants(server: ServerProcess) -> None:
    codes = {}
    for token in ("a-1", "b-2"):
        http = Http(server.http, token)
        answers = [http.post("/v1/enqueue", {"to": "jobs", "envelope": envelope(str(n))}).status for n in range(4)]
        codes[token] = answers.count(200)
    assert codes == {"a-1": 2, "b-2": 3}


def test_a_tenant_at_its_quota_gets_an_error_that_names_the_setting(server: ServerProcess) -> None:
    acme = Http(server.http, "a-1")
    answers = [acme.post("/v1/enqueue", {"to": f"many/{n}", "envelope": envelope(str(n))}) for n in range(6)]
    refused = [answer for answer in answers if answer.status == 429]
    assert refused and refused[0].code == "QuotaExceeded"
    assert "tenants.acme.envelopes_max" in refused[0].error["hint"]
    assert int(refused[0].headers["Retry-After"]) >= 1
    with connected(server.control) as line:
        line.say({"type": "hello", "version": "v1", "token": "b-2"})
        assert line.result("hello")["version"] == "v1"
        line.say({"type": "enqueue", "to": "many/1", "env": envelope("free"), "reqId": 1})
        assert line.result(1)["id"] == "free"


def test_a_staged_batch_stays_with_its_tenant(server: ServerProcess) -> None:
    beta = Http(server.http, "b-2")
    line = b'{"to":"staged","type":"t","payload":1}'
    assert beta.post("/v1/stage/app/0/parts/p", line).status == 200
    assert beta.post("/v1/stage/app/0/commit", {"parts": ["p"]}).json["enqueued"] == 1
    assert beta.get("/v1/stats", stream="staged").json["depth"] == 1
    acme = Http(server.http, "a-1")
    assert acme.get("/v1/stats", stream="staged").code == "UnknownStream"
    assert acme.get("/v1/stage/app").json["last"] is None
