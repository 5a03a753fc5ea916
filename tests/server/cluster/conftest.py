"""Nodes in this process, on three NATS servers that all tests of this folder share; each test has a cluster of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.core.errors import Refusal
from penstock.core.scopes import OPERATOR
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from penstock.journal.replicated.cluster_keys import create
from penstock.journal.replicated.connection import NatsServersAddress
from penstock.server.cells.messages import CellRequest
from penstock.server.cluster.join import JoinOptions
from penstock.server.cluster.nats_client import end_tasks
from penstock.server.cluster.node import ClusterNode
from penstock.server.config.load import Config
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.open_cell import open_cell
from tests.cluster_node import until
from tests.journal.replicated.conftest import connected
from tests.nats_servers import NatsServers

WAIT_S = 120.0
LOOK_S = 0.02
BYTES_MAX = 2 * 1024 * 1024
LEASE_MS = 3_000


@pytest.fixture(scope="package")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    found = NatsServers(tmp_path_factory.mktemp("nats"))
    yield found
    found.close()


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the body of a test with a deadline; at its end, show where it is."""

    async def bounded() -> None:
        task = asyncio.ensure_future(work())
        done, _ = await asyncio.wait([task], timeout=2 * WAIT_S)
        if not done:
            for one in asyncio.all_tasks():
                one.print_stack()
            await end_tasks([task])
        await task

    asyncio.run(bounded())


async def eventually(is_true: Callable[[], Any], what: str = "it") -> Any:
    """The first result that is true."""
    until_s = asyncio.get_running_loop().time() + WAIT_S
    while not (found := is_true()):
        assert asyncio.get_running_loop().time() < until_s, f"{what} does not happen"
        await asyncio.sleep(LOOK_S)
    return found


async def ask(node: ClusterNode, route: str, stream: str, **body: Any) -> Any:
    """What the owner of a stream answers, by way of this node."""
    data = msgspec.json.encode({"to" if route == "enqueue" else "stream": stream, **body})
    request = CellRequest(0, shard_of_stream(stream), route, (), {}, "here", OPERATOR, data, False)
    said = await node.ask(request)
    return msgspec.json.decode(said) if isinstance(said, bytes) else said


AGAIN = {"Unreachable", "JournalUnavailable", "Draining"}
"""How a shard without a lease refuses a request, which may then be repeated: a machine that is too busy for a lease costs one."""


async def asked(node: ClusterNode, route: str, stream: str, **body: Any) -> Any:
    """As `ask`, repeated until a shard that serves has answered."""
    until_s = asyncio.get_running_loop().time() + WAIT_S
    while isinstance(said := await ask(node, route, stream, **body), Refusal) and said.code in AGAIN:
        assert asyncio.get_running_loop().time() < until_s, said
        await asyncio.sleep(LOOK_S)
    return said


def envelope(name: str) -> dict[str, Any]:
    return {"id": name, "ts": "2026-01-01T00:00:00Z", "type": "note", "payload": name}


STREAM = "jobs/a"
SHARD = shard_of_stream(STREAM)


async def served(node: ClusterNode, owner: str | None = None) -> None:
    """Until the shard has an owner that serves, or this one."""

    def is_served() -> bool:
        row = node.status().shards[SHARD]
        return row.state == "owning" and owner in (None, row.owner)

    await eventually(is_served, "an owner")


async def fill(node: ClusterNode, *names: str, stream: str = STREAM) -> None:
    """Keep envelopes; their ids make it safe to repeat."""
    for name in names:
        assert (await asked(node, "enqueue", stream, envelope=envelope(name)))["id"] == name


async def pulled(node: ClusterNode, count: int, stream: str = STREAM) -> list[str]:
    """What one pull gets, as soon as it is so much: what a lost answer had returns when its lease ends."""
    until_s = asyncio.get_running_loop().time() + WAIT_S
    while True:
        taken = await asked(node, "pull", stream, max=100, lease_ms=LEASE_MS)
        if len(taken["deliveries"]) >= count:
            return [one["deliver"]["id"] for one in taken["deliveries"]]
        assert asyncio.get_running_loop().time() < until_s, taken
        await asyncio.sleep(LOOK_S)


class Nodes:
    """The nodes of one cluster."""

    def __init__(self, servers: NatsServers, cluster: str, folder: Path, config: Config, stack: AsyncExitStack) -> None:
        self.servers = servers
        self.cluster = cluster
        self._folder = folder
        self._config = config
        self._stack = stack
        self.nodes: dict[str, ClusterNode] = {}

    async def start(self, name: str, **options: Any) -> ClusterNode:
        data = self._folder / name
        data.mkdir(exist_ok=True)
        scheduler = LoopScheduler(asyncio.get_running_loop())
        address = NatsServersAddress(tuple(self.servers.urls))
        join = JoinOptions(address, self.cluster, name, **options)
        node = ClusterNode(self._config, data, join, scheduler)
        front = open_cell(self._config, None, scheduler, authenticate=lambda token: None).runtime
        await node.start(front)
        node.listens("http://127.0.0.1:1", "tcp://127.0.0.1:2")
        self.nodes[name] = node
        self._stack.push_async_callback(self.stop, name)
        return node

    async def stop(self, name: str) -> None:
        if (node := self.nodes.pop(name, None)) is not None:
            await node.stop()


@asynccontextmanager
async def cluster(servers: NatsServers, name: str, folder: Path, config: Config | None = None) -> AsyncIterator[Nodes]:
    """A cluster without nodes."""
    async with connected(servers) as client:
        await asyncio.wait_for(until(lambda: create(client, name, bytes_max=BYTES_MAX)), WAIT_S)
    async with AsyncExitStack() as stack:
        yield Nodes(servers, name, folder, config or Config(), stack)
