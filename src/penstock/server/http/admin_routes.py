"""The desk of the person who runs the server: routes that only an administrator may use, one function each.

A handler takes an `Ask` and returns what is to be answered as JSON, a `Reply` of its own, a `Refusal`, or a coroutine of one of those. Who
asks, and whether query and body have the right shape, is settled before a handler is called; whatever takes long is a coroutine that
does its work elsewhere and ends when the peer hangs up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal
from penstock.server.http.messages import Cancel, Done, error_reply
from penstock.server.logging import logs
from penstock.transports.http import Reply, json_reply


class Ask(msgspec.Struct):
    """What somebody asks at the desk."""

    principal: Principal
    values: tuple[str, ...]
    """The variable parts of the path."""
    query: Any
    """The query as the route's type."""
    body: Any = None
    """The body as the route's type."""
    peer: str = ""


Handler = Callable[[Ask], Any]


def permit(principal: Principal, what: str) -> Refusal | None:
    """Why somebody may not use a route of the desk; None when it may."""
    if principal.is_admin:
        return None
    if principal.anonymous:
        return Refusal("Unauthorized", f"{what} needs the operator's token")
    return Refusal("Forbidden", f"{what} needs the scope `admin:*`")


class Desk:
    """Handlers by the names of their routes."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def add(self, name: str, handler: Handler) -> None:
        """Serve a route."""
        self._handlers[name] = handler

    def __contains__(self, name: str) -> bool:
        return name in self._handlers

    def answer(self, name: str, ask: Ask, done: Done) -> Cancel | None:
        """Answer through `done`, now or later. Returns how to give up, where that matters."""
        outcome = self._handlers[name](ask)
        if not isinstance(outcome, Coroutine):
            done(_reply(outcome))
            return None
        task = asyncio.get_running_loop().create_task(_finish(name, outcome, done))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

        def cancel() -> None:
            task.cancel()

        return cancel


async def _finish(name: str, work: Coroutine[Any, Any, Any], done: Done) -> None:
    try:
        done(_reply(await work))
    except Exception as error:
        logs.error("desk.failed", exc=error, route=name)
        done(error_reply(Refusal("Internal", "the request failed; the log says why")))


def _reply(outcome: Any) -> Reply:
    if isinstance(outcome, Refusal):
        return error_reply(outcome)
    return outcome if isinstance(outcome, Reply) else json_reply(200, outcome)
