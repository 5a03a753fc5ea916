"""The page of a cluster, with an answer as a node gives it: who owns what, what moves, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import expect

from penstock.core.cluster.status import NodeReport, ShardReport, cluster_status
from tests.console.visiting import Visiting, heading
from tests.server_process import ServerProcess

NOW_US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("cluster"))
    yield process
    process.kill()


def answer() -> bytes:
    """Two nodes: `a` owns shard 0 and halted at shard 2, `b` owns shard 1; shard 3 has no owner."""
    a = {0: ShardReport("owning", 4, 120, NOW_US), 2: ShardReport("halted", 1, 7, reason="row 7 does not follow")}
    b = {1: ShardReport("owning", 2, 45, NOW_US)}
    reports = {
        name: NodeReport(
            "0" * 16, "0.1.0", "http://127.0.0.1:1", f"tcp://127.0.0.1:2{name}", 1, NOW_US, NOW_US, ok, shards=shards
        )
        for name, ok, shards in (("a", True, a), ("b", False, b))
    }
    return msgspec.json.encode(cluster_status("prod", 4, reports, ["a", "b"], {1: "a"}, ["b"]))


@pytest.mark.promise("Console", "the page of a cluster shows owners, moves, shards without an owner, and damage")
def test_owners_moves_and_damage_are_shown(server: ServerProcess, visit: Visiting) -> None:
    visited = visit(server)
    page = visited.page
    page.route("**/v1/cluster", lambda route: route.fulfill(body=answer(), content_type="application/json"))
    visited.sign_in("#/cluster")
    heading(page, "Cluster")
    expect(page.get_by_text("prod: 4 shards, 2 nodes")).to_be_visible()
    shards = page.get_by_role("table", name="Shards").get_by_role("row")
    expect(shards.nth(1)).to_contain_text("owning")
    expect(shards.nth(1)).to_contain_text("120")
    expect(shards.nth(2)).to_contain_text("to move to a")
    expect(shards.nth(3)).to_contain_text("a: row 7 does not follow")
    expect(shards.nth(4)).to_contain_text("none")
    expect(page.get_by_text("2 shards without an owner")).to_be_visible()
    nodes = page.get_by_role("table", name="Nodes").get_by_role("row")
    expect(nodes.nth(1)).to_contain_text("verified")
    expect(nodes.nth(2)).to_contain_text("draining")
    expect(nodes.nth(2)).to_contain_text("unverified")


def test_a_server_alone_says_that_it_is_in_no_cluster(server: ServerProcess, visit: Visiting) -> None:
    page = visit(server).sign_in("#/cluster")
    expect(page.get_by_text("This server is not in a cluster")).to_be_visible()
    expect(page.get_by_text("penstock up --join")).to_be_visible()
