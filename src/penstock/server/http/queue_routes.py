"""Handlers of queue routes that do more than call one operation: enqueue, pull and staging."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.steps import Steps
from penstock.dialects.courier.operations.enqueue import enqueue_steps
from penstock.dialects.courier.operations.outcomes import Body, Outcome
from penstock.dialects.courier.sessions.pull import PullSession, check_pull
from penstock.dialects.courier.wire.staged_envelopes import BatchSource, source_of
from penstock.server.engine.connections import Connection, NoWire
from penstock.server.engine.schedulers import in_steps
from penstock.server.files.addresses import payer_address
from penstock.server.http.request import Request
from penstock.server.http.services import HttpServices
from penstock.transports.http_replies import Reply, json_reply


class StageQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of a staged part: parts of another `run` of the same batch are dropped."""

    run: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = ""


def enqueue(services: HttpServices, request: Request) -> Outcome | Coroutine[Any, Any, Outcome]:
    """Check and admit envelopes, many or large ones in steps."""
    work = enqueue_steps(
        services.machine,
        request.now,
        request.principal,
        request.body,
        assign=services.config.streams.assign_id,
        address=payer_address(request.peer),
        is_checked=request.is_checked,
    )
    return in_steps(services.runtime.survey, work) if request.is_checked else Steps(work).all(request.now)


async def pull(services: HttpServices, request: Request) -> Reply | Refusal:
    """Wait for envelopes on a connection of its own, which ends with the answer or with the peer."""
    runtime, principal, wanted = services.runtime, request.principal, request.body
    lease_us = check_pull(runtime.machine, principal, wanted)
    if isinstance(lease_us, Refusal):
        return lease_us
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def finish(body: Body) -> None:
        if not future.done():
            future.set_result(json_reply(200, body))
        if isinstance(connection, Connection):
            connection.lost()

    session = PullSession(runtime, finish)
    connection = runtime.peers.open(session, NoWire(), principal, request.peer, is_brief=True, agent=wanted.agent)
    if isinstance(connection, Refusal):
        return connection
    consumer = runtime.machine.pull(
        request.now, connection.link, principal.to_channel(wanted.stream), wanted.max, wanted.wait_ms * 1000, lease_us
    )
    if isinstance(consumer, Refusal):
        connection.lost()
        return consumer
    runtime.apply(request.now)
    try:
        return await future
    except asyncio.CancelledError:  # the peer is gone: what it would have taken goes to others
        connection.lost()
        raise


Staged = Outcome | Coroutine[Any, Any, Outcome]


def staged(work: Callable[[HttpServices, Request, BatchSource], Staged]) -> Callable[[HttpServices, Request], Staged]:
    """A handler of a staging route: reads the batch from the path, then does the work."""

    def handle(services: HttpServices, request: Request) -> Staged:
        app, *rest = request.values
        source = source_of(app, rest[0] if rest else "0", request.principal, payer_address(request.peer))
        return source if isinstance(source, Refusal) else work(services, request, source)

    return handle
