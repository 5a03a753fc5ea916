"""A subscription: a window of credit over one stream, and the deliveries inside it.

Owns the window, the buffer of deliveries that the application has not taken, and the unsettled deliveries. Invariants: credit granted to
the server plus deliveries held here never exceed `credit`; a delivery whose connection was lost, or whose envelope was delivered again, is
lost and cannot be settled. Acks and grants of one loop turn are sent together. Cost of an arrival: one object and one dict entry.
"""

# size: one class whose parts share the window; acks, renewals and workers are already modules of their own

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, Self

from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import DeliverFrame, ExpiredFrame, Sent, decode_bodies, head
from penstock.client.control.listener import FrameListener, reject
from penstock.client.queue.acks import ACKS_MAX, Acks, Errors
from penstock.client.queue.delivery import Delivery, P, PayloadReader, State, raise_first
from penstock.client.queue.renewals import LeaseHolder, Renewals, half_lease_s
from penstock.client.queue.worker import Handler, check_concurrency, handle
from penstock.core.errors import LeaseLost, PenstockError, Refusal
from penstock.core.limits import Limits

CREDIT_MAX = Limits().credit_max


class Subscription(FrameListener, LeaseHolder, Generic[P]):
    """The deliveries of one stream: `async for delivery in subscription`. Best inside `async with`, which releases the rest at its end.

    The client grants new credit as you settle, so at most `credit` deliveries are unsettled. After a lost connection the subscription
    resumes by itself; the unsettled deliveries are lost and delivered again.

    Example:
        async with client.subscribe("jobs", credit=10) as jobs:
            async for job in jobs:
                print(job.payload)
                await job.ack()
    """

    def __init__(
        self,
        connection: ControlConnection,
        renewals: Renewals,
        stream: str,
        *,
        sub_id: str,
        credit: int,
        lease_ms: int | None = None,
        batch: int = 1,
        intercept: Callable[[Delivery], bool] | None = None,
        replier: Callable[[Delivery, object, str | None], Awaitable[Sent]],
        on_close: Callable[[Subscription], None] | None = None,
        reader: PayloadReader | None = None,
    ) -> None:
        if not 1 <= credit <= CREDIT_MAX:
            raise PenstockError(Refusal("InvalidCredit", f"credit is 1 to {CREDIT_MAX}, not {credit}"))
        super().__init__(connection, sub_id)
        self.stream = stream
        self.credit = credit
        self.lease_ms = lease_ms
        self.batch = batch
        self._reply = replier
        self._renewals = renewals
        self._intercept = intercept
        self._on_close = on_close
        self._reader = reader
        self._outstanding = 0
        """Credit that the server has and has not used."""
        self._owed = 0
        """Credit to grant again."""
        self._held: dict[int, Delivery] = {}
        self._buffer: deque[Delivery] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._acks = Acks(connection, sub_id, self._refused)

    # -- for the application

    @property
    def is_open(self) -> bool:
        """Whether the server has confirmed the subscription and it has not ended since."""
        return self._is_live and not self._is_closed

    async def open(self) -> Self:
        """Subscribe, and wait for the server's confirmation. Iterating does this by itself."""
        if self._opened is None:
            self._opened = self._connection.loop.create_future()
            self._renewals.watch(self)
            self._connection.attach(self)
        await asyncio.shield(self._opened)
        return self

    def __aiter__(self) -> AsyncIterator[Delivery[P]]:
        return self

    async def __anext__(self) -> Delivery[P]:
        while True:
            if self._buffer:
                delivery = self._buffer.popleft()
                if delivery._state is State.HELD:
                    return delivery
                continue
            if not await self._arrival():
                raise StopAsyncIteration

    async def next_batch(self, count_max: int = ACKS_MAX) -> list[Delivery[P]]:
        """All buffered deliveries, up to `count_max`; waits for the first one. Empty when the subscription is closed."""
        while True:
            taken: list[Delivery[P]] = []
            while self._buffer and len(taken) < count_max:
                delivery = self._buffer.popleft()
                if delivery._state is State.HELD:
                    taken.append(delivery)
            if taken or not await self._arrival():
                return taken

    async def batches(self, count_max: int = ACKS_MAX) -> AsyncIterator[list[Delivery[P]]]:
        """Deliveries in lists of all that have arrived. Together with `ack` the fastest way to consume."""
        while batch := await self.next_batch(count_max):
            yield batch

    async def ack(self, deliveries: Sequence[Delivery[P]]) -> None:
        """Ack many at once. If some fail, raises the first error after all others are durable."""
        starts = range(0, len(deliveries), ACKS_MAX)
        futures = [self._ack_soon(deliveries[start : start + ACKS_MAX]) for start in starts]
        errors: Errors = []
        for future in futures:
            errors += await future
        raise_first(errors)

    async def work(self, handler: Handler[P], *, concurrency: int = 1) -> None:
        """Call `handler` for every delivery, up to `concurrency` of them at a time, until the subscription is closed.

        When a handler returns, its delivery is acked, unless the handler settled it. When it raises, the delivery is nacked, comes
        back after a back-off, and the exception is logged; the asker of a question gets `HandlerFailed` at once instead. Leases are
        renewed while handlers run; if one is lost nevertheless, `LeaseLost` is raised at the handler's current `await`. Cancelling
        `work` stops the handlers and releases their unsettled deliveries.

        Example:
            async def resize(delivery):
                await asyncio.to_thread(make_small, delivery.payload["file"])

            async with penstock.connect() as client:
                await client.subscribe("images/in", credit=8).work(resize, concurrency=8)
        """
        check_concurrency(concurrency)

        async def worker() -> None:
            async for delivery in self:
                await handle(delivery, handler)

        async with self:
            workers = [self._connection.loop.create_task(worker()) for _ in range(concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:
                for task in workers:
                    task.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def close(self) -> None:
        """Unsubscribe. Unsettled deliveries return to the stream."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_live:
            self._emit()
            await self._unsubscribe()
        self._drop(LeaseLost(Refusal("NotLeaseHolder", f"the subscription to `{self.stream}` was closed")))
        self._connection.detach(self)
        self._renewals.forget(self)
        self._wake(len(self._takers))
        if self._on_close is not None:
            self._on_close(self)

    async def _arrival(self) -> bool:
        """Wait for a delivery; False when the subscription is closed."""
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            return False
        if self._opened is None or not self._opened.done():
            await self.open()
        if not self._buffer:
            taker: asyncio.Future[None] = self._connection.loop.create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                if taker.done() and not taker.cancelled():
                    self._wake(1)  # pass the wake-up on to the next waiting task
                raise
        return True

    # -- settling, for Delivery

    async def _settle(self, delivery: Delivery, op: str, **fields: object) -> None:
        if op == "ack":
            raise_first(await self._ack_soon((delivery,)))
            return
        delivery.check()
        self._let_go(delivery)
        if "backoff" not in self._connection.hello.features:
            fields.pop("backoff", None)
        body = head(op, id=delivery.id, subId=self._sub_id, leaseId=delivery.lease_id, **fields)
        raise_first(await self._acks.settle(delivery, body))

    def _lost(self, delivery: Delivery, error: LeaseLost) -> None:
        if self._held.get(delivery.seq) is delivery:
            self._make_room(delivery)
        delivery._lose(error)

    def _lease_ms_of(self, delivery: Delivery) -> int | None:
        return self.lease_ms

    def _extension(self, delivery: Delivery, ms: int | None) -> bytes:
        return head("extend", id=delivery.id, subId=self._sub_id, leaseId=delivery.lease_id, ms=ms)

    def _let_go(self, delivery: Delivery) -> None:
        """The application has settled the delivery."""
        delivery._state = State.SETTLING
        self._make_room(delivery)

    def _make_room(self, delivery: Delivery) -> None:
        """Free its place in the window."""
        if self._held.pop(delivery.seq, None) is not None:
            self._owed += 1
            self._connection.mark(self)

    def _ack_soon(self, deliveries: Sequence[Delivery]) -> asyncio.Future[Errors]:
        for delivery in deliveries:
            delivery.check()
        # The same as `_let_go`, inlined for many deliveries: this path is hot.
        held, held_before = self._held, len(self._held)
        for delivery in deliveries:
            delivery._state = State.SETTLING
            held.pop(delivery.seq, None)
        self._owed += held_before - len(held)
        self._connection.mark(self)
        return self._acks.add(deliveries)

    def _refused(self, delivery: Delivery, error: PenstockError) -> PenstockError:
        """Apply the error of a settle to the delivery."""
        if delivery._state is State.LOST or error.code == "Unreachable":
            message = f"the connection was lost before seq {delivery.seq} of `{self.stream}` was settled"
            loss = LeaseLost(Refusal("LeaseExpired", message, ref=delivery.lease_id))
            delivery._lose(loss)
            return loss
        error = self._judge(delivery, error)
        if not isinstance(error, LeaseLost):
            # The lease still holds: the caller may retry, and the lease is renewed until then.
            delivery._state = State.HELD
            self._held[delivery.seq] = delivery
        return error

    # -- for the connection

    def _resume(self) -> None:
        self._outstanding = self.credit
        self._owed = 0
        batch = self.batch if self.batch > 1 else None
        fields = {"stream": self.stream, "subId": self._sub_id, "credit": self.credit, "leaseMs": self.lease_ms}
        self._subscribe(head("subscribe", **fields, batch=batch, expired=True))

    def _arrived(self, frame: DeliverFrame) -> None:
        stream = frame.stream or self.stream
        expires_at_ms = frame.lease_expires_at
        renew_at = self._connection.loop.time() + half_lease_s(self.lease_ms, expires_at_ms)
        if isinstance(frame.seq, list):
            bodies, seqs = decode_bodies(frame.env), frame.seq
            attempts, lease_ids = frame.attempt, frame.lease_id
            if not isinstance(attempts, list) or not isinstance(lease_ids, list):
                return
        else:
            bodies, seqs = [frame.env], [frame.seq]
            attempts, lease_ids = [frame.attempt], [frame.lease_id]  # type: ignore[list-item]
        held, buffer, intercept = self._held, self._buffer, self._intercept
        for raw, seq, attempt, lease_id in zip(bodies, seqs, attempts, lease_ids, strict=False):
            delivery = Delivery(self, raw, stream, seq, attempt, lease_id, expires_at_ms, renew_at, self._reader)
            if attempt > 1 and seq in held:
                message = f"seq {seq} of `{stream}` was delivered again: its lease had expired"
                self._lost(held[seq], LeaseLost(Refusal("LeaseExpired", message, ref=lease_id)))
            held[seq] = delivery
            if intercept is None or not intercept(delivery):
                buffer.append(delivery)
        self._outstanding -= len(seqs)
        self._renewals.arm(renew_at)
        if self._owed:
            self._connection.mark(self)
        self._wake(len(seqs))

    def _expired(self, frame: ExpiredFrame) -> None:
        for delivery in list(self._held.values()):
            if delivery.lease_id == frame.lease_id:
                message = f"the lease on `{frame.id}` expired before it was settled"
                self._lost(delivery, LeaseLost(Refusal("LeaseExpired", message, ref=frame.id)))

    def _emit(self) -> None:
        self._acks.send()
        # Half a window keeps the server busy; granting earlier would only send more frames.
        if self._owed and 2 * self._outstanding < self.credit and not self._is_closed:
            grant, self._owed = self._owed, 0
            self._outstanding += grant
            self._submit(head("grant", n=grant, subId=self._sub_id))

    def _disconnected(self, reason: str) -> None:
        message = f"the connection that held the lease was lost: {reason}"
        self._drop(LeaseLost(Refusal("LeaseExpired", message)))

    def _failed(self, error: PenstockError) -> None:
        self._failure = error
        self._drop(LeaseLost(Refusal("LeaseExpired", error.refusal.message)))
        reject(self._opened, error)
        self._wake(len(self._takers))

    def _drop(self, error: LeaseLost) -> None:
        """Mark every unsettled delivery as lost."""
        for delivery in self._held.values():
            delivery._lose(error)
        self._held.clear()
        self._buffer.clear()
        self._acks.lose(error)

    def _wake(self, count: int) -> None:
        while count > 0 and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1
