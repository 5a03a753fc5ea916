"""Live files that make room in the log of a shard: on real NATS servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.journal.replicated.jetstream import stream_name
from penstock.server.cluster.node import ClusterNode
from tests.nats_servers import NatsServers
from tests.server.cluster.conftest import LOOK_S, SHARD, Nodes, cluster, eventually, fill, pulled, run, served


async def first_of(nodes: Nodes, node: ClusterNode, generation: int = 1) -> int:
    """The first message that the stream of the shard has."""
    name = stream_name(nodes.cluster, SHARD, generation)
    return int((await node.client.jetstream().stream_info(name)).state.first_seq)


@pytest.mark.more  # a shard changes its owner by silence
@pytest.mark.promise("Cluster", "a node whose log was purged while it was away goes on at a live file")
def test_a_node_that_was_away_finds_a_live_file(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "away", tmp_path) as nodes:
            a = await nodes.start("a")
            await served(a)
            await fill(a, "one", "two")
            report = await a.shards[SHARD].history.seal()
            assert report is not None and report.live_offset >= 2
            while True:  # until the log is purged up to the live file
                if await first_of(nodes, a) > 1:
                    break
                await asyncio.sleep(LOOK_S)
            await fill(a, "three")
            b = await nodes.start("b")
            behind = b.shards[SHARD]
            await eventually(lambda: behind.journal is not None and behind.journal.offset >= 3, "all rows")
            await nodes.stop("a")
            await served(b, "b")
            assert await pulled(b, 3) == ["one", "two", "three"]

    run(work)
