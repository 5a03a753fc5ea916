"""Pulled deliveries: leases that belong to the caller, not to a connection.

They are settled by id and lease over any connection, so a reconnect does not lose them, and a settle without an answer is sent again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Raw

from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import PullResult, Sent, head
from penstock.client.queue.delivery import NEVER, Delivery, PayloadReader
from penstock.client.queue.renewals import LeaseHolder, Renewals, half_lease_s
from penstock.client.queue.settles import OnLost, Settles, Unconfirmed
from penstock.core.errors import LeaseLost

decode_pull = msgspec.json.Decoder(PullResult).decode


class PulledLeases(LeaseHolder):
    """The pulled leases of one client."""

    _survives_connection = True

    def __init__(
        self,
        connection: ControlConnection,
        renewals: Renewals,
        replier: Callable[[Delivery, object, str | None], Awaitable[Sent]],
        unconfirmed: Unconfirmed,
        on_lost: OnLost | None = None,
    ) -> None:
        self._reply = replier
        self._connection = connection
        self._renewals = renewals
        self._held: dict[str, Delivery] = {}
        self._settles = Settles(self, unconfirmed, "pulled deliveries", on_lost)
        renewals.watch(self)

    def take(
        self, result: Raw, *, lease_ms: int | None, renew: bool, reader: PayloadReader | None = None
    ) -> list[Delivery]:
        """Make deliveries from the answer of a pull; with `renew` their leases are renewed until settled."""
        now = self._connection.loop.time()
        deliveries = []
        for row in decode_pull(result).deliveries:
            renew_at = now + half_lease_s(lease_ms, row.lease_expires_at) if renew else NEVER
            taken = row.stream, row.seq, row.attempt, row.lease_id, row.lease_expires_at
            delivery = Delivery(self, row.deliver, *taken, renew_at, lease_ms, reader)
            deliveries.append(delivery)
            if renew:
                self._held[row.lease_id] = delivery
                self._renewals.arm(renew_at)
        return deliveries

    def _hand_over(self, delivery: Delivery, op: str, fields: dict[str, object]) -> None:
        self._held.pop(delivery.lease_id, None)
        self._settles.add(delivery, None if op == "ack" else self._frame(delivery, op, **fields))
        self._settles.send()  # the connection writes the lines of one loop turn together

    def _take_back(self, delivery: Delivery) -> None:
        self._held[delivery.lease_id] = delivery

    def _ack_frame(self, deliveries: list[Delivery]) -> bytes:
        return self._frame(deliveries[0], "ack")  # `_hand_over` sends each by itself

    def _lost(self, delivery: Delivery, error: LeaseLost) -> None:
        delivery._lose(error)
        self._held.pop(delivery.lease_id, None)

    def _extension(self, delivery: Delivery, ms: int | None) -> bytes:
        return self._frame(delivery, "extend", ms=ms)

    def _frame(self, delivery: Delivery, op: str, **fields: object) -> bytes:
        # The lease identifies the delivery; the stream tells the server where to look after the lease has ended.
        return head("settle", id=delivery.id, op=op, leaseId=delivery.lease_id, stream=delivery.stream, **fields)
