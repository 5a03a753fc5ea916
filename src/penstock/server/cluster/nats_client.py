"""The connection of a node to NATS: it waits for the servers when it starts, and says now and then what is wrong with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from nats.aio.client import Client

from penstock.core.errors import PenstockError
from penstock.journal.replicated.connection import NatsServersAddress, connect_servers
from penstock.journal.replicated.jetstream import FAILURES
from penstock.server.logging import logs
from penstock.server.ops.cluster.operator import lasting_problem

CONNECT_S = 60.0
"""How long a node waits for the servers when it starts; a supervisor may start it again."""
RETRY_S = 0.2
LOG_EVERY_S = 1.0
"""At most one line about errors of the connection in this time."""

T = TypeVar("T")


class NatsNotices:
    """What the connection says, a line now and then."""

    def __init__(self) -> None:
        self._said_s = -LOG_EVERY_S
        self.errors = 0

    def __call__(self, event: str, text: str) -> None:
        if event != "error":
            (logs.event if event == "connected" else logs.warning)(f"nats.{event}")
            return
        self.errors += 1
        now_s = time.monotonic()
        if now_s - self._said_s >= LOG_EVERY_S:
            self._said_s = now_s
            logs.warning("nats.error", reason=text, errors=self.errors)


async def connect(address: NatsServersAddress, name: str, notices: NatsNotices) -> Client:
    """Connect as soon as a server accepts. Raises PenstockError if none does for long."""
    until_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return await connect_servers(address, name, notices)
        except PenstockError as error:
            if error.code != "Unreachable" or time.monotonic() > until_s:
                raise
            notices("error", error.message)
            await asyncio.sleep(RETRY_S)


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    """The first answer that the servers give: while they elect a leader they give none. Raises PenstockError for what a wait does not change."""
    said_s = time.monotonic()  # a short wait says nothing
    while True:
        try:
            return await ask()
        except FAILURES as error:
            if (problem := lasting_problem(error)) is not None:
                raise PenstockError(problem) from None
            if (now_s := time.monotonic()) - said_s >= LOG_EVERY_S:
                said_s = now_s
                logs.warning("nats.waiting", reason=str(error) or type(error).__name__)
            await asyncio.sleep(RETRY_S)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended: a wait whose result comes at that moment swallows it."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=RETRY_S)
