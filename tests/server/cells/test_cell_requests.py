"""HTTP requests at a cell: the handlers of the routes, answered when they are durable."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.core.scopes import ANONYMOUS
from penstock.server.cells.cell_requests import CellServices, answer
from penstock.server.cells.messages import CellRequest
from penstock.server.config.load import Config
from penstock.server.engine.schedulers import LoopScheduler
from penstock.server.http.idempotency import Replays
from penstock.server.metrics.prometheus_families import Exporter
from penstock.server.open_cell import open_cell

BODY = b'{"to":"jobs","envelope":{"id":"a","ts":"2026-01-01T00:00:00Z","type":"t","payload":1}}'


def asked(route: str, data: bytes = b"", values: tuple[str, ...] = (), **parameters: str) -> CellRequest:
    return CellRequest(7, 0, route, values, parameters, "127.0.0.1", ANONYMOUS, data, False)


def test_a_cell_answers_as_the_routes_do() -> None:
    async def talk() -> None:
        scheduler = LoopScheduler(asyncio.get_running_loop())
        cell = open_cell(Config(), None, scheduler, authenticate=lambda token: None)
        services = CellServices(Config(), cell.runtime, Exporter(cell.runtime, lambda: 0, Replays()))
        stored = await answer(services, asked("enqueue", BODY))
        assert (stored.no, msgspec.json.decode(stored.body)) == (7, {"id": "a", "seq": 1})
        stats = msgspec.json.decode((await answer(services, asked("stats", stream="jobs"))).body)
        assert stats["depth"] == 1
        pulled = msgspec.json.decode((await answer(services, asked("pull", b'{"stream":"jobs"}'))).body)
        assert pulled["deliveries"][0]["deliver"]["id"] == "a"
        assert b"penstock_streams 1" in (await answer(services, asked("prometheus"))).body
        refused = await answer(services, asked("where", values=("b",)))
        assert refused.refusal is not None and refused.refusal.code == "UnknownEnvelope"
        wrong = await answer(services, asked("enqueue", b"{}"))
        assert wrong.refusal is not None and wrong.refusal.code == "InvalidRequest"
        late = await answer(services, asked("settle", b'{"id":"a","op":"ack","leaseId":"x"}'))
        assert late.refusal is not None and late.refusal.status == 409

    asyncio.run(talk())
