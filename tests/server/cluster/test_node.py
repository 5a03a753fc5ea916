"""Nodes in one process: how they join, who owns what, and how a shard goes from one to the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from penstock.core.errors import PenstockError
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from penstock.journal.replicated.cluster_keys import set_drain, set_move
from penstock.server.cluster.nats_client import NatsNotices, end_tasks
from penstock.server.cluster.node import ClusterNode, advertised
from tests.nats_servers import NatsServers
from tests.server.cluster.conftest import ask, cluster, envelope, eventually, run

STREAM = "jobs/a"
SHARD = shard_of_stream(STREAM)


def owners(node: ClusterNode) -> list[str | None]:
    return [row.owner if row.state == "owning" else None for row in node.status().shards]


def test_a_url_gets_the_host_that_clients_learn() -> None:
    assert advertised("http://127.0.0.1:8787", None) == "http://127.0.0.1:8787"
    assert advertised("tcp://127.0.0.1:9787", "a.example") == "tcp://a.example:9787"
    assert advertised("http://[::1]:8787", "::2") == "http://[::2]:8787"
    assert advertised("unix:/run/x", "a.example") == "unix:/run/x"


def test_errors_of_the_connection_are_counted() -> None:
    notices = NatsNotices()
    notices("disconnected", "")
    for _ in range(3):
        notices("error", "no servers")
    assert notices.errors == 3


def test_tasks_that_swallow_a_cancellation_end_too() -> None:
    async def stubborn() -> None:
        for _ in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def work() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        await end_tasks([task])
        assert task.done()

    run(work)


@pytest.mark.promise("Cluster", "an operator moves a shard, and drains a node, without the loss of an envelope")
def test_shards_go_where_an_operator_says(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "moves", tmp_path) as nodes:
            a, b = await asyncio.gather(nodes.start("a"), nodes.start("b"))
            await eventually(lambda: owners(a) == owners(b) and Counter(owners(a)) == {"a": 8, "b": 8}, "a balance")
            assert (await ask(a, "enqueue", STREAM, envelope=envelope("one")))["id"] == "one"
            for name in ("a", "b", "a"):
                await set_move(a.buckets, SHARD, name)
                await eventually(lambda name=name: owners(a)[SHARD] == owners(b)[SHARD] == name, f"move to {name}")
                assert (await ask(a, "enqueue", STREAM, envelope=envelope(f"at {name}")))["id"] == f"at {name}"
                assert (await ask(b, "stats", STREAM)).code == "InvalidRequest"  # a route without a body
            taken = await ask(b, "pull", STREAM, max=9)
            assert [one["deliver"]["id"] for one in taken["deliveries"]] == ["one", "at a", "at b"]
            await set_move(a.buckets, SHARD, None)
            await set_drain(a.buckets, "a", on=True)
            await eventually(lambda: set(owners(b)) == {"b"}, "a drained node")
            assert [node.state for node in b.status().nodes] == ["draining", "up"]
            with pytest.raises(PenstockError, match="runs already"):
                await nodes.start("b")
            await set_drain(a.buckets, "a", on=False)

    run(work)


def test_a_node_that_leaves_hands_over_what_it_has(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "leaves", tmp_path) as nodes:
            a, b = await asyncio.gather(nodes.start("a"), nodes.start("b"))
            await eventually(lambda: None not in owners(a) and owners(a) == owners(b), "one map")
            await ask(a, "enqueue", STREAM, envelope=envelope("one"))
            waiting = asyncio.create_task(ask(b, "pull", "jobs/waits", wait_ms=60_000))
            await asyncio.sleep(0)
            leaver, stayer = (a, b) if owners(a)[shard_of_stream("jobs/waits")] == "a" else (b, a)
            await leaver.drain(1.0)
            await eventually(lambda: set(owners(stayer)) == {stayer.name}, "a hand-over")
            if stayer is b:  # the request went to the node that left, and is asked again at the next owner
                await ask(b, "enqueue", "jobs/waits", envelope=envelope("late"))
                assert (await waiting)["deliveries"][0]["deliver"]["id"] == "late"
            else:
                waiting.cancel()
            await nodes.stop(leaver.name)
            taken = await ask(stayer, "pull", STREAM)
            assert taken["deliveries"][0]["deliver"]["id"] == "one"

    run(work)
