"""What an operator and an SDK client see of a real cluster: commands at any node, moves, drains and the death of a node."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import penstock
from penstock.client import Client
from penstock.core.errors import LeaseLost
from penstock.core.placement import SHARDS, shard_of, stream_key
from tests.cluster_processes import CLUSTER, WAIT_S, ClusterProcesses, eventually
from tests.server_process import environment
from tests.server_template import run_command

COMMAND_S = 240
CALM_S = 2 * WAIT_S
"""How long a client may wait for shards that lose their leases on a busy machine, one after the other."""
LOOK_S = 0.05
NODES = ("a", "b", "c")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def command(cluster: ClusterProcesses, *words: str, node: str | None = None) -> CompletedProcess[str]:
    """A command through NATS, or through a node with the token of its operator."""
    if node is None:
        more = {"PENSTOCK_JOIN": ",".join(cluster.servers.urls), "PENSTOCK_CLUSTER": CLUSTER}
    else:
        token = (cluster.nodes[node].data / "run" / "operator.token").read_text().strip()
        more = {"PENSTOCK_URL": cluster.nodes[node].http.url, "PENSTOCK_TOKEN": token}
    return run_command(["cluster", *words], cluster.folder, environment(**more), None, timeout=COMMAND_S)


def on_every_shard() -> list[str]:
    """One stream for each shard."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < SHARDS:
        stream = f"each/{number}"
        found.setdefault(shard_of(stream_key(stream)), stream)
        number += 1
    return list(found.values())


@pytest.mark.promise("Cluster", "the commands `status`, `nodes`, `move` and `drain` work at any node, and through NATS")
def test_a_shard_moves_and_a_node_is_drained_by_commands(cluster: ClusterProcesses) -> None:
    owners = cluster.calm(*NODES)
    target = next(name for name in "abc" if name != owners[3])
    done = command(cluster, "move", "3", target, "--wait", "120", "--json", node="a")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] is True
    assert command(cluster, "move", "3", "--auto").returncode == 0
    done = command(cluster, "drain", "b", "--wait", "120", "--json", node="c")
    assert done.returncode == 0, done.stderr
    done = command(cluster, "nodes", "--json")
    rows = {row["node"]: row for row in json.loads(done.stdout)}
    assert rows["b"]["state"] == "draining" and rows["b"]["owns"] == []
    assert len(rows["a"]["owns"]) + len(rows["c"]["owns"]) == SHARDS
    assert command(cluster, "drain", "b", "--undo", node="b").returncode == 0

    def owns_again() -> bool:
        return bool(next(row for row in cluster.status("a")["nodes"] if row["node"] == "b")["owns"])

    eventually("shards at the node that may own some again", owns_again)
    done = command(cluster, "move", "3", "nobody", node="a")
    assert done.returncode == 1 and "there is no node" in done.stderr


class Work:
    """Each stream has a sender, which waits for each envelope, and a subscription. Neither ever sees an error."""

    def __init__(self, client: Client, streams: list[str]) -> None:
        self._client = client
        self._run = os.urandom(4).hex()
        self._seen: dict[str, asyncio.Event] = {}
        self._sent = dict.fromkeys(streams, 0)
        self._stop = asyncio.Event()
        self._takers = [asyncio.ensure_future(self._take(stream)) for stream in streams]
        self._senders = [asyncio.ensure_future(self._send(stream)) for stream in streams]

    async def _send(self, stream: str) -> None:
        while not self._stop.is_set():
            name = f"{stream}#{self._run}-{self._sent[stream] + 1}"
            arrived = self._seen[name] = asyncio.Event()
            await self._client.enqueue(stream, {"id": name, "type": "t", "payload": 1})
            self._sent[stream] += 1
            await arrived.wait()

    async def _take(self, stream: str) -> None:
        async with self._client.subscribe(stream, credit=10) as jobs:
            async for job in jobs:
                if (arrived := self._seen.get(job.id)) is not None:  # else an earlier run has left it
                    arrived.set()
                if not job.is_lost:
                    await job.ack()

    async def more(self, cluster: ClusterProcesses, node: str) -> None:
        """Until each stream has gone on."""
        goals = {stream: count + 3 for stream, count in self._sent.items()}
        until_s = time.monotonic() + CALM_S
        while late := [stream for stream, goal in goals.items() if self._sent[stream] < goal]:
            for task in (*self._takers, *self._senders):
                if task.done():
                    task.result()
                    raise AssertionError("a task ended")
            if time.monotonic() > until_s:
                rows = await asyncio.to_thread(cluster.status, node)
                raise AssertionError(f"no work on {late}: {rows['shards']}")
            await asyncio.sleep(LOOK_S)

    async def end(self) -> None:
        """Until each sender has seen its last envelope."""
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._senders), CALM_S)
        for task in self._takers:
            task.cancel()
        await asyncio.gather(*self._takers, return_exceptions=True)


@pytest.mark.promise("Cluster", "an SDK client sees no error while a node is drained")
def test_a_client_goes_on_through_a_drain(cluster: ClusterProcesses) -> None:
    async def act() -> None:
        await asyncio.to_thread(cluster.calm, *NODES)
        async with penstock.connect(cluster.nodes["a"].control, retries=0, timeout=WAIT_S) as client:
            work = Work(client, on_every_shard()[:4])
            await work.more(cluster, "a")
            done = await asyncio.to_thread(command, cluster, "drain", "c", "--wait", "120", "--json")
            assert done.returncode == 0, done.stderr
            await work.more(cluster, "a")
            await work.end()

    try:
        asyncio.run(act())
    finally:
        assert command(cluster, "drain", "c", "--undo").returncode == 0


@pytest.mark.more  # all shards move, and a machine that is too busy for a lease moves them again
@pytest.mark.promise(
    "Cluster", "an SDK client sees no error while shards move, a node is drained, and its own node is killed"
)
def test_a_client_goes_on_through_a_drain_and_the_death_of_its_node(cluster: ClusterProcesses) -> None:
    async def act() -> None:
        await asyncio.to_thread(cluster.calm, *NODES)
        async with penstock.connect(cluster.nodes["a"].control, retries=0, timeout=WAIT_S) as client:
            work = Work(client, on_every_shard())
            await work.more(cluster, "b")
            done = await asyncio.to_thread(command, cluster, "drain", "c", "--wait", "120", "--json")
            assert done.returncode == 0, done.stderr
            await work.more(cluster, "b")
            cluster.nodes["a"].kill()  # its own node
            await work.more(cluster, "b")
            await work.end()

    with cluster.disturbed():
        try:
            asyncio.run(act())
        finally:
            assert command(cluster, "drain", "c", "--undo").returncode == 0


def test_the_blocking_client_works_at_any_node_for_every_shard(cluster: ClusterProcesses) -> None:
    cluster.balanced(*NODES)
    numbers = itertools.count()
    with penstock.connect_sync(cluster.nodes["b"].control) as client:

        def is_settled(stream: str) -> bool:
            client.enqueue(stream, {"id": f"{stream}-{next(numbers)}", "type": "t", "payload": 1})
            deliveries = client.pull(stream, wait_ms=10_000)
            try:
                for delivery in deliveries:
                    delivery.ack(confirm=True)
            except LeaseLost:  # the shard has lost its owner meanwhile, and leases end with that
                return False
            return bool(deliveries)

        for stream in (f"sync-{name}" for name in on_every_shard()):
            eventually(f"a settle at {stream}", lambda stream=stream: is_settled(stream))


def test_a_node_that_is_gone_may_leave(cluster: ClusterProcesses) -> None:
    node = cluster.nodes["a"]
    node.kill()
    done = command(cluster, "leave", "a", "--json")
    assert done.returncode == 0, done.stderr
    cluster.calm("b", "c")
    assert [row["node"] for row in json.loads(command(cluster, "nodes", "--json").stdout)] == ["b", "c"]
    eventually("an owner of each shard", lambda: command(cluster, "status").returncode == 0)


def test_check_finds_that_these_servers_are_open_to_every_client(cluster: ClusterProcesses, tmp_path: Path) -> None:
    found = json.loads(command(cluster, "check", "--json").stdout)["findings"]
    assert any(row["about"] == "access" and row["level"] == "warning" for row in found), found
    assert not [row for row in found if row["level"] == "error"], found
