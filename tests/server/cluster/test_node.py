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
from tests.server.cluster.conftest import asked, cluster, eventually, fill, pulled, run

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
            await fill(a, "one")
            for name in ("a", "b", "a"):
                await set_move(a.buckets, SHARD, name)
                await eventually(lambda name=name: owners(a)[SHARD] == owners(b)[SHARD] == name, f"move to {name}")
                await fill(a, f"at {name}")
                assert (await asked(b, "stats", STREAM)).code == "InvalidRequest"  # a route without a body
            assert await pulled(b, 3) == ["one", "at a", "at b"]
            await set_move(a.buckets, SHARD, None)
            await set_drain(a.buckets, "a", on=True)
            await eventually(lambda: set(owners(b)) == {"b"}, "a drained node")
            await eventually(lambda: [node.state for node in b.status().nodes] == ["draining", "up"], "its state")
            with pytest.raises(
                PenstockError, match=r"runs already|another process"
            ):  # by its key, else by its directory
                await nodes.start("b")
            await set_drain(a.buckets, "a", on=False)

    run(work)


def test_a_node_that_leaves_hands_over_what_it_has(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "leaves", tmp_path) as nodes:
            a, b = await asyncio.gather(nodes.start("a"), nodes.start("b"))
            await eventually(lambda: owners(a) == owners(b) and Counter(owners(a)) == {"a": 8, "b": 8}, "a balance")
            await fill(a, "one")
            waits = next(f"waits/{n}" for n in range(1_000) if owners(a)[shard_of_stream(f"waits/{n}")] == "a")
            waiting = asyncio.create_task(asked(b, "pull", waits, wait_ms=60_000))
            await asyncio.sleep(0)
            await a.drain(1.0)
            await eventually(lambda: set(owners(b)) == {"b"}, "a hand-over")
            # The pull went to the node that leaves, and is asked again at the next owner.
            await fill(b, "late", stream=waits)
            assert (await waiting)["deliveries"][0]["deliver"]["id"] == "late"
            await nodes.stop("a")
            assert await pulled(b, 1) == ["one"]

    run(work)
