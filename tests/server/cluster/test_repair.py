"""Shards whose log is lost, and their repair: on real NATS servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.js.errors import NotFoundError

from penstock.core.cluster.status import ShardReport
from penstock.core.placement import SHARDS
from penstock.journal.replicated.cluster_keys import ask_repair
from penstock.journal.replicated.jetstream import stream_name
from tests.nats_servers import NatsServers
from tests.server.cluster.conftest import SHARD, cluster, eventually, fill, pulled, run, served


@pytest.mark.more  # it waits until the end of a stream is certain
@pytest.mark.promise("Cluster", "a shard whose stream is gone halts, and a repair brings back what its nodes have kept")
def test_a_shard_without_its_stream_halts_until_it_is_repaired(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "rewound", tmp_path) as nodes:
            a, b = await asyncio.gather(nodes.start("a"), nodes.start("b"))
            await served(a)
            await fill(a, "one", "two")
            await eventually(lambda: all(one.shards[SHARD].report.offset >= 2 for one in (a, b)), "a copy")
            name = stream_name("rewound", SHARD, 1)
            await a.client.jetstream().delete_stream(name)
            with pytest.raises(NotFoundError):
                await a.client.jetstream().stream_info(name)
            halted = await eventually(
                lambda: next((one for one in (a, b) if one.shards[SHARD].report.state == "halted"), None), "an alarm"
            )
            assert halted.finding().state == "failed"
            assert halted.status().halted == [SHARD]
            await ask_repair(a.buckets, SHARD, halted.name)
            for node in (a, b):
                await eventually(lambda node=node: node.shards[SHARD].settings.generation == 2, "a new stream")
                await served(node)
            assert halted.status().shards[SHARD].epoch > 1
            await eventually(lambda: halted.finding().state == "ok", "a healthy cluster")
            await fill(b, "three")
            assert await pulled(a, 3) == ["one", "two", "three"]
            await eventually(lambda: all(one.shards[SHARD].report.offset >= 3 for one in (a, b)), "a copy")
            assert len(a.shards) == SHARDS

    run(work)


def test_a_repair_that_fails_opens_the_shard_again(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "fails", tmp_path) as nodes:
            a = await nodes.start("a")
            await served(a)
            shard = a.shards[SHARD]
            before = shard.journal
            shard.report = ShardReport("halted")
            await a.buckets.config.delete(f"shard.{SHARD}")  # what a repair takes for granted
            await ask_repair(a.buckets, SHARD, "a")
            await eventually(lambda: shard.journal not in (None, before), "another journal")
            assert shard.settings.generation == 1

    run(work)
