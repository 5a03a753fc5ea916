"""Acks of one subscription: collected during a loop turn, sent in one frame, confirmed one by one.

Owns the acks that are not confirmed. An error for an array does not name the id it is about, so each id is then acked alone with its
lease; the ids that the array did settle answer `AlreadyAcked`, which counts as success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Raw

from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import head
from penstock.client.queue.delivery import Delivery, State
from penstock.core.errors import LeaseLost, PenstockError
from penstock.core.limits import Limits

ACKS_MAX = Limits().batch_max
"""The most ids in one ack."""

Errors = list[PenstockError]
Group = tuple[Sequence[Delivery], "asyncio.Future[Errors]"]
"""Deliveries acked by one call, and the future that gets their errors."""


class Acks:
    """The acks of one subscription; `refused` applies an error to a delivery."""

    def __init__(
        self, connection: ControlConnection, sub_id: str, refused: Callable[[Delivery, PenstockError], PenstockError]
    ) -> None:
        self._connection = connection
        self._sub_id = sub_id
        self._refused = refused
        self._groups: list[Group] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, deliveries: Sequence[Delivery]) -> asyncio.Future[Errors]:
        """Add deliveries to the next `send`."""
        future: asyncio.Future[Errors] = self._connection.loop.create_future()
        self._groups.append((deliveries, future))
        return future

    def send(self) -> None:
        groups, self._groups = self._groups, []
        while groups:
            count = taken = 0
            while taken < len(groups) and (not taken or count + len(groups[taken][0]) <= ACKS_MAX):
                count += len(groups[taken][0])
                taken += 1
            self._send_groups(groups[:taken], count)
            groups = groups[taken:]

    def lose(self, error: LeaseLost) -> None:
        """The connection was lost, and with it every lease."""
        groups, self._groups = self._groups, []
        for deliveries, future in groups:
            for delivery in deliveries:
                delivery._lose(error)
            if not future.done():
                future.set_result([error])

    async def settle(self, delivery: Delivery, body: bytes) -> Errors:
        """Send one settle of any kind, and apply its outcome to the delivery."""
        try:
            await self._connection.request(body, is_repeatable=False)
        except PenstockError as error:
            return [self._refused(delivery, error)]
        delivery._state = State.SETTLED
        return []

    def _send_groups(self, groups: list[Group], count: int) -> None:
        if count == 1:
            body = self._single(next(delivery for deliveries, _ in groups for delivery in deliveries))
        else:
            ids = [delivery.id for deliveries, _ in groups for delivery in deliveries]
            body = head("ack", id=ids, subId=self._sub_id)
        self._connection.submit(body).add_done_callback(lambda done: self._answered(groups, count, done))

    def _single(self, delivery: Delivery) -> bytes:
        return head("ack", id=delivery.id, subId=self._sub_id, leaseId=delivery.lease_id)

    def _answered(self, groups: list[Group], count: int, answer: asyncio.Future[Raw]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, PenstockError) and count > 1 and error.code != "Unreachable":
            task = self._connection.loop.create_task(self._ack_each(groups))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        for deliveries, future in groups:
            errors: Errors = []
            for delivery in deliveries:
                if isinstance(error, PenstockError):
                    errors.append(self._refused(delivery, error))
                else:
                    delivery._state = State.SETTLED
            if not future.done():
                future.set_result(errors)

    async def _ack_each(self, groups: list[Group]) -> None:
        for deliveries, future in groups:
            errors: Errors = []
            for delivery in deliveries:
                try:
                    await self._connection.request(self._single(delivery), is_repeatable=False)
                except PenstockError as error:
                    if error.code != "AlreadyAcked":
                        errors.append(self._refused(delivery, error))
                        continue
                delivery._state = State.SETTLED
            if not future.done():
                future.set_result(errors)
