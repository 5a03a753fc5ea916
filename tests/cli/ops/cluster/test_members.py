"""`penstock cluster status|nodes|move|drain|leave` through NATS, with the keys of nodes as they write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client

from penstock.core.cluster.status import NodeReport, ShardReport
from penstock.journal.replicated.cluster_keys import entries
from penstock.server.ops.cluster.operator import find_buckets
from tests.cli.ops.cluster.conftest import CLUSTER, Command, ReportedNodes, clear

pytestmark = pytest.mark.usefixtures("created")
WithClient = Callable[[Callable[[Client], Any]], Any]
ALL = list(range(16))


@pytest.fixture(autouse=True)
def none_left(with_client: WithClient) -> None:
    """Each test begins without nodes."""
    with_client(clear)


async def decided(client: Client) -> dict[str, str]:
    """What the operator has decided."""
    buckets = await find_buckets(client, CLUSTER)
    found = {entry.key: (entry.value or b"").decode() for entry in await entries(buckets.config)}
    return {key: value for key, value in found.items() if key.startswith(("move.", "drain.", "repair."))}


@pytest.mark.promise("Cluster", "`cluster status` ends with exit code 3 when a shard has no owner")
def test_status_fails_when_a_shard_has_no_owner(
    command: Command, with_client: WithClient, nodes: ReportedNodes
) -> None:
    nodes.own(a=ALL[:8], b=ALL[8:])
    done = command("status")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0][:5] == ["shard", "owner", "state", "epoch", "offset"]
    assert rows[4][:5] == ["3", "a", "owning", "3", "43"] and rows[9][1] == "b"
    nodes.own(b=ALL[9:])
    done = command("status", "--json")
    assert done.returncode == 3
    assert [row["shard"] for row in json.loads(done.stdout)["shards"] if row["owner"] is None] == [8]
    assert "no node owns shard 8" in command("status").stderr


def test_nodes_are_listed_with_their_shards(command: Command, with_client: WithClient, nodes: ReportedNodes) -> None:
    nodes.own(a=ALL[:2], b=ALL[2:])
    done = command("nodes")
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("a "))
    assert "0,1" in row and "tcp://127.0.0.1:2a" in row and " up " in row
    assert [node["node"] for node in json.loads(command("nodes", "--json").stdout)] == ["a", "b"]


def test_a_move_is_decided_and_taken_back(command: Command, with_client: WithClient, nodes: ReportedNodes) -> None:
    nodes.own(a=ALL, b=[])
    assert command("move", "3", "b", "--wait", "0").returncode == 0
    assert with_client(decided) == {"move.3": "b"}
    assert "to move to `b`" in command("status").stdout
    done = command("move", "3", "a", "--json")
    assert json.loads(done.stdout)["done"] is True, "it is there"
    assert command("move", "3", "--auto").returncode == 0
    assert with_client(decided) == {}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["move", "3", "z"], "there is no node `z`"),
        (["move", "16", "a"], "there is no shard 16"),
        (["move", "3"], "give one of"),
        (["drain", "z"], "there is no node `z`"),
    ],
)
def test_a_decision_that_nothing_can_follow_is_refused(
    command: Command, with_client: WithClient, nodes: ReportedNodes, words: list[str], what: str
) -> None:
    nodes.own(a=ALL, b=[])
    done = command(*words)
    assert done.returncode == 1 and what in done.stderr and "hint: " in done.stderr
    assert with_client(decided) == {}


def test_a_move_that_does_not_happen_is_reported(
    command: Command, with_client: WithClient, nodes: ReportedNodes
) -> None:
    nodes.own(a=ALL, b=[])
    done = command("move", "3", "b", "--wait", "0.3")
    assert done.returncode == 1 and "did not reach `b`" in done.stderr


def test_a_drained_node_owns_nothing_and_may_own_again(
    command: Command, with_client: WithClient, nodes: ReportedNodes
) -> None:
    nodes.own(a=ALL, b=[])
    done = command("drain", "b")
    assert done.returncode == 0 and "`b` owns no shard" in done.stdout
    assert with_client(decided) == {"drain.b": "{}"}
    assert "draining" in command("nodes").stdout
    refused = command("drain", "a")
    assert refused.returncode == 1 and "only node" in refused.stderr, "a cluster needs an owner"
    assert command("drain", "b", "--undo").returncode == 0
    assert with_client(decided) == {}


def test_a_node_that_has_left_is_forgotten(command: Command, with_client: WithClient, nodes: ReportedNodes) -> None:
    nodes.own(a=ALL, b=[])
    done = command("leave", "b", "--wait", "0.3")
    assert done.returncode == 1 and "SIGTERM" in done.stderr, "its process still runs"
    assert with_client(decided) == {"drain.b": "{}"}, "and it stays drained"
    nodes.remove("b")
    with_client(clear)
    nodes.own(a=ALL)
    assert json.loads(command("leave", "b", "--json").stdout) == {"node": "b", "left": True}
    assert with_client(decided) == {}


def test_a_repair_uses_the_spool_with_the_most_rows(
    command: Command, with_client: WithClient, nodes: ReportedNodes
) -> None:
    halted = {5: ShardReport("halted", 2, 60, reason="bad")}
    more = {5: ShardReport("halted", 2, 70, reason="bad")}
    behind = {5: ShardReport("following")}
    found = {"a": halted, "b": more, "c": behind}
    nodes.report(**{name: NodeReport("0" * 16, at=1, shards=shards) for name, shards in found.items()})
    assert "damaged" in command("status").stderr
    refused = command("repair", "5", "--from", "c", "--yes")
    assert refused.returncode == 1 and "`c` cannot repair" in refused.stderr and "`a`, `b`" in refused.stderr
    refused = command("repair", "6", "--yes")
    assert refused.returncode == 1 and "is not damaged" in refused.stderr
    done = command("repair", "5", "--yes", "--wait", "0", "--json")
    assert json.loads(done.stdout) == {"shard": 5, "node": "b", "rows": 70, "done": False}
    assert with_client(decided) == {"repair.5": "b"}
    late = command("repair", "5", "--from", "a", "--yes", "--wait", "0.3")
    assert late.returncode == 1 and "no owner" in late.stderr, "no node runs here"
