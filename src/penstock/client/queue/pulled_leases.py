"""Pulled deliveries: leases that belong to the caller, not to a connection.

They are settled by id and lease over any connection, so a reconnect does not lose them, and settling them
is safe to repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Raw

from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import PullResult, Sent, head
from penstock.client.queue.delivery import Delivery, PayloadReader, State
from penstock.client.queue.renewals import NEVER, LeaseHolder, Renewals, half_lease_s
from penstock.core.errors import LeaseLost, PenstockError

decode_pull = msgspec.json.Decoder(PullResult).decode


class PulledLeases(LeaseHolder):
    """The pulled leases of one client."""

    _survives_connection = True

    def __init__(
        self,
        connection: ControlConnection,
        renewals: Renewals,
        replier: Callable[[Delivery, object, str | None], Awaitable[Sent]],
    ) -> None:
        self._reply = replier
        self._connection = connection
        self._renewals = renewals
        self._held: dict[str, Delivery] = {}
        self._lease_ms: dict[str, int | None] = {}
        renewals.watch(self)

    def _lease_ms_of(self, delivery: Delivery) -> int | None:
        return self._lease_ms.get(delivery.lease_id)

    def take(
        self, result: Raw, *, lease_ms: int | None, renew: bool, reader: PayloadReader | None = None
    ) -> list[Delivery]:
        """Make deliveries from the answer of a pull; with `renew` their leases are renewed until settled."""
        now = self._connection.loop.time()
        deliveries = []
        for row in decode_pull(result).deliveries:
            renew_at = now + half_lease_s(lease_ms, row.lease_expires_at) if renew else NEVER
            delivery = Delivery(
                self,
                row.deliver,
                row.stream,
                row.seq,
                row.attempt,
                row.lease_id,
                row.lease_expires_at,
                renew_at,
                reader,
            )
            deliveries.append(delivery)
            if renew:
                self._held[row.lease_id] = delivery
                self._lease_ms[row.lease_id] = lease_ms
                self._renewals.arm(renew_at)
        return deliveries

    async def _settle(self, delivery: Delivery, op: str, **fields: object) -> None:
        delivery.check()
        delivery._state = State.SETTLING
        body = self._frame(delivery, op, **fields)
        try:
            await self._connection.request(body, is_repeatable=True)
        except BaseException as error:
            delivery._state = State.HELD
            # An `Interruption` is about the delivery of the calling handler, not about this one.
            if isinstance(error, PenstockError) and not isinstance(error, asyncio.CancelledError):
                raise self._judge(delivery, error) from None
            raise
        delivery._state = State.SETTLED
        self._forget(delivery)

    def _lost(self, delivery: Delivery, error: LeaseLost) -> None:
        delivery._lose(error)
        self._forget(delivery)

    def _extension(self, delivery: Delivery, ms: int | None) -> bytes:
        return self._frame(delivery, "extend", ms=ms)

    def _frame(self, delivery: Delivery, op: str, **fields: object) -> bytes:
        # The lease identifies the delivery; the stream tells the server where to look after the lease has ended.
        return head("settle", id=delivery.id, op=op, leaseId=delivery.lease_id, stream=delivery.stream, **fields)

    def _forget(self, delivery: Delivery) -> None:
        self._held.pop(delivery.lease_id, None)
        self._lease_ms.pop(delivery.lease_id, None)
