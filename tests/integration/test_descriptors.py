"""Connections that exhaust descriptors, and those that never say who they are."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.integration.serving import Http, connected, read_answer, until


def dial(peers: ExitStack, url: str) -> socket.socket:
    parts = urlsplit(url)
    peer = socket.create_connection((parts.hostname, parts.port), 30)
    return peers.enter_context(peer)


def refused(http: Http, reason: str) -> float:
    """How many connections were refused for a reason."""
    wanted = f'penstock_connections_refused_total{{reason="{reason}"}} '
    lines = http.get("/metrics").body.decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.startswith(wanted)))


@pytest.mark.promise(
    "Hold under hostile conditions", "silent connections take no descriptor from the journal or from clients that speak"
)
def test_silent_connections_leave_descriptors_for_the_journal(start_server):
    server = start_server(descriptors=160)
    http = Http(server.http)
    http.enqueue("s", "before")
    with ExitStack() as peers:
        for number in range(300):
            dial(peers, server.http if number % 2 else server.control)
        for number in range(20):
            http.enqueue("s", f"during-{number}")
        operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
        assert operator.post("/v1/journal/seal", {}).status == 200
        assert http.get("/health").json["journal"]["ok"]
        assert refused(http, "evicted") + refused(http, "descriptors") > 100
        assert "conn.refused" in server.log()
    assert http.stats("s")["depth"] == 21
    assert "Too many open files" not in server.log()


def test_a_server_full_of_known_peers_refuses_the_next_with_a_reason(start_server):
    server = start_server(descriptors=160)
    http = Http(server.http)
    with ExitStack() as peers:
        while True:
            peer = peers.enter_context(connected(server.control))
            peer.say({"type": "ping", "reqId": 1})
            answer = peer.frame()
            if answer["type"] == "error":
                break
        assert answer["code"] == "QuotaExceeded" and "descriptor" in answer["detail"]
        with connected(server.http.replace("http:", "tcp:")) as peer:
            assert read_answer(peer).code == "QuotaExceeded"
    until(lambda: http.get("/health").status == 200)
    assert refused(http, "descriptors") >= 2


@pytest.mark.promise(
    "Hold under hostile conditions", "connections of an address that are not authenticated have a limit of their own"
)
def test_strangers_of_an_address_are_few_and_known_peers_do_not_count(start_server):
    config = "limits: {unauthenticated_per_address_max: 5}\nauth: {tokens: [{token: secret, scopes: ['streams:*:*']}]}"
    server = start_server(config=config)
    http = Http(server.http, "secret")
    with ExitStack() as peers:
        for _ in range(8):
            peer = peers.enter_context(connected(server.control))
            peer.say({"type": "hello", "version": "v1", "token": "secret"})
            assert peer.frame()["type"] == "ok"
        for number in range(5):
            dial(peers, server.http if number % 2 else server.control)
        for _ in range(3):
            assert Http(server.http).ask("GET", "/health").status == 200
            with connected(server.control) as peer:
                peer.say({"type": "hello", "version": "v1", "token": "secret"})
                assert peer.frame()["type"] == "ok", "the oldest silent connection makes room"
        assert refused(http, "address") >= 1
