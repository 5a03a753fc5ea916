"""Assignment: every node computes the same owners, evenly, and few shards move."""

from collections import Counter

import pytest

from penstock.core.cluster.assignment import (
    ALIVE_US,
    SETTLED_US,
    LiveNodes,
    assign,
    may_take,
    shard_to_release,
)

NODES = ["a", "b", "c"]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16, 20])
def test_no_node_owns_more_than_its_share(count: int) -> None:
    owners = assign([f"node-{number}" for number in range(count)], 16)
    assert len(owners) == 16
    assert max(Counter(owners).values()) == -(-16 // count)


def test_the_order_of_the_nodes_does_not_matter() -> None:
    assert assign(["c", "a", "b", "a"], 16) == assign(NODES, 16)


def test_without_nodes_there_is_no_owner() -> None:
    assert assign([], 16) == []
    assert not may_take("a", 0, [], 16, silent="b")
    assert shard_to_release("a", [], {0: "a"}, 16) is None


def test_few_other_shards_move_when_a_node_leaves() -> None:
    others = 0
    for number in range(100):
        nodes = [f"{number}/{name}" for name in NODES]
        before, after = assign(nodes, 16), assign(nodes[1:], 16)
        others += sum(old not in (new, nodes[0]) for old, new in zip(before, after, strict=True))
    assert others < 100, "less than one a time"


def test_one_live_node_takes_a_shard_that_became_silent() -> None:
    for shard in range(16):
        takers = [node for node in NODES if may_take(node, shard, NODES, 16, silent="a")]
        assert len(takers) == 1
        assert takers != ["a"]


def test_an_owner_that_is_alone_takes_its_shard_again() -> None:
    assert may_take("a", 0, ["a"], 16, silent="a")


def test_shards_move_one_at_a_time_until_all_are_where_they_belong() -> None:
    wanted = assign(NODES, 16)
    owners: dict[int, str | None] = dict.fromkeys(range(16), "a")
    moves = 0
    while (shard := shard_to_release("a", NODES, owners, 16)) is not None:
        owners[shard] = None
        assert shard_to_release("a", NODES, owners, 16) is None
        taker = next(node for node in NODES if may_take(node, shard, NODES, 16, silent=None))
        owners[shard] = taker
        moves += 1
    assert [owners[shard] for shard in range(16)] == wanted
    assert moves == 16 - wanted.count("a")


def test_a_node_that_stops_refreshing_is_not_live() -> None:
    live = LiveNodes()
    live.refreshed(0, "a")
    live.refreshed(0, "b")
    live.refreshed(ALIVE_US, "b")
    assert live.nodes == ("b",)


def test_while_no_node_can_refresh_all_of_them_stay() -> None:
    live = LiveNodes()
    live.refreshed(0, "a")
    live.refreshed(1, "b")
    assert live.is_settled(10 * SETTLED_US)
    assert live.nodes == ("a", "b")
    live.refreshed(10 * SETTLED_US, "a")
    live.refreshed(10 * SETTLED_US, "b")
    assert live.nodes == ("a", "b")


def test_moves_wait_until_the_nodes_are_settled() -> None:
    live = LiveNodes()
    assert not live.is_settled(SETTLED_US)
    live.refreshed(0, "a")
    live.refreshed(4, "b")
    live.refreshed(9, "b")
    assert not live.is_settled(SETTLED_US)
    assert live.is_settled(SETTLED_US + 4)
    live.left(SETTLED_US + 5, "b")
    assert live.nodes == ("a",)
    assert not live.is_settled(SETTLED_US + 5)


def test_an_operator_names_the_node_of_a_shard() -> None:
    wanted = assign(NODES, 16)
    other = next(node for node in NODES if node != wanted[0])
    assert assign(NODES, 16, {0: other})[0] == other
    assert max(Counter(assign(NODES, 16, dict.fromkeys(range(4), "a"))).values()) <= 6
    assert assign(NODES, 16, dict.fromkeys(range(16), "a")) == ["a"] * 16
    assert assign(NODES, 16, {0: "gone"}) == wanted
    assert assign(["a"], 16, dict.fromkeys(range(9), "a")) == ["a"] * 16


def test_a_drained_node_owns_nothing_while_there_is_another() -> None:
    assert set(assign(NODES, 16, {3: "a"}, {"a"})) == {"b", "c"}
    assert assign(["a"], 16, {}, {"a"}) == ["a"] * 16
    assert not any(may_take("a", shard, NODES, 16, silent=None, drains={"a"}) for shard in range(16))


def test_what_an_operator_has_decided_does_not_wait() -> None:
    owners: dict[int, str | None] = dict.fromkeys(range(16), "a")
    assert shard_to_release("a", NODES, owners, 16, is_settled=False) is None
    assert shard_to_release("a", NODES, owners, 16, moves={9: "b"}, is_settled=False) == 9
    assert shard_to_release("a", NODES, owners, 16, moves={9: "a"}, is_settled=False) is None
    assert shard_to_release("a", NODES, owners, 16, drains={"a"}, is_settled=False) == 0
    assert shard_to_release("a", NODES, {**owners, 3: None}, 16, moves={9: "b"}) is None


def test_a_shard_that_is_halted_is_not_waited_for() -> None:
    owners: dict[int, str | None] = dict.fromkeys(range(1, 16), "a")
    assert shard_to_release("a", NODES, owners, 16, drains={"a"}) == 1
