"""Lease renewal: one timer per connection that extends each lease at half of its length, and what the holders of leases share.

The timer owns nothing else; holders own their deliveries. Arming is O(1); a tick visits every held delivery.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw

from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import Extended, Sent
from penstock.client.queue.delivery import HELD, NEVER, SETTLING, Delivery
from penstock.client.queue.settles import Settles
from penstock.core.errors import LeaseLost, PenstockError, Refusal

LEASE_GUESS_MS = 30_000
"""The longest lease to assume from `leaseExpiresAt` alone, because the clocks of two machines may differ."""
LEASE_LEAST_MS = 1_000
"""The shortest lease that a server grants; also the assumption when its clock is behind ours."""
TICK_LEAST_S = 0.02

_LOG = logging.getLogger("penstock.client")


class LeaseHolder(ABC):
    """Keeps leases for the application: a subscription, or the client for pulled deliveries."""

    _connection: ControlConnection
    _renewals: Renewals
    _reply: Callable[[Delivery, object, str | None], Awaitable[Sent]]
    _held: dict[Any, Delivery]
    _survives_connection = False
    """Whether the leases outlive the connection, so that settles and extensions are sent again."""

    _settles: Settles

    @abstractmethod
    def _hand_over(self, delivery: Delivery, op: str, fields: dict[str, object]) -> None:
        """Send a settle at the end of this loop turn."""

    @abstractmethod
    def _take_back(self, delivery: Delivery) -> None:
        """A settle failed, and the lease still holds."""

    @abstractmethod
    def _ack_frame(self, deliveries: list[Delivery]) -> bytes:
        """The frame that acks these deliveries."""

    def _leases(self) -> list[Delivery]:
        """The deliveries whose leases are renewed: until the answer to their settles."""
        return [*self._held.values(), *self._settles.unanswered()]

    @abstractmethod
    def _extension(self, delivery: Delivery, ms: int | None) -> bytes:
        """The frame that extends a lease."""

    @abstractmethod
    def _lost(self, delivery: Delivery, error: LeaseLost) -> None:
        """A lease is lost."""

    async def _extend(self, delivery: Delivery, ms: int | None) -> int:
        body = self._extension(delivery, ms)
        try:
            result = await self._connection.request(body, is_repeatable=self._survives_connection)
        except LeaseLost as error:
            self._lost(delivery, error)
            raise
        expires_at_ms = end_of_lease(result)
        delivery.lease_expires_at_ms = expires_at_ms
        self._renew_after(delivery, ms or delivery._lease_ms)
        self._renewals.arm(delivery._renew_at)
        return expires_at_ms

    def _renew(self, delivery: Delivery) -> None:
        lease_ms = delivery._lease_ms
        self._renew_after(delivery, lease_ms)
        try:
            body = self._extension(delivery, lease_ms)
        except msgspec.DecodeError:  # an envelope that is none must not stop the timer of all others
            _LOG.warning("cannot renew a lease of `%s`: its envelope has no id", delivery.stream)
            delivery._renew_at = NEVER
            return
        answer = self._connection.submit(body, is_repeatable=self._survives_connection)
        answer.add_done_callback(lambda done: self._renewed(delivery, done))

    def _renew_after(self, delivery: Delivery, lease_ms: int | None) -> None:
        delivery._renew_at = self._connection.loop.time() + half_lease_s(lease_ms, delivery.lease_expires_at_ms)

    def _renewed(self, delivery: Delivery, answer: asyncio.Future[Raw]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            try:
                delivery.lease_expires_at_ms = end_of_lease(answer.result())
            except PenstockError as unread:  # the next renewal is due as before
                _LOG.warning("renewed a lease of `%s`: %s", delivery.stream, unread.refusal.message)
        elif isinstance(error, PenstockError) and delivery._state is HELD:
            if isinstance(error, LeaseLost):
                self._lost(delivery, error)
            if not error.retryable:
                # For example, the lease has its maximum length; repeating the request cannot help.
                delivery._renew_at = NEVER


class Renewals:
    """The renewal timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.holders: dict[LeaseHolder, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = NEVER

    def watch(self, holder: LeaseHolder) -> None:
        self.holders[holder] = None

    def forget(self, holder: LeaseHolder) -> None:
        self.holders.pop(holder, None)

    def arm(self, renew_at: float) -> None:
        """Schedule a tick at `renew_at` or earlier."""
        if renew_at < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = renew_at
            self._timer = self._loop.call_at(renew_at, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._due = NEVER
        self.holders.clear()

    def _tick(self) -> None:
        self._timer = None
        self._due = NEVER
        now = self._loop.time()
        earliest = NEVER
        for holder in list(self.holders):
            for delivery in holder._leases():
                if delivery._state in (HELD, SETTLING):
                    if delivery._renew_at <= now:
                        holder._renew(delivery)
                    earliest = min(earliest, delivery._renew_at)
        if earliest != NEVER:
            self.arm(max(earliest, now + TICK_LEAST_S))


def end_of_lease(answer: Raw) -> int:
    """The end of a lease in the answer to its extension. Raises `Internal` if a server gives another answer than ours do."""
    try:
        return msgspec.json.decode(answer, type=Extended).lease_expires_at
    except msgspec.DecodeError:
        message = "the answer to an extension does not say when the lease ends"
        hint = "check what answers at this URL; the lease may have been extended"
        raise PenstockError(Refusal("Internal", message, hint=hint)) from None


def half_lease_s(lease_ms: int | None, expires_at_ms: int | None) -> float:
    """Half of a lease that starts now: from its requested length, or else from its end."""
    if lease_ms is None:
        if expires_at_ms is None:
            lease_ms = LEASE_LEAST_MS
        else:
            left_ms = expires_at_ms - int(time.time() * 1000)
            lease_ms = max(LEASE_LEAST_MS, min(LEASE_GUESS_MS, left_ms))
    return lease_ms / 2000
