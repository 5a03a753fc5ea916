"""What a subscription and a followed view share: one `sub_id` on a connection that may reconnect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from msgspec import Raw

from penstock.client.control.frames import DeliverFrame, ExpiredFrame, LiveFrame, head
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.control.connection import ControlConnection


class FrameListener:
    """Receives the frames of one `sub_id`: a subscription or a followed view."""

    def __init__(self, connection: ControlConnection, sub_id: str) -> None:
        self._sub_id = sub_id
        self._connection = connection
        self._opened: asyncio.Future[None] | None = None
        self._failure: PenstockError | None = None
        self._is_closed = False

    async def open(self) -> Self:
        """Begin to receive."""
        return self

    async def close(self) -> None:
        """Stop receiving."""

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, kind: object, *exception: object) -> None:
        try:
            await self.close()
        except PenstockError:
            if kind is None:  # else the other exception matters more
                raise

    @property
    def _is_live(self) -> bool:
        """Whether the server has confirmed the subscription and the connection has not ended since."""
        opened = self._opened
        return opened is not None and opened.done() and not opened.exception() and self._failure is None

    async def _unsubscribe(self) -> None:
        try:
            await self._connection.request(head("unsubscribe", subId=self._sub_id), is_repeatable=False)
        except PenstockError:
            pass  # a lost connection ends the subscription too

    def _submit(self, body: bytes) -> None:
        """Send a frame whose answer no caller awaits. If it fails, the next reconnect makes up for it."""
        self._connection.submit(body).add_done_callback(_ignore)

    def _subscribe(self, body: bytes) -> None:
        """Send the frame that opens the subscription; its answer sets `_opened`."""
        self._connection.submit(body).add_done_callback(self._agreed)

    def _agreed(self, answer: asyncio.Future[Raw]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if error is None:
            if self._opened is not None and not self._opened.done():
                self._opened.set_result(None)
        elif isinstance(error, PenstockError) and error.code != "Unreachable":
            # `Unreachable` is followed by another `resume`, or by `failed`.
            self._connection.detach(self)
            self._failed(error)

    # -- for the connection

    def _arrived(self, frame: DeliverFrame) -> None:
        """A delivery."""

    def _expired(self, frame: ExpiredFrame) -> None:
        """A lease ended."""

    def _changed(self, frame: LiveFrame) -> None:
        """A view changed."""

    def _emit(self) -> None:
        """Send what was collected during this loop turn."""

    def _resume(self) -> None:
        """Subscribe again on a new transport."""

    def _disconnected(self, reason: str) -> None:
        """The transport was lost, or the server ended the subscription."""

    def _failed(self, error: PenstockError) -> None:
        """The connection has ended for good."""


def reject(waiting: asyncio.Future[None] | None, error: PenstockError) -> None:
    """Fail a future that no task may await."""
    if waiting is not None and not waiting.done():
        waiting.set_exception(error)
        waiting.exception()  # mark it as retrieved


def _ignore(answer: asyncio.Future[Raw]) -> None:
    if not answer.cancelled():
        answer.exception()
