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
        """The answer of a pull. In a cluster one that is cut off is repeated: what it took returns when its lease ends."""
        until_s = self._home.loop.time() + MOVE_MAX_S
        while True:
            try:
                if wait_ms <= 0:
                    return await self._owners.request(stream, body, is_repeatable=False)
                return await self._wait(body, wait_ms)
            except PenstockError as error:
                if not self._owners.may_have_moved(error, until_s):
                    raise
            await asyncio.sleep(REPEAT_S)

    async def _wait(self, body: bytes, wait_ms: int) -> Raw:
        connection = self._idle.pop() if self._idle else await self._dial(self._home.address)
        try:
            timeout_s = wait_ms / 1000 + WAIT_GRACE_S
            result = await connection.request(body, is_repeatable=False, timeout_s=timeout_s)
        except BaseException:
            await connection.close()
            raise
        self._idle.append(connection)
        return result

    async def close(self) -> None:
        for connection in self._idle:
            await connection.close()
        self._idle.clear()
