"""The cluster as one node sees it, from reports: what it hands over."""

from __future__ import annotations

import pytest

from penstock.core.cluster.status import NodeReport, ShardReport, ShardState
from penstock.core.placement import SHARDS
from penstock.server.cluster.cluster_view import ClusterView


def view(first: ShardState) -> ClusterView:
    """Two nodes; `a` owns all shards but the first, is to be drained, and says this of the first."""
    found = ClusterView("shop", "a")
    for name in ("a", "b"):
        found.nodes.refreshed(0, name)
    shards = {shard: ShardReport("owning", epoch=1) for shard in range(1, SHARDS)}
    found.reports = {"a": NodeReport("1", shards={0: ShardReport(first), **shards}), "b": NodeReport("2")}
    found.decisions.drains.add("a")
    return found


def test_a_halted_shard_does_not_hold_up_the_others() -> None:
    assert view("halted").to_release(0) == 1


@pytest.mark.parametrize("state", ["following", "taking"])
def test_one_shard_moves_at_a_time(state: ShardState) -> None:
    assert view(state).to_release(0) is None
