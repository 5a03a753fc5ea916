"""The keys of a cluster, on real servers."""

import asyncio

import msgspec
import pytest

from penstock.core.cluster.status import NodeReport, ShardReport
from penstock.core.errors import PenstockError
from penstock.journal.replicated.cluster_keys import (
    Decisions,
    create,
    decode_report,
    name_problem,
    read_status,
    set_drain,
    set_move,
    settings_of,
)
from penstock.journal.replicated.jetstream import stream_name
from penstock.journal.replicated.membership import ClusterBuckets
from tests.cluster_node import until
from tests.journal.replicated.conftest import connected
from tests.nats_servers import NatsServers

BYTES_MAX = 1024 * 1024


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "ü", "x" * 33])
def test_names_that_subjects_cannot_have_are_refused(name: str) -> None:
    assert name_problem(name, "a node") is not None
    assert name_problem("Node-1_b", "a node") is None


def test_decisions_follow_their_keys() -> None:
    decisions = Decisions()
    assert decisions.note("move.3", b"a") and decisions.note("drain.b", b"{}")
    assert not decisions.note("move.3", b"a") and not decisions.note("drain.b", b"{}")
    assert decisions.note("move.3", b"c") and decisions.note("move.3", b"a")
    assert (decisions.moves, decisions.drains) == ({3: "a"}, {"b"})
    assert decisions.note("move.3", None) and decisions.note("drain.b", None)
    assert not decisions.note("move.3", None) and not decisions.note("drain.b", None)
    assert (decisions.moves, decisions.drains) == ({}, set())
    assert not decisions.note("shard.3", b"{}")


def test_a_report_of_another_version_is_none() -> None:
    assert decode_report(b"{}") is None
    report = NodeReport("1", shards={3: ShardReport("owning", 4)})
    assert decode_report(msgspec.json.encode(report)) == report


def test_a_cluster_is_made_once(servers: NatsServers) -> None:
    asyncio.run(check_create(servers))


async def check_create(servers: NatsServers) -> None:
    async with connected(servers) as client:
        buckets = await until(lambda: ClusterBuckets.open(client, "keys"))
        assert await settings_of(buckets) is None
        with pytest.raises(PenstockError, match="there is no cluster"):
            await read_status(buckets, "keys")
        made = await until(lambda: create(client, "keys", bytes_max=BYTES_MAX))
        assert len(bytes.fromhex(made.secret)) == 32
        first = await buckets.shard(15)
        assert await create(client, "keys", bytes_max=2 * BYTES_MAX) == made
        assert await buckets.shard(15) == first
        config = (await client.jetstream().stream_info(stream_name("keys", 15, 1))).config
        assert (config.max_bytes, config.num_replicas) == (BYTES_MAX, 3)
        report = NodeReport("1", shards={3: ShardReport("owning", 4)})
        await buckets.live.put("node.a", msgspec.json.encode(report))
        await set_move(buckets, 3, "b")
        await set_drain(buckets, "a", on=True)
        status = await read_status(buckets, "keys")
        assert (status.shards[3].owner, status.shards[3].wanted, status.nodes[0].state) == ("a", "b", "draining")
        await set_move(buckets, 3, None)
        await set_drain(buckets, "a", on=False)
        status = await read_status(buckets, "keys")
        assert (status.shards[3].wanted, status.nodes[0].state) == (None, "up")
