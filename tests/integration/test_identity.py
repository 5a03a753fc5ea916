"""Identity over time: tokens that expire or are revoked while their requests run, and sessions that are signed out."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.cli import main
from tests.integration.serving import Http, connected, run, sockets
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
