"""The status of a cluster, by what its nodes report."""

from penstock.core.cluster.assignment import ALIVE_US
from penstock.core.cluster.status import (
    NodeReport,
    ShardReport,
    cluster_status,
    live_reports,
    owner_map,
    owner_of,
)


def report(*, control: str | None = "tcp://127.0.0.1:1", leaving: bool = False, **shards: ShardReport) -> NodeReport:
    numbered = {int(name.removeprefix("s")): shard for name, shard in shards.items()}
    return NodeReport("00", control=control, leaving=leaving, shards=numbered)


def test_the_report_of_the_highest_epoch_makes_the_owner() -> None:
    reports = {
        "a": report(s0=ShardReport("owning", 3, 7)),
        "b": report(s0=ShardReport("recovering", 4, 9)),
        "c": report(s0=ShardReport("following", 5, 9)),
    }
    assert owner_of(0, reports, ["a", "b", "c"]) == ("b", reports["b"].shards[0])
    status = cluster_status("demo", 1, reports, ["a", "b", "c"])
    assert (status.shards[0].owner, status.shards[0].state, status.shards[0].epoch) == ("b", "recovering", 4)
    assert status.unowned == []
    assert cluster_status("demo", 1, reports, ["a", "c"]).shards[0].owner == "a"


def test_a_shard_without_an_owner_says_why() -> None:
    following = report(s0=ShardReport("following", 3, 7), s1=ShardReport("halted", 2, 5, reason="a hole"))
    reports = {"a": following, "b": report(s0=ShardReport("taking", 3, 7), s1=ShardReport("following", 2, 5))}
    status = cluster_status("demo", 3, reports, ["a", "b"], {1: "b"}, ["a"])
    assert [(row.state, row.epoch, row.offset) for row in status.shards] == [
        ("taking", 3, 7),
        ("halted", 2, 5),
        ("none", 0, 0),
    ]
    assert (status.shards[1].reason, status.shards[1].troubles, status.shards[1].wanted) == (
        "a hole",
        {"a": "a hole"},
        "b",
    )
    assert (status.unowned, status.halted) == ([0, 1, 2], [1])


def test_a_node_that_is_behind_is_no_damage() -> None:
    behind = report(
        s0=ShardReport("behind", 3, 2, reason="begins later"), s1=ShardReport("behind", reason="begins later")
    )
    status = cluster_status("demo", 2, {"a": report(s0=ShardReport("owning", 3, 7)), "b": behind}, ["a", "b"])
    assert status.halted == []
    assert [(row.owner, row.state, row.troubles) for row in status.shards] == [("a", "owning", {}), (None, "none", {})]
    assert status.shards[1].reason == "begins later"


def test_nodes_are_up_draining_leaving_or_gone() -> None:
    reports = {
        "a": report(s0=ShardReport("moving", 1)),
        "b": report(),
        "c": report(leaving=True),
        "d": report(s1=ShardReport("owning", 1)),
    }
    status = cluster_status("demo", 2, reports, ["a", "b", "c"], drains=["b"])
    assert [(node.node, node.state, node.owns) for node in status.nodes] == [
        ("a", "up", [0]),
        ("b", "draining", []),
        ("c", "leaving", []),
        ("d", "gone", []),
    ]


def test_nodes_live_by_the_times_of_the_servers() -> None:
    reports = {"a": (report(), 10), "b": (report(), 10 + ALIVE_US), "c": (report(), 11)}
    assert live_reports(reports) == ["b", "c"]
    assert live_reports({}) == []


def test_clients_learn_owners_that_have_a_url() -> None:
    reports = {
        "a": report(s0=ShardReport("owning", 1)),
        "b": report(control=None, s1=ShardReport("owning", 1)),
    }
    found = owner_map(3, reports, ["a", "b"])
    assert (found.shards, found.nodes, found.map) == (3, {"a": "tcp://127.0.0.1:1"}, ["a", None, None])
