"""How a node joins: names, clusters that are missing, and servers that were not checked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.core.errors import PenstockError
from penstock.journal.replicated.connection import NatsServersAddress
from penstock.journal.replicated.server_check import ServerAbout
from penstock.server.cluster.join import JoinOptions, _check_servers
from penstock.server.cluster.node import ClusterNode
from tests.nats_servers import NatsServers
from tests.server.cluster.conftest import cluster, eventually, run

SOUND = ServerAbout(
    "n1", "2.15.1", 1024 * 1024, msgspec.convert({"config": {"sync_always": True}}, type(ServerAbout().jetstream))
)
LAZY = msgspec.structs.replace(SOUND, jetstream=ServerAbout().jetstream)


def test_servers_that_may_lose_messages_are_refused() -> None:
    options = JoinOptions(NatsServersAddress(("nats://a",)), "shop", "a")
    unsafe = msgspec.structs.replace(options, is_unsafe=True)
    assert _check_servers([SOUND] * 3, options, is_made=False) is None
    assert "describe" in (_check_servers([], options, is_made=True) or "")
    with pytest.raises(PenstockError, match="before they are on disk"):
        _check_servers([SOUND, SOUND, LAZY], options, is_made=True)
    assert "on disk" in (_check_servers([SOUND, SOUND, LAZY], unsafe, is_made=True) or "")
    with pytest.raises(PenstockError, match="3 are needed"):
        _check_servers([SOUND] * 2, options, is_made=False)


def test_a_node_starts_again_while_a_server_is_down() -> None:
    options = JoinOptions(NatsServersAddress(("nats://a",)), "shop", "a")
    assert "1 of 3" in (_check_servers([SOUND] * 2, options, is_made=True) or "")
    with pytest.raises(PenstockError, match="before they are on disk"):
        _check_servers([SOUND, LAZY], options, is_made=True)


def owners(node: ClusterNode) -> list[str | None]:
    return [row.owner if row.state == "owning" else None for row in node.status().shards]


def test_names_and_missing_clusters_are_refused(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "refusals", tmp_path) as nodes:
            with pytest.raises(PenstockError, match="cannot be named"):
                await nodes.start("a.b")
            nodes.cluster = "nowhere"
            with pytest.raises(PenstockError, match="there is no cluster"):
                await nodes.start("a")

    run(work)


def test_a_cluster_is_made_where_that_is_asked_for(servers: NatsServers, tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster(servers, "made", tmp_path) as nodes:
            a = await nodes.start("a", creates=True, advertise="a.example")
            await eventually(lambda: set(owners(a)) == {"a"}, "an owner")
            assert a.owners is not None
            assert a.owners.nodes == {"a": "tcp://a.example:2"}
            assert a.finding().state == "ok"
            assert "unverified" in a.finding().reason
            names = {family.name for family in a.metrics()}
            assert {
                "penstock_cluster_shards",
                "penstock_cluster_takeovers",
                "penstock_cluster_lease_age_seconds",
            } <= names
            assert a.report() == [{"node": "a", "up": True, "state": "up", "shards": list(range(16))}]

    run(work)
