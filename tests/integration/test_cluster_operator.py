"""What an operator and an SDK client see of a real cluster: commands at any node, moves, drains and the death of a node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import penstock
from penstock.core.placement import SHARDS, shard_of, stream_key
from tests.cluster_processes import CLUSTER, WAIT_S, ClusterProcesses, eventually
from tests.server_process import environment
from tests.server_template import run_command

COMMAND_S = 120


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
    owners = cluster.calm("a", "b", "c")
    target = next(name for name in "abc" if name != owners[3])
    done = command(cluster, "move", "3", target, "--json", node="a")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] is True
    assert command(cluster, "move", "3", "--auto").returncode == 0
    done = command(cluster, "drain", "b", "--json", node="c")
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


@pytest.mark.promise(
    "Cluster", "an SDK client sees no error while shards move, a node is drained, and its own node is killed"
)
def test_a_client_goes_on_through_a_drain_and_the_death_of_its_node(cluster: ClusterProcesses) -> None:
    async def act() -> None:
        cluster_calm = asyncio.to_thread(cluster.calm, "a", "b", "c")
        await cluster_calm
        async with penstock.connect(cluster.nodes["a"].control, retries=0, timeout=WAIT_S) as client:
            streams = on_every_shard()
            seen: dict[str, asyncio.Event] = {}
            sent: list[str] = []
            stop = asyncio.Event()

            async def send(stream: str) -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    name = f"{stream}#{number}"
                    arrived = seen[name] = asyncio.Event()
                    await client.enqueue(stream, {"id": name, "type": "t", "payload": number})
                    sent.append(name)
                    await arrived.wait()

            async def take(stream: str) -> None:
                async with client.subscribe(stream, credit=10) as jobs:
                    async for job in jobs:
                        seen[job.id].set()
                        if not job.is_lost:
                            await job.ack()

            takers = [asyncio.ensure_future(take(stream)) for stream in streams]
            senders = [asyncio.ensure_future(send(stream)) for stream in streams]

            async def more() -> None:
                """Each stream goes on."""
                counts = [len([one for one in sent if one.startswith(f"{stream}#")]) for stream in streams]

                def goes_on() -> bool:
                    failed = [task for task in (*takers, *senders) if task.done()]
                    assert not failed, failed
                    now = [len([one for one in list(sent) if one.startswith(f"{stream}#")]) for stream in streams]
                    return all(new >= old + 3 for old, new in zip(counts, now, strict=True))

                await asyncio.to_thread(eventually, "work on every shard", goes_on)

            await more()
            done = await asyncio.to_thread(command, cluster, "drain", "c", "--json")
            assert done.returncode == 0, done.stderr
            await more()
            cluster.nodes["a"].kill()  # its own node
            await more()
            stop.set()
            await asyncio.wait_for(asyncio.gather(*senders), WAIT_S)  # each has seen its last envelope
            for task in takers:
                task.cancel()
            await asyncio.gather(*takers, return_exceptions=True)

    asyncio.run(act())
    assert command(cluster, "drain", "c", "--undo").returncode == 0


def test_the_blocking_client_works_at_any_node_for_every_shard(cluster: ClusterProcesses) -> None:
    with penstock.connect_sync(cluster.nodes["b"].control) as client:
        for stream in (f"sync-{name}" for name in on_every_shard()):
            client.enqueue(stream, {"id": stream, "type": "t", "payload": 1})
            [delivery] = client.pull(stream, wait_ms=10_000)
            assert delivery.id == stream
            delivery.ack(confirm=True)


def test_a_node_that_is_gone_may_leave(cluster: ClusterProcesses) -> None:
    node = cluster.nodes["a"]
    node.kill()
    done = command(cluster, "leave", "a", "--json")
    assert done.returncode == 0, done.stderr
    cluster.calm("b", "c")
    assert [row["node"] for row in json.loads(command(cluster, "nodes", "--json").stdout)] == ["b", "c"]
    assert command(cluster, "status").returncode == 0


def test_check_finds_that_these_servers_are_open_to_every_client(cluster: ClusterProcesses, tmp_path: Path) -> None:
    found = json.loads(command(cluster, "check", "--json").stdout)["findings"]
    assert any(row["about"] == "access" and row["level"] == "warning" for row in found), found
    assert not [row for row in found if row["level"] == "error"], found
