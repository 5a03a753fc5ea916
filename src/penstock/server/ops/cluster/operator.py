"""A cluster as its operator reaches it through NATS, without a node: read its keys, decide, and wait until the nodes have done it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from nats.aio.client import Client
from nats.js.errors import APIError, NotFoundError

from penstock.core.cluster.status import ClusterStatus, ShardStatus
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.replicated.cluster_keys import (
    ask_repair,
    name_problem,
    read_status,
    set_drain,
    set_move,
    settings_of,
)
from penstock.journal.replicated.connection import NatsServersAddress, connect_servers
from penstock.journal.replicated.jetstream import ANSWER_S, FAILURES
from penstock.journal.replicated.membership import NODE, ClusterBuckets

READY_S = 20.0
"""How long servers may take to elect a leader, during which they answer nothing."""
ASK_EVERY_S = 0.25
NO_STORAGE = 10047
_NO_STORAGE = Refusal(
    "Unsupported",
    "the NATS servers have no room for the logs",
    hint="raise their `max_file_store`, or make smaller logs with `--shard-mib`",
)
T = TypeVar("T")


class ClusterOperator:
    """One connection to the servers of a cluster."""

    def __init__(self, client: Client, cluster: str, buckets: ClusterBuckets) -> None:
        self.client = client
        self.cluster = cluster
        self.buckets = buckets

    async def status(self) -> ClusterStatus:
        """Who owns what."""
        return await patiently(lambda: read_status(self.buckets, self.cluster))

    async def move(self, shard: int, node: str | None) -> None:
        """Have a node own a shard; None leaves it to the assignment."""
        status = await self.status()
        self._row(status, shard)
        if node is not None:
            state = next((found.state for found in status.nodes if found.node == node), None)
            if state != "up":
                refuse_node(node, state, status)
        await patiently(lambda: set_move(self.buckets, shard, node))

    async def drain(self, node: str, *, on: bool) -> None:
        """Have a node own nothing, or let it own shards again."""
        status = await self.status()
        if on and all(found.node != node for found in status.nodes):
            refuse_node(node, None, status)
        if on and not any(found.state == "up" and found.node != node for found in status.nodes):
            hint = "start another node first, or end this one with SIGTERM: its shards then wait for it"
            raise PenstockError(
                Refusal("InvalidRequest", f"`{node}` is the only node that could own shards", hint=hint)
            )
        await patiently(lambda: set_drain(self.buckets, node, on=on))

    async def repair(self, shard: int, node: str | None) -> tuple[str, int]:
        """Have a node write a new log of a damaged shard from its spool: this one, or the one that has most rows.

        Returns its name and how many rows it has. Raises PenstockError for a shard that is not damaged.
        """
        status = await self.status()
        row = self._row(status, shard)
        if not row.troubles:
            hint = "`penstock cluster status` shows the state of each shard"
            raise PenstockError(Refusal("InvalidRequest", f"the log of shard {shard} is not damaged", hint=hint))
        halted = {name: row.offsets.get(name, 0) for name in row.troubles}
        chosen = node or max(halted, key=lambda name: (halted[name], name))
        if chosen not in halted:
            hint = f"the nodes that stopped at the damage: {', '.join(f'`{name}`' for name in sorted(halted))}"
            raise PenstockError(Refusal("InvalidRequest", f"`{chosen}` cannot repair shard {shard}", hint=hint))
        await patiently(lambda: ask_repair(self.buckets, shard, chosen))
        return chosen, halted[chosen]

    @staticmethod
    def _row(status: ClusterStatus, shard: int) -> ShardStatus:
        if not 0 <= shard < len(status.shards):
            hint = f"shards are numbered from 0 to {len(status.shards) - 1}"
            raise PenstockError(Refusal("InvalidRequest", f"there is no shard {shard}", hint=hint))
        return status.shards[shard]

    async def forget(self, node: str) -> None:
        """Remove what is known of a node that has left.

        Nodes forget it only when its key is deleted: a key that has ended by its age tells them nothing.
        """
        await patiently(lambda: set_drain(self.buckets, node, on=False))
        await patiently(lambda: self.buckets.live.delete(NODE + node))

    async def until(self, is_reached: Callable[[ClusterStatus], bool], seconds: float) -> ClusterStatus | None:
        """The first status for which this holds; None if it does not come in time."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    status = await self.status()
                    if is_reached(status):
                        return status
                    await asyncio.sleep(ASK_EVERY_S)
        except TimeoutError:
            return None


def refuse_node(node: str, state: str | None, status: ClusterStatus) -> None:
    """Raise why a node cannot be used, with the names of those that can."""
    up = ", ".join(f"`{found.node}`" for found in status.nodes if found.state == "up")
    hint = f"the nodes that can: {up}" if up else "no node is up: start one with `penstock up --join`"
    message = f"there is no node `{node}`" if state is None else f"the node `{node}` is {state}"
    raise PenstockError(Refusal("InvalidRequest", message, hint=hint))


def lasting_problem(error: Exception) -> Refusal | None:
    """What an answer of the servers says that does not change by itself; None if a later answer may be another."""
    return _NO_STORAGE if isinstance(error, APIError) and error.err_code == NO_STORAGE else None


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of the servers, also when they are about to elect a leader. Raises PenstockError."""
    reason = ""
    try:
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    return await ask()
                except NotFoundError:
                    raise
                except FAILURES as error:
                    if (problem := lasting_problem(error)) is not None:
                        raise PenstockError(problem) from None
                    reason = f": {error}" if str(error) else ""
                    await asyncio.sleep(ASK_EVERY_S)
    except TimeoutError:
        hint = "a majority of the NATS servers must run, and the user needs the permissions that `penstock cluster create --print-permissions` lists"
        message = f"the NATS servers did not answer within {READY_S:g} s{reason}"
        raise PenstockError(Refusal("Timeout", message, hint=hint)) from None


@asynccontextmanager
async def connected_servers(address: NatsServersAddress, cluster: str) -> AsyncIterator[Client]:
    """A connection for one command."""
    if problem := name_problem(cluster, "a cluster"):
        raise PenstockError(problem)
    client = await connect_servers(address, "penstock command")
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def operated(address: NatsServersAddress, cluster: str) -> AsyncIterator[ClusterOperator]:
    """A cluster that exists. Raises PenstockError."""
    async with connected_servers(address, cluster) as client:
        yield ClusterOperator(client, cluster, await find_buckets(client, cluster))


async def find_buckets(client: Client, cluster: str) -> ClusterBuckets:
    """The buckets of a cluster, which only `create` makes. Raises PenstockError if it was not created."""
    js = client.jetstream(timeout=ANSWER_S)

    async def find() -> ClusterBuckets:
        return ClusterBuckets(await js.key_value(f"{cluster}-live"), await js.key_value(f"{cluster}-config"))

    try:
        buckets = await patiently(find)
        if await patiently(lambda: settings_of(buckets)) is not None:
            return buckets
    except NotFoundError:
        pass
    hint = "check the name, or make it with `penstock cluster create`"
    raise PenstockError(Refusal("InvalidRequest", f"there is no cluster `{cluster}` on these servers", hint=hint))
