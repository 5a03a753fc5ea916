"""HTTP requests at a cell: the handlers of the routes, with the services of one shard.

The front has read, authenticated and bounded a request. Here its handler runs on the shard that places it, and the answer goes back when it
is durable.
"""

from __future__ import annotations

import asyncio
from types import CoroutineType
from typing import Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.queue.settle import Denied
from penstock.dialects.courier.operations.outcomes import Result
from penstock.server.cells.messages import CellAnswer, CellRequest
from penstock.server.config.load import Config
from penstock.server.engine.runtime import Runtime
from penstock.server.http.request import Request
from penstock.server.http.routes import ROUTES
from penstock.server.logging import logs
from penstock.server.metrics.prometheus_families import Exporter
from penstock.transports.http_replies import Reply

_ROUTES = {route.name: route for route in ROUTES}
_FAILED = Refusal("Internal", "the request failed; the log says why")


class CellServices(msgspec.Struct, eq=False):
    """What the handlers use that a front forwards to; the names are those of `HttpServices`."""

    config: Config
    runtime: Runtime
    exporter: Exporter

    @property
    def machine(self) -> Any:
        return self.runtime.machine


async def answer(services: CellServices, asked: CellRequest) -> CellAnswer:
    """Carry out a request, and wait until its outcome is durable."""
    try:
        outcome = await _carry_out(services, asked)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        logs.error("http.failed", exc=error, path=asked.route)
        outcome = _FAILED
    if isinstance(outcome, Refusal):
        return CellAnswer(asked.no, b"", outcome)
    return CellAnswer(asked.no, outcome)


async def _carry_out(services: CellServices, asked: CellRequest) -> bytes | Refusal:
    runtime, route = services.runtime, _ROUTES[asked.route]
    request = Request(
        route,
        asked.values,
        asked.parameters,
        {},
        asked.peer,
        principal=asked.principal,
        now=runtime.scheduler.now(),
        data=asked.data,
        is_checked=asked.is_checked,
    )
    if (refusal := request.parse()) is not None:
        return refusal
    assert route.handler is not None
    outcome = route.handler(services, request)  # type: ignore[arg-type]  # the part of the services that it uses
    if isinstance(outcome, (Result, Denied, Refusal)):
        runtime.apply(request.now)
    if isinstance(outcome, CoroutineType):
        outcome = await outcome
    if isinstance(outcome, Reply):
        return outcome.body
    if isinstance(outcome, Refusal):
        return outcome
    assert isinstance(outcome, (Result, Denied))
    return await _durable(runtime, outcome)


async def _durable(runtime: Runtime, outcome: Result | Denied) -> bytes | Refusal:
    """The answer when its commit has its outcome."""
    decided: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

    def done(refusal: Refusal | None) -> None:
        if not decided.done():
            decided.set_result(refusal)

    runtime.when(outcome.gate, isinstance(outcome, Denied) or outcome.fresh, done)
    refusal = await decided
    if refusal is not None:
        return refusal
    return outcome.refusal if isinstance(outcome, Denied) else msgspec.json.encode(outcome.value())
