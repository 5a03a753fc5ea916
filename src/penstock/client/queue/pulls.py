"""Pulls of one client. One that waits has a connection of its own, because answers keep the order of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Raw

from penstock.client.address import Address
from penstock.client.control.connection import ControlConnection
from penstock.client.control.owner_links import MOVE_MAX_S, OwnerLinks
from penstock.core.errors import PenstockError

WAIT_GRACE_S = 10.0
"""How much longer than its `wait_ms` a pull waits for the answer."""
REPEAT_S = 0.1
"""Before a pull that was cut off is repeated."""


class Pulls:
    """Sends pulls, and keeps the connections of those that wait."""

    def __init__(
        self, home: ControlConnection, owners: OwnerLinks, dial: Callable[[Address], Awaitable[ControlConnection]]
    ) -> None:
        self._home = home
        self._owners = owners
        self._dial = dial
        self._idle: list[ControlConnection] = []
        """Spare connections."""

    async def take(self, stream: str, body: bytes, wait_ms: int) -> Raw:
        """The answer of a pull, whose frame has no `waitMs` yet.

        In a cluster one that is cut off is repeated for the rest of its wait: what it took returns when its lease ends.
        """
        now = began = self._home.loop.time()
        end_s = now + wait_ms / 1000
        until_s = None if wait_ms > 0 else now + MOVE_MAX_S
        while True:
            rest_ms = round((end_s - now) * 1000)
            try:
                if rest_ms <= 0:
                    at_once = b'%b,"waitMs":%d' % (body, min(wait_ms, 0))  # the server refuses a negative one
                    return await self._owners.request(stream, at_once, is_repeatable=False)
                return await self._wait(body, rest_ms)
            except PenstockError as error:
                now = self._home.loop.time()
                # A pull that waited for long before it was cut off is the first error of another move.
                if until_s is None or (now < end_s and now - began > MOVE_MAX_S):
                    until_s = now + MOVE_MAX_S
                if not self._owners.may_have_moved(error, until_s):
                    raise
            await asyncio.sleep(REPEAT_S)
            now = began = self._home.loop.time()

    async def _wait(self, body: bytes, wait_ms: int) -> Raw:
        connection = await self._spare() or await self._dial(self._home.address)
        try:
            timeout_s = wait_ms / 1000 + WAIT_GRACE_S
            waiting = b'%b,"waitMs":%d' % (body, wait_ms)
            result = await connection.request(waiting, is_repeatable=False, timeout_s=timeout_s)
        except BaseException:
            await connection.close()
            raise
        self._idle.append(connection)
        return result

    async def _spare(self) -> ControlConnection | None:
        """A spare connection. In a cluster it is one to the node of the client, because it reconnects to no other node."""
        while self._idle:
            connection = self._idle.pop()
            is_home = connection.is_ready and connection.address == self._home.address
            if self._owners.map is None or is_home:
                return connection
            await connection.close()
        return None

    async def close(self) -> None:
        for connection in self._idle:
            await connection.close()
        self._idle.clear()
