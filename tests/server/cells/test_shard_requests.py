"""Which shard a request of HTTP goes to, and what becomes of the answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.server.cells.cell_group import CellGroup
from penstock.server.cells.link import CellLink
from penstock.server.cells.messages import CellAnswer, FromCell
from penstock.server.config.load import Config
from penstock.server.http.request import Request
from penstock.server.http.routes import ROUTES
from penstock.transports.http_replies import Reply

ROUTE = {route.name: route for route in ROUTES}


def test_routes_of_streams_go_to_cells_and_others_stay(tmp_path: Path) -> None:
    group = CellGroup(Config(), None, tmp_path, 2)
    here = {name for name, route in ROUTE.items() if group.handler(route) is None}
    assert {"health", "tokens", "spaces", "sql", "subscribe", "schemas", "config", "connections"} <= here
    forwarded = {"enqueue", "send", "pull", "settle", "stats", "peek", "explain", "metrics", "where", "snapshot"}
    assert not forwarded & here


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
