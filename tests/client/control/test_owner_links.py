"""The owner map: where requests go in a cluster, in which order, and what happens when a node ends or hangs.

Two scripted peers are the nodes. `jobs` is on shard 12 of 16 and `logs` on shard 5.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web

import penstock
from penstock.client.address import Address, parse
from penstock.client.control.connection import ControlConnection
from penstock.client.control.owner_links import OwnerLinks
from penstock.core.cluster.status import OwnerMap
from penstock.core.errors import PenstockError, Refusal
from penstock.core.placement import shard_of, stream_key
from tests.client.scripted_peer import Line, Peer, peer, run, until

SHARDS = 16


def owners(nodes: dict[str, Peer], streams: dict[str, str]) -> dict[str, Any]:
    """The map in which these streams have these owners, and every other shard has none."""
    found: list[str | None] = [None] * SHARDS
    for stream, node in streams.items():
        found[shard_of(stream_key(stream), SHARDS)] = node
    return {"shards": SHARDS, "nodes": {name: one.url for name, one in nodes.items()}, "map": found}


async def greet(line: Line, known: dict[str, Any] | None) -> dict[str, Any]:
    hello = await line.read("hello")
    more = {} if known is None else {"owners": known}
    line.ok(hello, version="v1", features=[], server="scripted", bootId="b", **more)
    return hello


async def opened(server: Peer, known: dict[str, Any] | None, **options: Any) -> tuple[penstock.Client, Line]:
    """A client whose home is this peer."""

    async def connecting() -> penstock.Client:
        return await penstock.connect(server.url, **options)

    task = asyncio.ensure_future(connecting())
    line = await server.accept(greet=False)
    hello = await greet(line, known)
    assert hello["owners"] is True
    return await task, line


async def answer_enqueue(line: Line) -> dict[str, Any]:
    frame = await line.read("enqueue")
    line.ok(frame, id=frame["env"]["id"], seq=1)
    return frame


JOB = {"type": "job", "payload": 1}


@pytest.mark.promise(
    "Cluster", "the SDK sends each stream's requests to its owner, and everything else to its own node"
)
def test_requests_go_to_the_owner_once_it_is_reached():
    async def go():
        async with peer() as a, peer() as b:
            known = owners({"a": a, "b": b}, {"jobs": "b", "logs": "a"})
            client, home = await opened(a, known)
            first = asyncio.ensure_future(client.enqueue("jobs", JOB))
            link = await b.accept(greet=False)
            await answer_enqueue(home)  # which forwards it: nothing waits for the link
            await first
            assert (await greet(link, known))["owners"] is True
            await until(lambda: client._owners.of("jobs") is not client._connection)
            second = asyncio.ensure_future(client.enqueue("jobs", JOB))
            await answer_enqueue(link)
            await second
            for stream in ("logs", "other"):  # owned by the home, and by no node
                other = asyncio.ensure_future(client.enqueue(stream, JOB))
                await answer_enqueue(home)
                await other
            await client.close()

    run(go())


def test_requests_of_a_stream_keep_their_order_while_the_link_opens():
    async def go():
        async with peer() as a, peer() as b:
            known = owners({"a": a, "b": b}, {"jobs": "b"})
            client, home = await opened(a, known)
            first = asyncio.ensure_future(client.enqueue("jobs", JOB))
            early = await home.read("enqueue")
            await greet(await b.accept(greet=False), known)
            await until(lambda: client._owners.of("jobs") is not client._connection)
            second = asyncio.ensure_future(client.enqueue("jobs", JOB))
            late = await home.read("enqueue")  # behind the first one
            for frame in (early, late):
                home.ok(frame, id=frame["env"]["id"], seq=1)
            await asyncio.gather(first, second)
            await client.close()

    run(go())


def test_without_a_cluster_nothing_else_is_dialed():
    async def go():
        async with peer() as a:
            client, home = await opened(a, None)
            for stream in ("jobs", "logs"):
                sending = asyncio.ensure_future(client.enqueue(stream, JOB))
                await answer_enqueue(home)
                await sending
            assert client._owners.map is None and len(a.lines) == 1
            await client.close()

    run(go())


@pytest.mark.promise(
    "Cluster", "requests that a node leaves unanswered when it ends are sent to another node, by their ids"
)
def test_a_request_at_an_owner_that_ends_is_sent_again_at_another_node():
    async def go():
        async with peer() as a, peer() as b:
            known = owners({"a": a, "b": b}, {"jobs": "b"})
            client, home = await opened(a, known)
            sending = asyncio.ensure_future(client.enqueue("jobs", JOB))
            await answer_enqueue(home)
            await sending
            link = await b.accept(greet=False)
            await greet(link, known)
            await until(lambda: client._owners.of("jobs") is not client._connection)
            sending = asyncio.ensure_future(client.enqueue("jobs", JOB))
            sent = await link.read("enqueue")
            b.close()
            await link.cut()
            again = await a.accept(greet=False)
            await greet(again, owners({"a": a}, {"jobs": "a"}))
            assert (await answer_enqueue(again))["env"] == sent["env"], "the same bytes"
            await sending
            await client.close()

    run(go())


def test_a_client_whose_own_node_ends_goes_to_another_one():
    async def go():
        async with peer() as a, peer() as b:
            client, home = await opened(a, owners({"a": a, "b": b}, {"logs": "a"}))
            a.close()
            await home.cut()
            line = await b.accept(greet=False)
            await greet(line, owners({"b": b}, {"logs": "b"}))
            sending = asyncio.ensure_future(client.enqueue("logs", JOB))
            await answer_enqueue(line)
            await sending
            assert client.url == b.url
            await client.close()

    run(go())


def test_a_node_that_hangs_is_left_when_the_owners_change():
    async def go():
        async with peer() as a, peer() as b:
            client, home = await opened(a, owners({"a": a, "b": b}, {"logs": "a", "jobs": "b"}))
            sending = asyncio.ensure_future(client.enqueue("jobs", JOB))
            await answer_enqueue(home)
            await sending
            link = await b.accept(greet=False)
            await greet(link, owners({"a": a, "b": b}, {"logs": "a", "jobs": "b"}))
            await until(lambda: client._owners.of("jobs") is not client._connection)
            sending = asyncio.ensure_future(client.enqueue("jobs", JOB))
            sent = await link.read("enqueue")  # the node stops here, and its sockets stay open
            now = owners({"a": a}, {"logs": "a", "jobs": "a"})
            home.say({"type": "owners", "owners": now})
            await b.accept(greet=False)  # the probe, which is not answered
            again = await a.accept(greet=False)  # and not to the node that hangs
            await greet(again, now)
            assert (await answer_enqueue(again))["env"] == sent["env"]
            await sending
            await client.close()

    run(go())


@pytest.mark.promise("Cluster", "a move costs an SDK client a pause and no error")
def test_refusals_of_a_shard_that_moves_are_repeated():
    async def go():
        async with peer() as a:
            client, home = await opened(a, owners({"a": a}, {"jobs": "a"}))
            sending = asyncio.ensure_future(client.enqueue("jobs", JOB))
            for code in ("Unreachable", "Draining"):
                home.refuse(await home.read("enqueue"), code, retryAfterMs=1)
            await answer_enqueue(home)
            await sending
            pulling = asyncio.ensure_future(client.pull("jobs"))
            home.refuse(await home.read("pull"), "Unreachable")
            home.ok(await home.read("pull"), deliveries=[])
            assert await pulling == []
            sending = asyncio.ensure_future(client.enqueue("jobs", JOB))
            home.refuse(await home.read("enqueue"), "StreamFull")
            with pytest.raises(PenstockError, match="StreamFull"):
                await sending
            await client.close()

    run(go())


def test_a_subscription_opens_at_the_owner_and_again_where_the_owner_is():
    async def go():
        async with peer() as a, peer() as b:
            known = owners({"a": a, "b": b}, {"jobs": "b"})
            client, home = await opened(a, known)
            subscription = client.subscribe("jobs", credit=2)
            opening = asyncio.ensure_future(subscription.open())
            link = await b.accept(greet=False)
            await greet(link, known)
            await link.agree()
            await opening
            link.deliver(1)
            delivery = await anext(subscription)
            moved = owners({"a": a, "b": b}, {"jobs": "a"})
            home.say({"type": "owners", "owners": moved})
            await until(lambda: client._owners.map is not None and "a" in client._owners.map.map)
            await link.cut()
            while (line := await b.accept(greet=False)) is not None:  # its link, or a probe
                if (await greet(line, moved)).get("owners"):
                    break
            assert (await home.agree())["credit"] == 2
            assert delivery.is_lost
            home.deliver(1, attempt=2)
            assert (await anext(subscription)).attempt == 2
            leaving = asyncio.ensure_future(client.close())
            await leaving

    run(go())


def test_an_owner_that_cannot_be_reached_costs_a_hop():
    async def go():
        async with peer() as a, peer() as b:
            known = owners({"a": a, "b": b}, {"jobs": "b"})
            b.close()
            client, home = await opened(a, known)
            subscription = client.subscribe("jobs")
            opening = asyncio.ensure_future(subscription.open())
            await home.agree()
            await opening
            sending = asyncio.ensure_future(client.enqueue("jobs", JOB))
            await answer_enqueue(home)
            await sending
            closing = asyncio.ensure_future(client.close())
            await closing

    run(go())


@pytest.mark.promise("Cluster", "a token never leaves a door with TLS for a node's door without")
def test_only_a_client_over_tcp_asks_for_owners(tmp_path):
    """A WebSocket may be one over TLS, and a node that the map names has a plain port."""
    asked: list[dict[str, Any]] = []

    async def control(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        asked.append(msgspec.json.decode(await socket.receive_str()))
        answer = {"type": "ok", "reqId": "hello", "result": {"owners": {"shards": 16, "nodes": {}, "map": []}}}
        await socket.send_str(msgspec.json.encode(answer).decode())
        await socket.receive()
        return socket

    async def go():
        app = web.Application()
        app.router.add_get("/v1/control", control)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with penstock.connect(f"http://127.0.0.1:{port}"):
            pass
        await runner.cleanup()
        async with peer(str(tmp_path / "s")) as local:
            task = asyncio.ensure_future(_connected(local.url))
            line = await local.accept(greet=False)
            asked.append(await greet(line, None))
            await (await task).close()

    run(go())
    assert len(asked) == 2
    assert all("owners" not in hello for hello in asked)


@pytest.mark.promise("Cluster", "a token never leaves a door with TLS for a node's door without")
def test_owners_that_the_client_did_not_ask_for_are_not_used(tmp_path):
    async def go():
        async with peer(str(tmp_path / "s")) as home_peer, peer() as foreign:
            known = owners({"b": foreign}, {"jobs": "b"})
            task = asyncio.ensure_future(_connected(home_peer.url))
            home = await home_peer.accept(greet=False)
            await greet(home, known)
            client = await task
            home.say({"type": "owners", "owners": known})
            sending = asyncio.ensure_future(client.enqueue("jobs", JOB))
            await answer_enqueue(home)
            await sending
            assert client._owners.map is None and not client._owners._dialing and not foreign.lines
            assert client._connection.others == []
            await client.close()

    run(go())


TCP, LOCAL = "tcp://a.example:9787", "tcp://127.0.0.1:9787"


@pytest.mark.promise("Cluster", "a token that was given to a loopback address goes to no other machine")
@pytest.mark.parametrize(
    ("home", "has_token", "node", "is_used"),
    [
        (TCP, True, "tcp://b.example:9787", True),
        (TCP, True, "tcp://127.0.0.1:9788", True),
        (TCP, True, "wss://b.example", False),
        (TCP, False, "unix:/tmp/b", False),
        (TCP, True, "http://b.example", False),
        (TCP, True, "no address", False),
        (LOCAL, True, "tcp://b.example:9787", False),
        (LOCAL, True, "tcp://192.0.2.1:9787", False),
        (LOCAL, True, "tcp://127.0.0.1.example:9787", False),
        (LOCAL, True, "tcp://[::1]:9788", True),
        ("tcp://localhost:9787", True, "tcp://127.0.0.1:9788", True),
        ("tcp://localhost:9787", True, "tcp://b.example:9787", False),
        (LOCAL, False, "tcp://b.example:9787", True),
    ],
)
def test_a_token_goes_only_to_doors_like_that_of_the_home(home, has_token, node, is_used):
    dialed: list[str] = []

    async def dial(place: Address) -> Any:
        dialed.append(place.url)
        raise PenstockError(Refusal("Unreachable", "this is a test"))

    async def go() -> list[str]:
        at = ControlConnection(parse(home), "secret" if has_token else None, wants_owners=True)
        links = OwnerLinks(at, dial, dial)
        shards: list[str | None] = ["b"] * SHARDS
        links._changed(OwnerMap(shards=SHARDS, nodes={"b": node}, map=shards))
        assert links.of("jobs") is at
        await asyncio.gather(*links._dialing.values())
        return [place.url for place in at.others]

    assert asyncio.run(go()) == dialed == ([node] if is_used else [])


async def _connected(url: str) -> penstock.Client:
    return await penstock.connect(url)
