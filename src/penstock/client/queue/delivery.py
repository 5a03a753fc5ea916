"""One delivery: an envelope under a lease, and the operations that end the lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from penstock.client.control.frames import Head, Sent
from penstock.core.errors import LeaseLost, PenstockError, Refusal

if TYPE_CHECKING:  # the default of a type variable is new in Python 3.13
    import typing_extensions

    from penstock.client.queue.renewals import LeaseHolder

    P = typing_extensions.TypeVar("P", default=Any)
else:
    P = TypeVar("P")

PayloadReader = Callable[[Raw], Any]
NEVER = float("inf")
"""When to renew a lease that the client does not renew."""
decode_head = msgspec.json.Decoder(Head).decode
decode_envelope = msgspec.json.Decoder(dict[str, Any]).decode


class State(Enum):
    """The state of a delivery."""

    HELD = "held"
    SETTLING = "settling"
    SETTLED = "settled"
    LOST = "lost"


HELD, SETTLING, SETTLED, LOST = State
"""As names of the module: an attribute of an enum class costs more than the rest of a check."""


class Delivery(Generic[P]):
    """A delivered envelope under a lease. Settle it with `ack`, `nack`, `release` or `term`.

    Until then the client renews the lease in the background. If the lease is lost nevertheless, settling raises `LeaseLost`;
    `is_lost` shows it earlier.

    A settle is handed over and travels with the others of its loop turn. With `confirm=True` the call waits until the journal has
    it; `flush` of the subscription or the client waits for all. A settle that is lost on the way sets `is_lost`, and the server
    delivers the envelope again.

    Example:
        for delivery in await client.pull("jobs", max=10):
            print(delivery.type, delivery.sender, delivery.payload)
            await delivery.ack()
    """

    __slots__ = (
        "_envelope", "_holder", "_lease_ms", "_loss", "_on_loss", "_raw", "_reader", "_renew_at", "_state", "_summary",
        "_value", "attempt", "has_replied", "lease_expires_at_ms", "lease_id", "seq", "stream",
    )  # fmt: skip

    def __init__(
        self,
        holder: LeaseHolder,
        raw: Raw,
        stream: str,
        seq: int,
        attempt: int,
        lease_id: str,
        lease_expires_at_ms: int | None,
        renew_at: float,
        lease_ms: int | None = None,
        reader: PayloadReader | None = None,
    ) -> None:
        self._holder = holder
        self._raw = raw
        self._reader = reader
        self._value: P
        """The payload as the reader made it; set on first access."""
        self._summary: Head | None = None
        self._envelope: dict[str, Any] | None = None
        self._loss: LeaseLost | None = None
        self.stream = stream
        self.seq = seq
        self.attempt = attempt
        self.lease_id = lease_id
        self.lease_expires_at_ms = lease_expires_at_ms
        self._lease_ms = lease_ms
        """The length of the lease as the application asked for it."""
        self._renew_at = renew_at
        """When to renew, on the loop's clock."""
        self._on_loss: Callable[[LeaseLost], None] | None = None
        """Called when the lease is lost; a running handler sets it."""
        self._state = HELD
        self.has_replied = False

    def __repr__(self) -> str:
        return f"<Delivery {self.stream} seq={self.seq} attempt={self.attempt} {self._state.value}>"

    @property
    def id(self) -> str:
        """The envelope's id."""
        return self._head.id

    @property
    def type(self) -> str:
        """The envelope's type."""
        return self._head.type

    @property
    def sender(self) -> str | None:
        """The envelope's `from`."""
        return self._head.sender

    @property
    def corr(self) -> str | None:
        """The envelope's correlation id."""
        return self._head.corr

    @property
    def _head(self) -> Head:
        """The fields that the client itself needs."""
        head = self._summary
        if head is None:
            head = self._summary = decode_head(self._raw)
        return head

    @property
    def body(self) -> bytes:
        """The envelope as the exact bytes of its JSON."""
        return bytes(self._raw)

    @property
    def envelope(self) -> dict[str, Any]:
        """The envelope, decoded on first access."""
        if self._envelope is None:
            self._envelope = decode_envelope(self._raw)
        return self._envelope

    @property
    def payload(self) -> P:
        """The envelope's payload, as a value of the `type` that you asked for. Raises `SchemaMismatch` if it does not fit.

        It is decoded on first access.
        """
        try:
            return self._value
        except AttributeError:
            self._value = value = (self._reader or msgspec.json.decode)(self._head.payload)
        return value  # type: ignore[no-any-return]

    def _read_as(self, reader: PayloadReader | None) -> Delivery[Any]:
        """Read the payload as another type than its subscription does."""
        self._reader = reader
        if hasattr(self, "_value"):
            del self._value
        return self

    @property
    def is_settled(self) -> bool:
        """Whether the server has confirmed the settlement."""
        return self._state is SETTLED

    @property
    def is_lost(self) -> bool:
        """Whether the lease is known to be lost."""
        return self._state is LOST

    async def ack(self, *, confirm: bool = False) -> None:
        """The work is done: remove the envelope from the stream. With `confirm` it returns when that is durable.

        Without, it returns at once; while `unconfirmed_max` settles have no answer it waits. Raises what an earlier settle failed
        with, but not its lost lease; this settle is handed over nevertheless.
        """
        await self._settle("ack", confirm)

    async def nack(
        self, *, delay_ms: int | None = None, reason: str | None = None, backoff: bool = False, confirm: bool = False
    ) -> None:
        """The work failed: deliver the envelope again, after `delay_ms` if given. Counts as a failed attempt.

        By default the first redeliveries follow at once; with `backoff` each one waits, as the `retry` of the stream says. `confirm`
        is as for `ack`.
        """
        await self._settle("nack", confirm, delayMs=delay_ms, reason=reason, backoff=backoff or None)

    async def release(self, *, confirm: bool = False) -> None:
        """Return the envelope unprocessed. Does not count as a failed attempt. `confirm` is as for `ack`."""
        await self._settle("release", confirm)

    async def term(self, reason: str | None = None, *, confirm: bool = False) -> None:
        """The work can never succeed: move the envelope to the dead letters. `confirm` is as for `ack`."""
        await self._settle("term", confirm, reason=reason)

    async def _settle(self, op: str, confirm: bool, **fields: object) -> None:
        settles = self._holder._settles
        if settles.must_wait():
            self.check()
            await settles.wait()
        settles.claim(self)
        self._holder._hand_over(self, op, fields)
        settles.raise_failure()
        if confirm:
            raise_first(await settles.outcomes([self]))

    async def extend(self, ms: int | None = None) -> int:
        """Extend the lease, counted from now. Returns its new end in milliseconds since 1970."""
        self.check()
        return await self._holder._extend(self, ms)

    async def reply(self, payload: object, *, type: str | None = None) -> Sent:  # noqa: A002
        """Send an answer to the sender's inbox. This does not settle the delivery."""
        sent = await self._holder._reply(self, payload, type)
        self.has_replied = True
        return sent

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is known to be lost. Long work that never waits should call this; it sends nothing."""
        if self._state is LOST:
            raise self._loss or LeaseLost(Refusal("LeaseExpired", "the lease is lost", ref=self.lease_id))
        if self._state is not HELD:
            raise PenstockError(Refusal("AlreadyAcked", f"seq {self.seq} of `{self.stream}` was settled before"))

    def _lose(self, error: LeaseLost) -> None:
        """Mark the lease as lost; a running handler gets the error through `_on_loss`."""
        if self._state is SETTLED:
            return
        was_held, self._state = self._state is HELD, LOST
        self._loss = error
        if was_held and self._on_loss is not None:
            self._on_loss(error)


def raise_first(errors: Sequence[PenstockError]) -> None:
    """Raise one error for several deliveries; a lost lease takes precedence."""
    if errors:
        raise next((error for error in errors if isinstance(error, LeaseLost)), errors[0])


def reader_of(kind: Any) -> PayloadReader:
    """What reads a payload as a `kind`. Raises TypeError for a type that has no JSON.

    msgspec reads its structs, dataclasses and every other type that it knows. A class with `model_validate_json`, as pydantic's
    models have it, validates the payload itself, also inside other types; pydantic is not imported and need not be installed.
    `encode` in `control/frames.py` is the way back.
    """
    validate = getattr(kind, "model_validate_json", None)
    decode = validate or msgspec.json.Decoder(kind, dec_hook=_model).decode

    def read(payload: Raw) -> Any:
        try:
            return decode(bytes(payload))
        except (msgspec.ValidationError, ValueError) as error:
            name = getattr(kind, "__name__", str(kind))
            hint = "`body` has the bytes as they are; `term` moves an envelope that no consumer can read to the dead letters"
            why = f"the payload is no `{name}`: {_one_line(error)}"
            raise PenstockError(Refusal("SchemaMismatch", why, hint=hint)) from error

    return read


def _model(kind: Any, value: Any) -> Any:
    """A model within a type of msgspec."""
    try:
        return kind.model_validate(value)
    except (AttributeError, ValueError) as error:  # `kind` may be no model
        raise ValueError(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    """A pydantic error by the paths of its fields; its own text has several lines and an address."""
    if not callable(errors := getattr(error, "errors", None)):
        return str(error)
    return "; ".join(f"{one['msg']} at `${''.join(f'.{key}' for key in one['loc'])}`" for one in errors())
