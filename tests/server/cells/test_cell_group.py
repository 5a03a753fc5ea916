"""Which process owns which shard, and where the front sends an HTTP request."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.core.placement import SHARDS
from penstock.server.cells.cell_group import CellGroup, shards_of
from penstock.server.cells.link import CellLink
from penstock.server.cells.messages import CellAnswer, CellHello, FromCell
from penstock.server.config.load import Config
from penstock.server.http.request import Request
from penstock.server.http.routes import ROUTES
from penstock.transports.http_replies import Reply

ROUTE = {route.name: route for route in ROUTES}


@pytest.mark.parametrize("count", range(1, SHARDS + 1))
def test_every_shard_has_one_owner(count: int) -> None:
    owned = [shards_of(index, count) for index in range(count)]
    assert sorted(shard for shards in owned for shard in shards) == list(range(SHARDS))
    sizes = {len(shards) for shards in owned}
    assert max(sizes) - min(sizes) <= 1


def test_routes_of_streams_go_to_cells_and_others_stay(tmp_path: Path) -> None:
    group = CellGroup(Config(), None, tmp_path, 2)
    here = {name for name, route in ROUTE.items() if group.handler(route) is None}
    assert {"health", "tokens", "spaces", "sql", "subscribe", "schemas", "config", "connections"} <= here
    forwarded = {"enqueue", "send", "pull", "settle", "stats", "peek", "explain", "metrics", "where", "snapshot"}
    assert not forwarded & here
    assert [one["up"] for one in group.report()] == [False, False]


def test_a_path_that_is_too_long_for_a_socket_is_replaced(tmp_path: Path) -> None:
    group = CellGroup(Config(), None, tmp_path / ("x" * 120), 1)
    assert len(str(group._path)) < 100
    asyncio.run(group.stop())
    assert not group._path.parent.exists()


def test_the_answer_of_a_pull_is_a_read_which_a_revoked_token_does_not_get(tmp_path: Path) -> None:
    async def pulled() -> object:
        group = CellGroup(Config(), None, tmp_path, 1)
        link: CellLink[FromCell] = CellLink(FromCell)
        group.processes[0].attach(link, 1)
        request = Request(ROUTE["pull"], (), {}, {}, "127.0.0.1", data=b'{"stream":"s"}')
        assert request.parse() is None
        task = asyncio.ensure_future(group._at_shard(None, request))  # type: ignore[arg-type]  # it uses none of them
        while not group.processes[0]._asked:  # noqa: ASYNC110  # a few turns
            await asyncio.sleep(0)
        link.received(CellAnswer(1, b"{}"))
        return await task

    assert asyncio.run(pulled()) == Reply(200, b"{}")


def test_a_stranger_with_any_secret_is_refused(tmp_path: Path) -> None:
    """A comparison in constant time raises for text that is not ASCII."""
    group = CellGroup(Config(), None, tmp_path, 1)
    for secret in ("wrong", "fälsch", ""):
        link = group._accept()
        link.received(CellHello(index=0, pid=1, secret=secret))
        assert link.is_over and not group.processes[0].is_up.is_set()
