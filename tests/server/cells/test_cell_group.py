"""Which process owns which shard, and where the front sends an HTTP request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.core.placement import SHARDS
from penstock.server.cells.cell_group import CellGroup, shards_of
from penstock.server.cells.messages import CellHello
from penstock.server.config.load import Config


@pytest.mark.parametrize("count", range(1, SHARDS + 1))
def test_every_shard_has_one_owner(count: int) -> None:
    owned = [shards_of(index, count) for index in range(count)]
    assert sorted(shard for shards in owned for shard in shards) == list(range(SHARDS))
    sizes = {len(shards) for shards in owned}
    assert max(sizes) - min(sizes) <= 1


def test_a_path_that_is_too_long_for_a_socket_is_replaced(tmp_path: Path) -> None:
    group = CellGroup(Config(), None, tmp_path / ("x" * 120), 1)
    assert len(str(group._path)) < 100
    asyncio.run(group.stop())
    assert not group._path.parent.exists()


def test_a_stranger_with_any_secret_is_refused(tmp_path: Path) -> None:
    """A comparison in constant time raises for text that is not ASCII."""
    group = CellGroup(Config(), None, tmp_path, 1)
    for secret in ("wrong", "fälsch", ""):
        link = group._accept()
        link.received(CellHello(index=0, pid=1, secret=secret))
        assert link.is_over and not group.processes[0].is_up.is_set()


def test_processes_that_are_down_are_reported(tmp_path: Path) -> None:
    group = CellGroup(Config(), None, tmp_path, 2)
    assert [one["up"] for one in group.report()] == [False, False]
    assert (group.finding().state, group.cluster_status(), list(group.metrics())) == ("degraded", None, [])
    assert group.about == "16 shards in 2 processes"
