"""Identity over time: tokens that expire or are revoked while their requests run, and sessions that are signed out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.cli import main
from tests.integration.serving import Http, connected, run, sockets, until
from tests.server_process import ServerProcess

Start = Callable[..., ServerProcess]
WAIT_MS = 20_000
"""Longer than the tests take: a request that ends before was ended."""
BIG = "x" * 900_000
"""Twelve of them do not fit into the buffers of a socket, and fit into one answer."""


def operator(server: ServerProcess) -> Http:
    return Http(server.http, (server.data / "run" / "operator.token").read_text().strip())


def mint(server: ServerProcess, name: str, **more: str) -> str:
    answer = operator(server).post("/v1/tokens", {"name": name, "scopes": ["admin:*", "streams:*:*"], **more})
    assert answer.status == 200, answer
    return str(answer.json["token"])


def asked(path: str, token: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


@pytest.mark.promise("Administration", "revoking a token ends its running downloads, tails and streams")
def test_revoking_a_token_ends_what_it_has_under_way(start_server: Start) -> None:
    server = start_server()
    admin = operator(server)
    for number in range(12):
        body = {"id": str(number), "ts": "2026-01-01T00:00:00Z", "type": "t", "payload": BIG}
        assert admin.post("/v1/enqueue", {"to": "big", "envelopes": [body]}).status == 200
    token = mint(server, "leaver")
    url = server.http.replace("http:", "tcp:")
    end = admin.get("/v1/journal").json["end"]
    with ThreadPoolExecutor(1) as threads, connected(url) as download, connected(url) as events:
        download.write(asked("/v1/journal/rows", token))
        assert download.line() == b"HTTP/1.1 200 OK\r"  # and reads no further
        events.write(asked("/v1/live?view=latestPerAgent", token))
        assert events.line() == b"HTTP/1.1 200 OK\r"
        holder = Http(server.http, token)
        waiting = threads.submit(holder.get, "/v1/tail", after=end + 1_000, wait_ms=WAIT_MS)

        async def follow() -> None:
            async with sockets(server.http) as ends:
                socket = await ends.subscribe("jobs", headers=holder.headers)
                assert admin.ask("DELETE", "/v1/tokens/leaver").json["closed"] == 3
                assert (await socket.error())["code"] == "Unauthorized"
                assert await socket.closed() == 1008

        run(follow())
        assert len(download.rest()) < 12 * len(BIG), "the download went on"
        assert b"Unauthorized" in events.rest()
        assert waiting.result(WAIT_MS / 2_000).code == "Unauthorized"


@pytest.mark.promise(
    "Administration", "a minted token can expire; from then on it is refused, and tokens stay required"
)
def test_a_token_expires_while_its_stream_is_open(start_server: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start_server()
    words = ["token", "new", "brief", "--scope", "streams:*:*", "--expires", "1500ms", "--json"]
    assert main([*words, "--data", str(server.data)]) == 0
    holder = Http(server.http, json.loads(capsys.readouterr().out)["token"])

    async def follow() -> None:
        async with sockets(server.http) as ends:
            socket = await ends.subscribe("jobs", headers=holder.headers)
            assert (await socket.error())["code"] == "Unauthorized"
            assert await socket.closed() == 1008

    run(follow())
    assert holder.get("/v1/stats", stream="jobs").code == "Unauthorized"
    assert Http(server.http).get("/v1/stats", stream="jobs").code == "Unauthorized", "tokens stay required"
    (row,) = operator(server).get("/v1/tokens").json["tokens"]
    assert row["expires_at"] > row["created_at"]
    server.kill()
    assert Http(start_server().http).get("/v1/stats", stream="jobs").code == "Unauthorized"


@pytest.mark.promise(
    "Administration", "signing out of the console ends its session on the server, also after a restart"
)
def test_a_copied_cookie_is_worthless_after_signing_out(start_server: Start) -> None:
    server = start_server()
    page = {"Origin": server.http, "Sec-Fetch-Site": "same-origin"}
    token = (server.data / "run" / "operator.token").read_text().strip()
    http = Http(server.http)
    cookie = http.post("/console/session", {"token": token}, page).headers["Set-Cookie"].partition(";")[0]
    signed_in = {**page, "Cookie": cookie}
    assert http.get("/console/session", headers=signed_in).status == 200
    assert http.ask("DELETE", "/console/session", headers=signed_in).status == 204
    assert http.get("/console/session", headers=signed_in).code == "Unauthorized"
    assert http.get("/v1/tokens", headers=signed_in).code == "Unauthorized"


LOST = """
auth: {tokens: [{token: the-token-of-the-team, name: team, scopes: ["streams:*:*"]}]}
spaces:
  - space: {id: demo}
    participants: {ann: {tokens: [the-token-of-ann], capabilities: [{kind: "*"}]}}
"""


def refusals(server: ServerProcess) -> dict[str, float]:
    families = text_string_to_metric_families(operator(server).get("/metrics").body.decode())
    (found,) = [family.samples for family in families if family.name == "penstock_tokens_refused"]
    return {sample.labels["reason"]: sample.value for sample in found}


@pytest.mark.promise("Operations", "`doctor` names a lost token, also when it is the token of `doctor` itself")
def test_a_lost_token_is_counted_at_every_door_and_named(
    start_server: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server(config=LOST)
    for first in ({"type": "hello", "token": "lost-and-gone"}, {"type": "hello"}, {"type": "ping"}):
        with connected(server.control) as peer:
            peer.say(first)
            assert peer.error()["code"] == "Unauthorized"
    assert refusals(server) == {"missing": 2, "unknown": 1}
    assert Http(server.http).get("/participants/ann/messages", space="demo").status == 401
    assert Http(server.http, "lost-and-gone").get("/participants/ann/messages", space="demo").status == 403
    assert Http(server.http, "lost-and-gone").post("/v1/enqueue", {}).code == "Unauthorized"
    assert Http(server.http, "lost-and-gone").post("/console/session", {"token": "lost-and-gone"}).status == 401
    before = {"missing": 3, "unknown": 5}  # the request to sign in had it twice
    assert refusals(server) == before

    async def join(token: str) -> str:
        async with sockets(server.http) as ends:
            peer = await ends.open("/?space=demo")
            await peer.say({"kind": "system/join", "participantId": "ann", "token": token})
            return str((await peer.read())["kind"])

    assert asyncio.run(join("the-token-of-ann")) == "system/welcome" and refusals(server) == before
    assert asyncio.run(join("lost-and-gone")) == "system/error" and refusals(server) == before | {"unknown": 6}

    def checks(*words: str) -> dict[str, dict[str, str]]:
        capsys.readouterr()
        main(["doctor", "--json", "--data", str(server.data), *words])
        return {one["check"]: one for one in json.loads(capsys.readouterr().out)["checks"]}

    found = checks()["health: doors"]
    shown = sha256(b"lost-and-gone").hexdigest()[:8]
    assert (
        found["status"] == "info"
        and f"127.0.0.1 showed a token that is not known (fingerprint {shown})" in found["detail"]
    )
    found = checks("--token", "lost-and-gone")
    assert found["token"]["status"] == "failed" and "does not know this token" in found["token"]["detail"]
    assert found["health: journal"]["detail"] == "ok; the reason needs a token that the server knows"
    log = until(lambda: "token.refused" in server.log() and server.log(), "the line of the log")
    assert "lost-and-gone" not in log and shown in log
