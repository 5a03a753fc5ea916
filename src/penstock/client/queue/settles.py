"""Settles without an answer: collected during a loop turn, sent together, bounded for each client, and lost with their leases.

Owns every settle from the call of the application to the server's answer. Frames leave in the order of the calls; consecutive acks of a
subscription are one frame. An error for an array of acks does not name the id it is about, so each id is then acked alone with its lease;
`AlreadyAcked` is success for an ack, because the array or an earlier connection may have done it.

A settle is lost when its lease ended or its connection was cut: it is counted, logged and reported, and raised only by `flush` and by a
call that waits. Any other failure is raised by the next call. Cost of an ack: one list entry, and its share of one frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from penstock.client.queue.delivery import HELD, LOST, NEVER, SETTLED, SETTLING, Delivery, raise_first
from penstock.core.errors import LeaseLost, PenstockError, Refusal
from penstock.core.limits import Limits

if TYPE_CHECKING:
    from penstock.client.queue.renewals import LeaseHolder

ACKS_MAX = Limits().batch_max
"""The most ids in one ack."""
UNCONFIRMED_MAX = 4_096
"""The default of the most settles of a client without an answer."""
TURN_MAX = 256
TURN_S = 0.005
"""A loop that never waits is interrupted after so many settles or seconds, so that they leave and leases are renewed."""
LEAVE_S = 5.0
"""How long leaving waits for the answers."""
LOG_EVERY_S = 1.0
"""The least time between two log lines about lost settles of one stream."""
ENDED = ("AlreadyAcked", "UnknownEnvelope", "Unreachable")
"""Besides `LeaseLost`, the errors of a settle that came after the end of its lease, or was cut off."""
CANCELLED = Refusal("Unreachable", "the settle was cancelled before its answer")

OnLost = Callable[[Delivery], object]

_LOG = logging.getLogger("penstock.client")


class Unconfirmed:
    """How many settles of one client have no answer; at `most` of them, callers wait."""

    def __init__(self, most: int = UNCONFIRMED_MAX) -> None:
        if most < 1:
            raise PenstockError(Refusal("InvalidRequest", f"unconfirmed_max is at least 1, not {most}"))
        self.most = most
        self.count = 0
        self._has_room = asyncio.Event()

    async def room(self) -> None:
        """Wait until another settle may be handed over."""
        while self.count >= self.most:
            self._has_room.clear()
            await self._has_room.wait()

    def answered(self, count: int) -> None:
        self.count -= count
        if self.count < self.most:
            self._has_room.set()


class SettleGroup(Struct, eq=False):
    """One frame of settles."""

    deliveries: list[Delivery]
    body: bytes | None = None
    """None for acks, which are encoded when they are sent."""


class Settles:
    """The settles of one holder of leases that have no answer."""

    def __init__(self, holder: LeaseHolder, unconfirmed: Unconfirmed, what: str, on_lost: OnLost | None = None) -> None:
        self.lost = 0
        self.unconfirmed = unconfirmed
        self._holder = holder
        self._what = what
        self._on_lost = on_lost
        self._acks: list[Delivery] = []
        self._unsent: list[SettleGroup] = []
        self._sent: dict[SettleGroup, None] = {}
        self._confirming: dict[Delivery, asyncio.Future[PenstockError | None]] = {}
        """Calls with `confirm`, one for each delivery; the caller may settle it again."""
        self._flushing: dict[Delivery, asyncio.Future[PenstockError | None]] = {}
        """What `flush` and `leave` wait for."""
        self._in_turn = 0
        self._turn_end = NEVER
        self._failure: PenstockError | None = None
        self._loss: LeaseLost | None = None
        """The first loss since the last `flush`."""
        self._logged_at = -LOG_EVERY_S

    # -- for deliveries

    def must_wait(self) -> bool:
        """Whether the next settle waits: for room, or for the loop to send what a long turn has collected."""
        unconfirmed = self.unconfirmed
        return unconfirmed.count >= unconfirmed.most or self._in_turn >= TURN_MAX or monotonic() > self._turn_end

    async def wait(self) -> None:
        """Wait until another settle may be handed over."""
        await asyncio.sleep(0)
        await self.unconfirmed.room()

    def claim(self, delivery: Delivery) -> None:
        """Begin to settle a delivery. Any thread may call this."""
        if delivery._state is not HELD:
            delivery.check()
        delivery._state = SETTLING

    def add(self, delivery: Delivery, body: bytes | None = None) -> None:
        """Add a claimed delivery to the frames of this turn; no body is an ack."""
        if delivery._loss is not None:
            delivery._state = LOST  # the loop may have lost it while another thread claimed it
            self._note_loss(delivery, delivery._loss)
            return
        self.unconfirmed.count += 1
        if not self._in_turn:
            self._turn_end = monotonic() + TURN_S
        self._in_turn += 1
        if body is None:
            self._acks.append(delivery)
        else:
            self._end_acks()
            self._unsent.append(SettleGroup([delivery], body))

    async def outcomes(self, deliveries: Sequence[Delivery]) -> list[PenstockError]:
        """Wait, as their only caller, until the settles of these deliveries are durable or have failed; returns their errors."""
        future = asyncio.get_running_loop().create_future
        lost = [one._loss for one in deliveries if one._state is LOST]
        waiting = [self._confirming.setdefault(one, future()) for one in deliveries if one._state is SETTLING]
        return [error for error in (*lost, *await asyncio.gather(*waiting)) if error is not None]

    def take_failure(self) -> PenstockError | None:
        """What an earlier settle failed with, unless a call has raised it."""
        failure, self._failure = self._failure, None
        return failure

    def raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    # -- for the holder

    def send(self) -> None:
        """Send what was collected."""
        self._in_turn, self._turn_end = 0, NEVER
        self._end_acks()
        unsent, self._unsent = self._unsent, []
        for frame in unsent:
            self._send(frame)

    def unanswered(self) -> Iterator[Delivery]:
        """The deliveries whose settles have no answer."""
        yield from self._acks
        for frame in (*self._unsent, *self._sent):
            yield from frame.deliveries

    def lose_unsent(self, seq: int, error: LeaseLost) -> None:
        """An envelope was delivered again: a settle of the earlier delivery must not reach the new one."""
        for delivery in [*self._acks, *(one for frame in self._unsent for one in frame.deliveries)]:
            if delivery.seq == seq:
                self.lose(delivery, error)

    def lose(self, delivery: Delivery, error: LeaseLost) -> None:
        """The lease ended before the settle was answered."""
        if delivery._state is not LOST:
            delivery._lose(error)
            self._note_loss(delivery, error)

    def lose_all(self, error: LeaseLost) -> None:
        """Every lease is lost."""
        frames = [SettleGroup(self._acks), *self._unsent, *self._sent]
        self._acks, self._unsent, self._sent = [], [], {}
        for frame in frames:
            self._end(frame, error)

    async def flush(self) -> None:
        """Wait for the answer of every settle before this call. Raises a failure, or the first loss since the last flush."""
        errors = await self._answers()
        loss, self._loss = self._loss, None
        raise_first([error for error in (loss, self.take_failure(), *errors) if error is not None])

    async def leave(self) -> PenstockError | None:
        """Wait for the answers, but not for long; returns a failure that no call has raised."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._answers()
        except TimeoutError:
            message = f"the server did not confirm a settle of {self._what} within {LEAVE_S:g} s"
            self.lose_all(LeaseLost(Refusal("LeaseExpired", message)))
        return self.take_failure()

    # -- inside

    async def _answers(self) -> list[PenstockError]:
        """Send, and wait for the answer of every settle before this call; returns their errors."""
        self.send()
        create_future = asyncio.get_running_loop().create_future
        waiting = [self._flushing.setdefault(delivery, create_future()) for delivery in self.unanswered()]
        if waiting:
            await asyncio.wait(waiting)  # which does not cancel them: other flushes may wait for the same
        return [error for future in waiting if (error := future.result()) is not None]

    def _has_caller(self, delivery: Delivery) -> bool:
        """Whether a call waits for the outcome of this settle; a call that was cancelled does not."""
        caller = self._confirming.get(delivery)
        return caller is not None and not caller.done()

    def _end_acks(self) -> None:
        acks, self._acks = self._acks, []
        self._unsent += [SettleGroup(acks[start : start + ACKS_MAX]) for start in range(0, len(acks), ACKS_MAX)]

    def _send(self, frame: SettleGroup) -> None:
        lost = [delivery for delivery in frame.deliveries if delivery._state is LOST]
        if lost:
            self._end(SettleGroup(lost), None)
            frame.deliveries = [delivery for delivery in frame.deliveries if delivery._state is not LOST]
            if not frame.deliveries:
                return
        self._sent[frame] = None
        holder = self._holder
        body = frame.body or holder._ack_frame(frame.deliveries)
        answer = holder._connection.submit(body, is_repeatable=holder._survives_connection)
        answer.add_done_callback(partial(self._answered, frame))

    def _answered(self, frame: SettleGroup, answer: asyncio.Future[Raw]) -> None:
        error = PenstockError(CANCELLED) if answer.cancelled() else answer.exception()
        if frame not in self._sent:
            return  # lost with the connection
        del self._sent[frame]
        if error is not None and not isinstance(error, PenstockError):  # raised here, it would reach no caller
            error = PenstockError(Refusal("Internal", f"a settle failed: {error!r}"))
        if error is not None and len(frame.deliveries) > 1 and error.code != "Unreachable":
            for delivery in frame.deliveries:
                self._send(SettleGroup([delivery]))
        else:
            self._end(frame, error)

    def _end(self, frame: SettleGroup, error: PenstockError | None) -> None:
        is_done = error is None or (frame.body is None and error.code == "AlreadyAcked")
        for delivery in frame.deliveries:
            verdict: PenstockError | None = None
            if delivery._state is LOST:
                verdict = delivery._loss
            elif is_done or error is None:
                delivery._state = SETTLED
            else:
                verdict = self._refused(delivery, error)
            if self._flushing and (flush := self._flushing.pop(delivery, None)) is not None:
                flush.set_result(verdict)
            caller = self._confirming.pop(delivery, None) if self._confirming else None
            if caller is not None and not caller.done():
                caller.set_result(verdict)
            elif verdict is not None and not isinstance(verdict, LeaseLost):
                self._failure = self._failure or verdict
        self.unconfirmed.answered(len(frame.deliveries))

    def _refused(self, delivery: Delivery, error: PenstockError) -> PenstockError:
        """Apply the error of a settle to its delivery."""
        if error.code in ENDED:
            error = LeaseLost(Refusal("LeaseExpired", error.refusal.message, ref=delivery.lease_id))
        if isinstance(error, LeaseLost):
            self.lose(delivery, error)
            return error
        delivery._state = HELD
        if not self._has_caller(delivery):
            # No caller waits for this outcome to retry, so the lease ends by itself and the server delivers again.
            delivery._renew_at = NEVER
        self._holder._take_back(delivery)
        return error

    def _note_loss(self, delivery: Delivery, error: LeaseLost | None) -> None:
        self.lost += 1
        if not self._has_caller(delivery):
            self._loss = self._loss or error
        now = self._holder._connection.loop.time()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            why = "its lease ended" if error is None else error.refusal.message
            _LOG.warning(
                "lost a settle of %s, %d so far; its envelope is delivered again: %s", self._what, self.lost, why
            )
        if self._on_lost is not None:
            try:
                self._on_lost(delivery)
            except Exception:
                _LOG.exception("`on_lost` failed for %r", delivery)
