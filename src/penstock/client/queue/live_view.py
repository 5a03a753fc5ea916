"""A followed view: its current rows and every change, across reconnects.

Owns the copy of the rows and the version they are of. Whatever the server sends (a whole table, or one change), the application
sees only additions, updates and removals, so it need not care for reconnections. Changes that wait here are bounded by the
credit; at the bound the server joins changes of the same row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Literal, Self

from msgspec import Struct

from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import Delta, LiveFrame, head
from penstock.client.control.listener import FrameListener, reject
from penstock.core.errors import PenstockError


class Change(Struct, frozen=True):
    """One row of a view changed."""

    op: Literal["add", "update", "remove"]
    addr: str
    row: Any
    """The row after the change (for `latestPerAgent` the envelope); None when it was removed."""
    version: int


class LiveView(FrameListener):
    """A view as it changes: `async for change in view`, best inside `async with`. `rows` is the table after the changes read so far.

    Example:
        async with client.live("latestPerAgent") as view:
            async for change in view:
                print(change.op, change.addr, len(view.rows))
    """

    def __init__(self, connection: ControlConnection, view: str, sub_id: str, *, addr: str | None, credit: int) -> None:
        super().__init__(connection, sub_id)
        self.view = view
        self.addr = addr
        self.credit = credit
        self.rows: dict[str, Any] = {}
        """The rows by address, after the last change that was read."""
        self.version = 0
        """The version of that change."""
        self._received: int | None = None
        """The version of the last message."""
        self._changes: deque[Change] = deque()
        self._charged: deque[bool] = deque()
        """For each buffered change, whether it used credit."""
        self._owed = 0
        self._wake = asyncio.Event()
        self._filled: asyncio.Future[None] = connection.loop.create_future()

    async def open(self) -> Self:
        """Follow the view, and wait for its first snapshot. Iterating does this by itself."""
        if self._opened is None:
            self._opened = self._connection.loop.create_future()
            self._connection.attach(self)
        await asyncio.shield(self._opened)
        await asyncio.shield(self._filled)
        return self

    async def next_change(self) -> Change | None:
        """The next change; None when the view is closed."""
        if not self._is_closed and (self._opened is None or not self._opened.done()):
            await self.open()
        while not self._changes:
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                return None
            self._wake.clear()
            await self._wake.wait()
        change = self._changes.popleft()
        if self._charged.popleft():
            self._owed += 1
            self._connection.mark(self)
        if change.op == "remove":
            self.rows.pop(change.addr, None)
        else:
            self.rows[change.addr] = change.row
        self.version = change.version
        return change

    async def close(self) -> None:
        """Stop following."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_live:
            await self._unsubscribe()
        self._connection.detach(self)
        self._wake.set()

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        change = await self.next_change()
        if change is None:
            raise StopAsyncIteration
        return change

    # -- for the connection

    def _resume(self) -> None:
        # Buffered changes still use our credit, and the new server does not know them: grant only the rest.
        self._owed = 0
        credit = max(self.credit - sum(self._charged), 0)
        body = head("live", view=self.view, subId=self._sub_id, credit=credit, since=self._received, addr=self.addr)
        self._subscribe(body)

    def _changed(self, frame: LiveFrame) -> None:
        if frame.snapshot is not None:
            self._replace(frame.snapshot.rows, frame.snapshot.watermark)
        elif frame.delta is not None:
            delta = frame.delta
            if delta.prev != self._received:
                self._again()
                return
            self._received = delta.version
            self._take(Change(delta.op, delta.addr, _content(delta), delta.version), charged=True)
        self._wake.set()

    def _replace(self, rows: list[Delta], watermark: int) -> None:
        """Replace the buffered changes by the difference between a new snapshot and the rows that the application has."""
        self._received = watermark
        self._owed += sum(self._charged)
        self._connection.mark(self)
        self._changes.clear()
        self._charged.clear()
        fresh = {row.addr: _content(row) for row in rows}
        for addr in self.rows:
            if addr not in fresh:
                self._take(Change("remove", addr, None, watermark))
        for addr, content in fresh.items():
            if addr not in self.rows:
                self._take(Change("add", addr, content, watermark))
            elif self.rows[addr] != content:
                self._take(Change("update", addr, content, watermark))
        if not self._filled.done():
            self._filled.set_result(None)

    def _take(self, change: Change, *, charged: bool = False) -> None:
        self._changes.append(change)
        self._charged.append(charged)

    def _again(self) -> None:
        """A message is missing: request a new snapshot."""
        self._received = None
        self._submit(head("unsubscribe", subId=self._sub_id))
        self._resume()

    def _emit(self) -> None:
        # Half a window keeps the server busy; granting earlier would only send more frames.
        if 2 * self._owed >= self.credit and not self._is_closed:
            grant, self._owed = self._owed, 0
            self._submit(head("grant", n=grant, subId=self._sub_id))

    def _failed(self, error: PenstockError) -> None:
        self._failure = error
        reject(self._opened, error)
        reject(self._filled, error)
        self._wake.set()


def _content(row: Delta) -> Any:
    return row.env if row.env is not None else row.row
