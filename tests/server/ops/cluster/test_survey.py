"""What a check finds at servers that let every client in, and of streams and nodes that it is given."""

from __future__ import annotations

import asyncio

import pytest
from nats.js import api

from penstock.core.cluster.status import ClusterStatus, NodeStatus, ShardStatus
from penstock.core.errors import PenstockError
from penstock.journal.replicated.cluster_keys import create
from penstock.journal.replicated.connection import NatsServersAddress
from penstock.journal.replicated.jetstream import stream_config
from penstock.server.ops.cluster.operator import connected_servers, patiently
from penstock.server.ops.cluster.survey import ClusterFinding, _nodes, _stream, survey
from tests.cluster_node import until
from tests.nats_servers import NatsServers

CLUSTER = "open"
WAIT_S = 60.0


@pytest.mark.promise("Cluster", "`cluster check` finds that every client may publish on the subjects of a cluster")
def test_servers_without_an_account_for_the_cluster_are_found(servers: NatsServers) -> None:
    async def once() -> list[ClusterFinding]:
        address = NatsServersAddress(tuple(servers.urls))
        try:
            async with connected_servers(address, CLUSTER) as client:
                await patiently(lambda: create(client, CLUSTER, bytes_max=8_000_000))
                return [finding async for finding in survey(client, address, CLUSTER)]
        except PenstockError as error:  # they are still starting
            raise OSError from error

    found = asyncio.run(asyncio.wait_for(until(once), WAIT_S))
    warnings = {finding.about: finding.message for finding in found if finding.level == "warning"}
    assert "unverified" in warnings["servers"]
    assert "every client of these servers may publish" in warnings["access"]
    assert "no node is up" in warnings["nodes"]
    assert not [finding for finding in found if finding.level == "error"]


def info(used: int = 0, leader: str | None = "n1", lagging: bool = False, **changes: object) -> api.StreamInfo:
    config = stream_config("c-shard-3-g1", 1_000).evolve(**changes)
    state = api.StreamState(messages=1, bytes=used, first_seq=1, last_seq=1, consumer_count=0)
    peers = [api.PeerInfo("n2", True, False), api.PeerInfo("n3", not lagging, False)]
    return api.StreamInfo(config, state, cluster=api.ClusterInfo(leader, replicas=peers))


@pytest.mark.parametrize(
    ("found", "level", "what"),
    [
        (info(max_age=60), "error", "max_age"),
        (info(num_replicas=1), "error", "num_replicas"),
        (info(leader=None), "error", "no leader"),
        (info(lagging=True), "warning", "lacks n3"),
        (info(used=700), "warning", "70 % full"),
        (info(used=900), "error", "90 % full"),
    ],
)
def test_a_stream_that_is_not_as_it_must_be_is_named(found: api.StreamInfo, level: str, what: str) -> None:
    [finding] = _stream(3, found, stream_config("c-shard-3-g1", 1_000))
    assert (finding.level, finding.about) == (level, "shard 3")
    assert what in finding.message and finding.hint


def test_a_stream_as_it_must_be_is_no_finding() -> None:
    assert _stream(3, info(used=600), stream_config("c-shard-3-g1", 1_000)) == []


def status(troubles: dict[str, str] | None = None, **nodes: str) -> ClusterStatus:
    """One shard, owned by the first node, and nodes with these versions."""
    rows = [
        NodeStatus(name, "up", version, "", None, [0] if name == "a" else [], name != "u", 1, 1)
        for name, version in nodes.items()
    ]
    owner = "a" if "a" in nodes else None
    return ClusterStatus("c", [ShardStatus(0, owner, "owning" if owner else "none", troubles=troubles or {})], rows)


def test_nodes_of_two_versions_and_unverified_ones_are_named() -> None:
    found = _nodes(status(a="1.0", u="1.1"))
    assert [finding.level for finding in found] == ["warning", "warning", "ok"]
    assert "1.0, 1.1" in found[0].message and "`u` is unverified" in found[1].message


def test_a_shard_without_an_owner_and_one_that_is_damaged_are_errors() -> None:
    found = _nodes(status(b="1.0", troubles={"b": "row 7 is missing"}))
    assert [finding.level for finding in found] == ["error", "error"]
    assert "no node owns 0" in found[0].message and "row 7 is missing" in found[1].message
