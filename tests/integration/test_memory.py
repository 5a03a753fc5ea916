"""Memory of the real process while peers do not read, and after they are gone."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.json import decode
from nacl.signing import SigningKey

from tests.integration import token_peers
from tests.integration.serving import (
    Bytes,
    Http,
    client_frame,
    connected,
    encode,
    envelope,
    handshake,
    server_frame,
    until,
)

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


CONFIG = f"limits: {{outbox_total_max: {20 * MIB}}}"


def figure(http: Http, name: str) -> float:
    """A metric of the server."""
    lines = http.get("/metrics").body.decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"penstock_{name} ")))


def test_a_paused_download_of_the_journal_counts_and_is_cut(start_server):
    server = start_server(config=CONFIG)
    http = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    push(http, "history", 16 * MIB)
    assert http.get("/v1/journal/rows").status == 200
    auth = http.headers["Authorization"]
    ask = f"GET /v1/journal/rows HTTP/1.1\r\nHost: {http.host}\r\nAuthorization: {auth}\r\n\r\n".encode()
    with ExitStack() as peers:
        for _ in range(2):
            paused = peers.enter_context(connected(server.http.replace("http:", "tcp:")))
            paused.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            paused.write(ask)
        until(lambda: figure(http, "readers_cut_total") == 1, "the cut")
        assert 8 * MIB < figure(http, "outbox_bytes") < 20 * MIB
    until(lambda: figure(http, "outbox_bytes") == 0, "the end of both")
    (line,) = until(lambda: [line for line in server.log().splitlines() if "reader.cut" in line], "a line in the log")
    assert "GET /v1/journal/rows" in line and auth.split()[1] not in line


@pytest.mark.promise("Hold under hostile conditions", "paused WebSockets of the relay count among all readers")
def test_paused_relay_sockets_count_and_one_is_cut(start_server):
    server = start_server("--relay", config=CONFIG)
    context = token_peers.Sockets()
    publisher = token_peers.Publisher(context, server.endpoints["pull"], token_peers.make_topic(), b"m" * 32)
    publisher.register(SigningKey(bytes.fromhex((server.data / "run" / "publisher.key").read_text().strip())))
    first = publisher.chunk(b"first")
    http = Http(server.http)
    with ExitStack() as peers:
        for _ in range(4):
            paused = handshake(server.http, "/v1/relay")
            peers.callback(paused.close)
            paused.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            paused.write(client_frame(0x81, encode({"topic": publisher.topic.decode()})))
            assert server_frame(paused) == (2, first)
        for _ in range(20):  # each holds less than `space_outbox_max`
            publisher.chunk(b"x" * 500_000)
        until(lambda: figure(http, "readers_cut_total") >= 1, "the cut")
        assert 0 < figure(http, "outbox_bytes") < 20 * MIB
    until(lambda: figure(http, "outbox_bytes") == 0, "the end of all")
    assert figure(http, "relay_sockets_cut_total") == 0
    context.destroy(0)


SPACE = """
limits: {join_ms: 5000}
spaces:
  - space: {id: demo}
    participants: {ann: {tokens: [ann-token], capabilities: [{kind: "*"}]}}
"""
LARGE_HEAD = b"\x81\xff" + (4 * MIB).to_bytes(8, "big") + b"mask"
"""A text frame of 4 MiB begins."""


SENT = 3 * MIB


@pytest.mark.promise(
    "Hold under hostile conditions", "bodies, lines and messages that do not end count together on every door"
)
def test_unfinished_input_counts_on_every_door_and_the_largest_is_cut(start_server):
    server = start_server(config=SPACE.replace("join_ms: 5000", f"input_total_max: {5 * SENT - MIB}"))
    http = Http(server.http)
    with ExitStack() as peers:

        def send(peer, *chunks):
            peers.callback(peer.close)
            peer.write(*chunks)

        head = f"POST /v1/enqueue HTTP/1.1\r\nHost: {http.host}\r\nContent-Length: {4 * MIB}\r\n\r\n".encode()
        send(Bytes(server.http.replace("http:", "tcp:")), head, b" " * SENT)
        until(lambda: SENT <= figure(http, "input_bytes") < 2 * SENT, "a body")
        send(Bytes(server.control), b" " * SENT)
        until(lambda: 2 * SENT <= figure(http, "input_bytes") < 3 * SENT, "a line")
        send(handshake(server.http, "/v1/control"), LARGE_HEAD, b"x" * SENT)
        until(lambda: 3 * SENT <= figure(http, "input_bytes") < 4 * SENT, "a message of lines")
        send(handshake(server.http, "/?space=demo&token=ann-token"), LARGE_HEAD, b"x" * SENT)
        until(lambda: 4 * SENT <= figure(http, "input_bytes") < 5 * SENT, "a message of a participant")
        assert figure(http, "senders_cut_total") == 0
        send(Bytes(server.control), b" " * (SENT + MIB))
        until(lambda: figure(http, "senders_cut_total") == 1, "the cut")
        assert figure(http, "input_bytes") < 5 * SENT
    until(lambda: figure(http, "input_bytes") == 0, "the end of all")
    (line,) = until(lambda: [line for line in server.log().splitlines() if "sender.cut" in line], "a line in the log")
    assert '"sender":"' in line and "127.0.0.1" in line


@pytest.mark.promise(
    "Hold under hostile conditions", "a socket that has not joined a space holds few bytes, whatever its frame declares"
)
def test_strangers_in_a_space_hold_few_bytes(start_server):
    server = start_server(config=SPACE)
    with ExitStack() as peers:
        before = resident(server.process.pid)
        crowd = [handshake(server.http, f"/?space=demo{more}") for more in ("", "&token=wrong") * 15]
        for peer in crowd:
            peers.callback(peer.close)
            peer.write(LARGE_HEAD, b"x" * 1_000_000)
        for peer in crowd:
            opcode, error = server_frame(peer)
            assert opcode == 1 and decode(error)["payload"]["error"] in ("too_large", "unauthorized")
            assert server_frame(peer)[0] == 8
        grown = resident(server.process.pid) - before
    assert grown < 25 * MIB, f"{grown / MIB:.0f} MiB for 30 sockets"


def test_a_large_message_may_follow_the_join_at_once(start_server):
    server = start_server(config=SPACE)
    join = encode({"kind": "system/join", "space": "demo", "participant": "ann", "token": "ann-token"})
    chat = encode({"kind": "chat", "payload": {"text": "x" * 500_000}})
    for path, first in (("/", client_frame(0x81, join)), ("/?space=demo&token=ann-token", b"")):
        peer = handshake(server.http, path)
        peer.write(first + client_frame(0x81, chat))
        kinds = [decode(server_frame(peer)[1])["kind"] for _ in range(2)]
        assert kinds == ["system/welcome", "chat"]
        peer.close()


@pytest.mark.more
@pytest.mark.promise("Hold under hostile conditions", "memory returns to the system after an attack")
def test_memory_returns_after_paused_readers_are_gone(start_server):
    server = start_server()
    http = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    before = resident(server.process.pid)
    with ExitStack() as peers:
        for number in range(60):
            peer = peers.enter_context(connected(server.control))
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.say({"type": "subscribe", "stream": f"q{number}", "credit": 5_000, "reqId": 1})
            batch = [envelope(f"{number}-{n}", "x" * 1_000) for n in range(3_000)]
            assert http.post("/v1/enqueue", {"to": f"q{number}", "envelopes": batch}).status == 200
        grown = resident(server.process.pid) - before
        assert grown > 200 * MIB
    for number in range(60):
        until(lambda number=number: http.stats(f"q{number}")["inflight"] == 0)
        assert http.post("/v1/purge", {"stream": f"q{number}"}).status == 200
    until(lambda: resident(server.process.pid) - before < grown * 0.5, "the return of memory")
