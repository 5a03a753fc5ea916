"""Memory of the real process while peers do not read, and after they are gone."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.serving import Http, connected, envelope

MIB = 1024 * 1024


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def push(http: Http, stream: str, size: int, *, body: int = 500_000) -> None:
    """Enqueue about `size` bytes."""
    for number in range(size // body):
        http.post("/v1/enqueue", {"to": stream, "envelope": envelope(f"{stream}-{number}", "x" * body)})


@pytest.mark.promise("Hold under hostile conditions", "paused taps of a stream share the bytes of its envelopes")
def test_paused_taps_share_their_bytes(start_server):
    server = start_server()
    http = Http(server.http)
    with ExitStack() as peers:
        for _ in range(40):
            peer = peers.enter_context(connected(server.control))
            peer.say({"type": "tap", "stream": "watched", "reqId": 1})
            assert peer.frame()["type"] == "ok"
        push(http, "other", 6 * MIB)
        before = resident(server.process.pid)
        push(http, "watched", 6 * MIB)
        grown = resident(server.process.pid) - before
    assert grown < 40 * MIB, f"{grown / MIB:.0f} MiB for 40 taps"
