"""One delivery: an envelope under a lease, and the verbs that end the lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from penstock.client.control.frames import Head, Sent
from penstock.core.errors import PenstockError, Refusal

LEASE_GONE = frozenset({"LeaseExpired", "NotLeaseHolder"})
"""Refusals of a settle after which the envelope is somebody else's."""

decode_head = msgspec.json.Decoder(Head).decode
decode_envelope = msgspec.json.Decoder(dict[str, Any]).decode


class LeaseLost(PenstockError):  # noqa: N818 - a fact, named as applications speak of it
    """The lease ended before the delivery was settled: the envelope is, or will be, delivered again.

    Raised by what settles a delivery, and inside a handler of `Subscription.work`: whatever it did is somebody else's to do now.
    """


class State(Enum):
    """Where a delivery is in its life."""

    HELD = "held"
    SETTLING = "settling"
    SETTLED = "settled"
    LOST = "lost"


class Holder(Protocol):
    """Who keeps the lease for the application: a subscription, or the client for what was pulled."""

    async def settle(self, delivery: Delivery, op: str, **fields: object) -> None: ...

    async def extend(self, delivery: Delivery, ms: int | None) -> int: ...

    def renew(self, delivery: Delivery) -> None:
        """Ask for more time without waiting for the answer."""

    def lost(self, delivery: Delivery, error: LeaseLost) -> None: ...

    def reply(self, delivery: Delivery, payload: object, type: str | None) -> Awaitable[Sent]: ...  # noqa: A002


class Delivery:
    """An envelope in your hands. Settle it with one of `ack`, `nack`, `release` and `term`.

    While it is unsettled its lease is extended in the background. When the lease is lost all the same,
    settling raises `LeaseLost`, and `is_lost` tells before.

    Example:
        for delivery in await client.pull("jobs", max=10):
            print(delivery.type, delivery.sender, delivery.payload)
            await delivery.ack()
    """

    __slots__ = (
        "_envelope",
        "_head",
        "_holder",
        "_loss",
        "_raw",
        "attempt",
        "lease_expires_at_ms",
        "lease_id",
        "on_loss",
        "renew_at",
        "seq",
        "state",
        "stream",
    )

    def __init__(
        self,
        holder: Holder,
        raw: Raw,
        stream: str,
        seq: int,
        attempt: int,
        lease_id: str,
        lease_expires_at_ms: int | None,
        renew_at: float,
    ) -> None:
        self._holder = holder
        self._raw = raw
        self._head: Head | None = None
        self._envelope: dict[str, Any] | None = None
        self._loss: LeaseLost | None = None
        self.stream = stream
        self.seq = seq
        self.attempt = attempt
        self.lease_id = lease_id
        self.lease_expires_at_ms = lease_expires_at_ms
        self.renew_at = renew_at
        """On the loop's clock."""
        self.on_loss: Callable[[LeaseLost], None] | None = None
        """Who wants to know when the lease is lost; a handler at work does."""
        self.state = State.HELD

    def __repr__(self) -> str:
        return f"<Delivery {self.stream} seq={self.seq} attempt={self.attempt} {self.state.value}>"

    @property
    def id(self) -> str:
        """The envelope's id."""
        return self.head.id

    @property
    def type(self) -> str:
        """The envelope's type."""
        return self.head.type

    @property
    def sender(self) -> str | None:
        """Who sent it: the envelope's `from`."""
        return self.head.sender

    @property
    def head(self) -> Head:
        """The few fields that the client itself needs."""
        head = self._head
        if head is None:
            head = self._head = decode_head(self._raw)
        return head

    @property
    def body(self) -> bytes:
        """The envelope as the very bytes of its JSON."""
        return bytes(self._raw)

    @property
    def envelope(self) -> dict[str, Any]:
        """The envelope, decoded when first asked for."""
        if self._envelope is None:
            self._envelope = decode_envelope(self._raw)
        return self._envelope

    @property
    def payload(self) -> Any:
        """What the envelope carries, decoded."""
        return self.envelope["payload"]

    @property
    def is_settled(self) -> bool:
        """Whether it was settled, and the server said so."""
        return self.state is State.SETTLED

    @property
    def is_lost(self) -> bool:
        """Whether the lease is known to be gone."""
        return self.state is State.LOST

    async def ack(self) -> None:
        """Done: the envelope leaves the stream. Returns when the server has that on record."""
        await self._holder.settle(self, "ack")

    async def nack(self, *, delay_ms: int | None = None, reason: str | None = None) -> None:
        """Failed: deliver it again, after `delay_ms` if given; counts as a failed attempt."""
        await self._holder.settle(self, "nack", delayMs=delay_ms, reason=reason)

    async def release(self) -> None:
        """Give it back untouched; does not count as a failed attempt."""
        await self._holder.settle(self, "release")

    async def term(self, reason: str | None = None) -> None:
        """Never again: to the dead letters."""
        await self._holder.settle(self, "term", reason=reason)

    async def extend(self, ms: int | None = None) -> int:
        """More time, counted from now; returns when the lease ends, in milliseconds since 1970."""
        self.check()
        return await self._holder.extend(self, ms)

    async def reply(self, payload: object, *, type: str | None = None) -> Sent:  # noqa: A002
        """Answer the sender; settling this delivery stays your decision."""
        return await self._holder.reply(self, payload, type)

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is known to be gone: for long work that never waits. Asks nobody."""
        if self.state is State.LOST:
            raise self._loss or LeaseLost(Refusal("LeaseExpired", "the lease is gone", ref=self.lease_id))
        if self.state is not State.HELD:
            raise PenstockError(
                Refusal("AlreadyAcked", f"seq {self.seq} of `{self.stream}` was settled before")
            )

    def lose(self, error: LeaseLost) -> None:
        """The lease is gone. Whoever waits for a settle hears it from that; whoever still works, by `on_loss`."""
        if self.state is State.SETTLED:
            return
        was_held, self.state = self.state is State.HELD, State.LOST
        self._loss = error
        if was_held and self.on_loss is not None:
            self.on_loss(error)


def lease_error(error: PenstockError) -> PenstockError:
    """The same error, as `LeaseLost` when it means that."""
    return LeaseLost(error.refusal) if error.code in LEASE_GONE else error


def raise_first(errors: Sequence[PenstockError]) -> None:
    """Raise one error for several deliveries; a lost lease comes before anything else."""
    if not errors:
        return
    raise next((error for error in errors if isinstance(error, LeaseLost)), errors[0])
