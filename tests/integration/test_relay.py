"""The relay of a real server: its process, rows, restarts and WebSockets, with peers written from the protocol alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from nacl.signing import SigningKey

from penstock.core.relay.topic import hash_of
from tests.integration import token_peers as peers
from tests.integration.serving import Http
from tests.integration.token_peers import Publisher, Sockets, Subscriber
from tests.server_process import ServerProcess

MAC_KEY = b"m" * 32
PATIENCE_S = 20.0
DATA = slice(120, 128)
"""Where the eight bytes of data are in a chunk of these tests."""


def signer(server: ServerProcess) -> SigningKey:
    return SigningKey(bytes.fromhex((server.data / "run" / "publisher.key").read_text().strip()))


def relay_pid(server: ServerProcess) -> int | None:
    """The relay among the server's children."""
    for pid in Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split():
        try:
            if b"penstock.server.relay.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        except FileNotFoundError:
            pass
    return None


def get(server: ServerProcess, path: str) -> str:
    with urllib.request.urlopen(server.http + path, timeout=PATIENCE_S) as reply:
        return str(reply.read().decode())


def wait(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline, "it never came to be"
        threading.Event().wait(0.02)
    return found


def rows(server: ServerProcess) -> list[dict[str, Any]]:
    """The relay's rows in the journal."""
    token = (server.data / "run" / "operator.token").read_text().strip()
    request = urllib.request.Request(f"{server.http}/v1/journal/rows", headers={"Authorization": f"Bearer {token}"})
    import pyarrow

    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        table = pyarrow.ipc.open_stream(reply.read()).read_all()
    return [row for row in table.to_pylist() if row["door"] == "streamservice"]


@pytest.fixture
def context() -> Iterator[Sockets]:
    context = Sockets()
    yield context
    context.destroy(0)


def publisher_of(context: Sockets, server: ServerProcess, topic: bytes | None = None) -> Publisher:
    return Publisher(context, server.endpoints["pull"], topic or peers.make_topic(), MAC_KEY)


@pytest.mark.promise("Administration", "topics of token streams are listed by their hashes, within a bound")
@pytest.mark.promise("Relay", "rows and files never contain a topic")
def test_a_stream_passes_and_leaves_rows_without_its_topic(start_server: Any, context: Sockets) -> None:
    server = start_server("--relay")
    publisher = publisher_of(context, server)
    topic = publisher.topic
    publisher.register(signer(server))
    held = publisher.chunk(b"%08d" % 0)
    subscriber = Subscriber(context, server.endpoints["pub"], topic, MAC_KEY)
    assert subscriber.receive() == [topic + held]
    for no in range(1, 10):
        frame = publisher.chunk(b"%08d" % no)
        assert subscriber.receive() == [topic + frame]
    publisher.socket.send(peers.resume(topic, b"g" * 32))
    assert subscriber.receive() == [topic, b"\x03" + b"g" * 32]

    def counted() -> list[dict[str, Any]]:
        found = [row for row in rows(server) if row["event"] == "chunk_counts"]
        return found if sum(json.loads(row["meta"])["chunks"] for row in found) == 10 else []

    assert wait(counted)
    found = rows(server)
    assert {row["channel"] for row in found} == {hash_of(topic)}
    assert {row["body"] for row in found} == {None}
    events = [row["event"] for row in found]
    assert events.count("register") == 1
    assert {"subscribe", "resume"} <= set(events)
    registered = next(row for row in found if row["event"] == "register")
    assert json.loads(registered["meta"])["signer"] == registered["sender"]
    health = json.loads(get(server, "/health"))
    assert health["relay"] == {"ok": True, "topics": 1, "restarts": 0}
    figures = get(server, "/metrics?streams=1")
    assert "penstock_relay_messages_total 10.0" in figures
    assert f'penstock_relay_topic_messages_total{{topic="{hash_of(topic)}"}} 10.0' in figures
    assert "penstock_relay_resumes_missed_total 1.0" in figures
    operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    told = operator.get("/v1/relay/topics")
    assert told.json["running"] is True and told.json["more"] == 0 and told.json["totals"]["messages"] == 10
    (shown,) = told.json["topics"]
    assert (shown["topic"], shown["messages"], shown["subscribers"]) == (hash_of(topic), 10, 1)
    assert shown["held"] == 10 and shown["waiting"] == 0 and topic not in told.body
    assert Http(server.http).get("/v1/relay/topics").code == "Unauthorized"
    assert server.stop() == 0
    for file in server.data.rglob("*"):
        if file.is_file():
            assert topic not in file.read_bytes(), file
    assert topic.decode() not in server.log()
    assert "relay.stop" in server.log()


@pytest.mark.promise("Relay", "registrations survive kill -9 of the relay and of the server")
def test_a_killed_relay_comes_back_where_it_was_with_its_registrations(start_server: Any, context: Sockets) -> None:
    server = start_server("--relay")
    publisher = publisher_of(context, server)
    topic = publisher.topic
    publisher.register(signer(server))
    subscriber = Subscriber(context, server.endpoints["pub"], topic, MAC_KEY)
    for no in range(3):
        publisher.chunk(b"%08d" % no)
        assert subscriber.follow(DATA) == b"%08d" % no
    wait(lambda: [row for row in rows(server) if row["event"] == "register"])
    pid = relay_pid(server)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert wait(lambda: json.loads(get(server, "/health"))["relay"]["restarts"]) == 1
    wait(lambda: json.loads(get(server, "/health"))["relay"]["ok"])
    _goes_on(publisher, subscriber, 3)

    server.kill()
    words = ("--pub", server.endpoints["pub"], "--pull", server.endpoints["pull"])
    server = start_server("--relay", *words)
    assert (server.endpoints["pub"], server.endpoints["pull"]) == (words[1], words[3])
    _goes_on(publisher, subscriber, 50)
    # A mark from before is gone, and the reader that asks receives that.
    subscriber.ask_again(b"o" * 32)
    assert wait(lambda: subscriber.follow(DATA, 0.1) or subscriber.gone) == [b"\x03" + b"o" * 32]


@pytest.mark.promise("Relay", "a registration cannot be replayed after a restart")
def test_a_replayed_registration_is_refused_after_each_restart(start_server: Any, context: Sockets) -> None:
    server = start_server("--relay")
    publisher = publisher_of(context, server)
    recorded = peers.registration(publisher.topic, signer(server))
    other = peers.registration(peers.make_topic(), signer(server))

    def replay(expected: int) -> None:
        """The replay counts as refused, and a registration behind it as accepted."""
        publisher.socket.send(recorded)
        publisher.socket.send(peers.registration(peers.make_topic(), signer(server)))
        wait(lambda: "penstock_relay_registered_total 1.0" in get(server, "/metrics"))
        figures = get(server, "/metrics")
        assert f'penstock_relay_refusals_total{{reason="nonce"}} {expected}.0' in figures

    publisher.socket.send(recorded)
    publisher.socket.send(other)
    wait(lambda: len([row for row in rows(server) if row["event"] == "register"]) == 2)
    pid = relay_pid(server)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait(lambda: json.loads(get(server, "/health"))["relay"]["restarts"] and relay_pid(server))
    replay(1)
    server.kill()
    server = start_server("--relay", "--pub", server.endpoints["pub"], "--pull", server.endpoints["pull"])
    replay(1)
    server.stop()
    server = start_server("--relay", "--pub", server.endpoints["pub"], "--pull", server.endpoints["pull"])
    replay(1)


def _goes_on(publisher: Publisher, subscriber: Subscriber, no: int) -> None:
    """Without a new registration: messages that were on their way when it died may be lost, what is sent from then on is not."""
    mac = publisher.mac
    deadline = time.monotonic() + PATIENCE_S
    while True:  # the same chunk until one gets through, as a publisher does that keeps its chain
        assert time.monotonic() < deadline
        publisher.mac = mac
        publisher.chunk(b"%08d" % no)
        if subscriber.follow(DATA, 0.2) == b"%08d" % no:
            break
    publisher.chunk(b"%08d" % (no + 1))
    assert subscriber.follow(DATA) == b"%08d" % (no + 1)


@pytest.mark.promise("Relay", "browsers subscribe at `/v1/relay`")
def test_browsers_listen_on_the_shared_port(start_server: Any, context: Sockets) -> None:
    server = start_server("--relay", config="limits: {space_outbox_max: 200000, hello_ms: 300}\n")
    publisher = publisher_of(context, server)
    topic = publisher.topic
    publisher.register(signer(server))
    held = publisher.chunk(b"%08d" % 0)
    url = server.http + "/v1/relay"

    async def browse() -> None:
        async with aiohttp.ClientSession() as session:
            async with session.ws_connect(url) as socket:
                await socket.send_json({"topic": topic.decode()})
                assert await socket.receive_bytes(timeout=PATIENCE_S) == held
                second = publisher.chunk(b"%08d" % 1)
                mark = publisher.mac
                assert await socket.receive_bytes(timeout=PATIENCE_S) == second
                frames = publisher.block(["x"])
                assert await socket.receive_bytes(timeout=PATIENCE_S) == frames[1] + frames[2]
                async with session.ws_connect(url) as other:  # a replay goes to all subscribers of the topic
                    await other.send_json({"topic": topic.decode(), "resume": mark.hex()})
                    for each in (socket, other):
                        assert await each.receive_bytes(timeout=PATIENCE_S) == frames[1] + frames[2]
                async with session.ws_connect(url) as lost:
                    await lost.send_json({"topic": topic.decode(), "resume": "00" * 16})
                    assert await lost.receive_json(timeout=PATIENCE_S) == {"gone": "00" * 16}
            for first, code in (
                ("{", "InvalidJSON"),
                ('{"topic": "abc"}', "InvalidRequest"),
                (json.dumps({"topic": topic.decode(), "resume": "00"}), "InvalidRequest"),
                (None, "Timeout"),
            ):
                async with session.ws_connect(url) as socket:
                    if first is not None:
                        await socket.send_str(first)
                    assert (await socket.receive_json(timeout=PATIENCE_S))["error"]["code"] == code
                    assert (await socket.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE
            await slow(session)

    async def slow(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(url) as socket:
            await socket.send_json({"topic": topic.decode()})
            assert await socket.receive_bytes(timeout=PATIENCE_S) == held
            for no in range(200):  # these are never read
                publisher.chunk(b"%08d" % no + b"." * 60_000)
            wait(lambda: "penstock_relay_sockets_cut_total 1.0" in get(server, "/metrics"))

    asyncio.run(browse())


@pytest.mark.promise("Relay", "browsers subscribe at `/v1/relay`")
def test_the_route_says_when_no_relay_runs(server: ServerProcess) -> None:
    assert (server.endpoints["pub"], server.endpoints["pull"]) == (None, None)

    async def browse() -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(server.http + "/v1/relay")
            assert refused.value.status == 404

    asyncio.run(browse())
