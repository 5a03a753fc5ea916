"""Thousands of connections, and readers of server-sent events that stop reading."""

from __future__ import annotations

import os
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.serving import Http, envelope, until
from tests.tiers import first_of

MIB = 1024 * 1024
EACH_ADDRESS = 50
"""Connections of one address, below the limit for strangers."""
SPARE = 300
"""Descriptors that a process needs beside its connections."""
EVENTS = b"GET /v1/live?view=latestPerAgent HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"


def allowed(count: int) -> bool:
    """Raise the limit of descriptors of this process, and so of its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = count + SPARE
    if soft < need <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
    return need <= hard


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def dial(peers: ExitStack, url: str, address: str = "127.0.0.1", *, buffer: int = 0) -> socket.socket:
    parts = urlsplit(url)
    peer = peers.enter_context(socket.socket())
    peer.settimeout(30)
    if buffer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    peer.bind((address, 0))
    peer.connect((parts.hostname, parts.port))
    return peer


@pytest.mark.promise(
    "Hold under hostile conditions", "thousands of connections cost little memory, and clients are served beside them"
)
@pytest.mark.parametrize("count", first_of([400, 10_000], 1))
def test_clients_are_served_beside_many_connections(count, start_server):
    if not allowed(count):
        pytest.skip(f"{count} connections need more descriptors than this user may have")
    server = start_server(fresh=count > 1_000)  # a fresh process inherits the raised limit
    http, pid = Http(server.http), server.process.pid
    http.enqueue("work", "before")
    before, open_before = resident(pid), descriptors(pid)
    with ExitStack() as peers:
        for number in range(count):
            block, place = divmod(number // EACH_ADDRESS, 250)
            peer = dial(peers, (server.http, server.control)[number % 2], f"127.0.{block + 1}.{place + 1}")
            if number % 4 > 1:
                peer.sendall(b"G" if number % 2 == 0 else b"{")
        until(lambda: descriptors(pid) > open_before + count - 5, "accepting all connections")
        assert resident(pid) - before < 10 * MIB + count * 32 * 1024
        http.enqueue("work", *(f"during-{number}" for number in range(100)))
        taken = http.pull("work", max=101)
        assert len(taken) == 101
        for one in taken:
            assert http.settle(one["deliver"]["id"], "ack", leaseId=one["leaseId"]).status == 200
        assert http.get("/health").status == 200
    until(lambda: descriptors(pid) <= open_before + 5, "closing all connections")
    assert http.counters()["work"]["q.ack"] == 101


def read_until(sock: socket.socket, mark: bytes) -> bool:
    """Read up to a mark; False when the server closes the connection before."""
    seen = b""
    while mark not in seen:
        data = sock.recv(MIB)
        if not data:
            return False
        seen = seen[-100:] + data
    return True


@pytest.mark.promise(
    "Hold under hostile conditions", "readers of server-sent events that stop reading share bytes and are bounded"
)
@pytest.mark.parametrize("count", first_of([30, 500], 1))
def test_paused_readers_of_events_cost_little_and_delay_no_one(count, start_server):
    if not allowed(2 * count):
        pytest.skip(f"{2 * count} connections need more descriptors than this user may have")
    server = start_server(config=f"limits: {{outbox_total_max: {16 * MIB}}}")
    http, pid = Http(server.http), server.process.pid

    def push(tag: str) -> None:
        for number in range(30):
            body = {"to": f"agents/a{number}/inbox", "envelope": envelope(f"{tag}-{number}", "x" * 20_000)}
            assert (
                http.post("/v1/enqueue", {**body, "envelope": {**body["envelope"], "from": f"a{number}"}}).status == 200
            )

    push("first")
    before = resident(pid)
    with ExitStack() as peers:
        for _ in range(count):
            dial(peers, server.http, buffer=4096).sendall(EVENTS)
        reading = dial(peers, server.http)
        reading.sendall(EVENTS)
        with ThreadPoolExecutor(1) as pool:
            last = pool.submit(read_until, reading, b"last-29")
            for number in range(10):
                push(f"again-{number}")
            assert resident(pid) - before < 80 * MIB
            push("last")
            assert last.result(), "a follower that reads was cut"
    until(lambda: "penstock_live_followers" not in http.get("/metrics").body.decode() or followers(http) == 0)


def followers(http: Http) -> float:
    lines = http.get("/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("penstock_live_followers{"))
