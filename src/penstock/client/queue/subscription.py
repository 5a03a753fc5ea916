"""A subscription: a window of credit over one stream, and the deliveries inside it.

Owns the window, the buffer of deliveries that the application has not taken, and the unsettled deliveries. Invariants: credit granted to
the server plus deliveries held here never exceed `credit`; a delivery whose connection was lost, or whose envelope was delivered again, is
lost and cannot be settled. Settles and grants of one loop turn are sent together. Cost of an arrival: one object and one dict entry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Self

from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import DeliverFrame, ExpiredFrame, Sent, decode_bodies, head
from penstock.client.control.listener import FrameListener, reject
from penstock.client.control.owner_links import OwnerLinks
from penstock.client.queue.delivery import HELD, SETTLING, Delivery, P, PayloadReader, raise_first
from penstock.client.queue.renewals import LeaseHolder, Renewals, half_lease_s
from penstock.client.queue.settles import ACKS_MAX, OnLost, Settles, Unconfirmed
from penstock.client.queue.worker import BatchHandler, Handler, check_concurrency, handle, run_batch, start
from penstock.core.errors import LeaseLost, PenstockError, Refusal
from penstock.core.limits import Limits

CREDIT_MAX = Limits().credit_max


class Subscription(FrameListener, LeaseHolder, Generic[P]):
    """The deliveries of one stream: `async for delivery in subscription`. Best inside `async with`, which releases the rest at its end.

    The client grants new credit as you settle, so at most `credit` deliveries are unsettled. After a lost connection the subscription
    resumes by itself; the unsettled deliveries are lost and delivered again. So are settles without an answer: `lost` counts them,
    the log names them, and `on_lost` gets each delivery. Leaving waits up to 5 s for the answers.

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
        unconfirmed: Unconfirmed,
        on_lost: OnLost | None = None,
        owners: OwnerLinks | None = None,
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
        self._owners = owners
        self._outstanding = 0
        """Credit that the server has and has not used."""
        self._owed = 0
        """Credit to grant again."""
        self._held: dict[int, Delivery] = {}
        self._buffer: deque[Delivery] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._settles = Settles(self, unconfirmed, f"`{stream}`", on_lost)

    # -- for the application

    @property
    def is_open(self) -> bool:
        """Whether the server has confirmed the subscription and it has not ended since."""
        return self._is_live and not self._is_closed

    @property
    def lost(self) -> int:
        """Settles that were lost with their leases or their connection; the server delivers these envelopes again."""
        return self._settles.lost

    async def open(self) -> Self:
        """Subscribe, and wait for the server's confirmation. Iterating does this by itself."""
        await asyncio.shield(self._begin())
        return self

    def _begin(self) -> asyncio.Future[None]:
        """Subscribe; the future is done when the server confirms it."""
        if self._opened is None:
            self._opened = self._connection.loop.create_future()
            self._renewals.watch(self)
            if self._owners is None:
                self._connection.attach(self)
            else:
                self._owners.place(self.stream, self._attach, self._failed)
        return self._opened

    def _attach(self, connection: ControlConnection) -> None:
        """Subscribe there, at the owner of the stream's shard or at a node that forwards."""
        if not self._is_closed:
            self._connection = connection
            connection.attach(self)

    def __aiter__(self) -> AsyncIterator[Delivery[P]]:
        return self

    async def __anext__(self) -> Delivery[P]:
        while (delivery := self._next_buffered()) is None:
            if not await self._arrival():
                raise StopAsyncIteration
        return delivery

    def _next_buffered(self) -> Delivery[P] | None:
        """The next delivery that has arrived. Any thread may call this."""
        buffer = self._buffer
        try:
            while (delivery := buffer.popleft())._state is not HELD:
                pass
        except IndexError:
            return None
        return delivery

    async def next_batch(self, count_max: int = ACKS_MAX) -> list[Delivery[P]]:
        """All buffered deliveries, up to `count_max`; waits for the first one. Empty when the subscription is closed."""
        while True:
            taken: list[Delivery[P]] = []
            while len(taken) < count_max and (delivery := self._next_buffered()) is not None:
                taken.append(delivery)
            if taken or not await self._arrival():
                return taken

    async def batches(self, count_max: int = ACKS_MAX) -> AsyncIterator[list[Delivery[P]]]:
        """Deliveries in lists of all that have arrived. Together with `ack` the fastest way to consume."""
        while batch := await self.next_batch(count_max):
            yield batch

    async def ack(self, deliveries: Sequence[Delivery[P]], *, confirm: bool = False) -> None:
        """Ack many at once. With `confirm`, raises the first error after all others are durable."""
        passed = await self._ack_many(deliveries)
        self._settles.raise_failure()
        if confirm:
            raise_first(await self._settles.outcomes([one for one in deliveries if one not in passed]))
        for delivery in passed:
            delivery.check()

    async def flush(self) -> None:
        """Wait until every settle before this call is durable. Raises `LeaseLost` if one was lost since the last flush."""
        await self._settles.flush()

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

        async def worker() -> None:
            async for delivery in self:
                if (rest := start(delivery, handler)) is not None:
                    await rest

        await self._run(worker, concurrency)

    async def work_batch(self, handler: BatchHandler[P], *, max: int = 256, concurrency: int = 1) -> None:  # noqa: A002
        """Call `handler` with a list of all deliveries that have arrived, up to `max` of them, until the subscription is closed.

        When the handler returns, those that it did not settle are acked; when it raises, they are nacked. `concurrency` lists are in
        work at a time. A lost lease does not interrupt the handler, because the others hold: `is_lost` shows it.
        """
        if max < 1:
            raise PenstockError(Refusal("InvalidRequest", f"max is at least 1, not {max}", ref="max"))

        async def worker() -> None:
            while batch := await self.next_batch(max):
                await handle(batch, run_batch(handler, batch), self._ack_many)

        await self._run(worker, concurrency)

    async def _run(self, worker: Callable[[], Coroutine[Any, Any, None]], concurrency: int) -> None:
        check_concurrency(concurrency)
        async with self:
            workers = [self._connection.loop.create_task(worker()) for _ in range(concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:
                for task in workers:
                    task.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def close(self) -> None:
        """Wait up to 5 s for the answers to settles, then unsubscribe. Unsettled deliveries return to the stream."""
        if self._is_closed:
            return
        self._is_closed = True
        self._buffer.clear()
        self._wake(len(self._takers))
        try:
            failure = await self._settles.leave()
            if self._is_live:
                await self._unsubscribe()
        finally:
            self._drop(LeaseLost(Refusal("NotLeaseHolder", f"the subscription to `{self.stream}` was closed")))
            self._connection.detach(self)
            self._renewals.forget(self)
            if self._on_close is not None:
                self._on_close(self)
        if failure is not None:
            raise failure

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
                if len(self._buffer) > 1:
                    self._wake(1)  # one more than takes all of it without waiting
            except asyncio.CancelledError:
                if taker.done() and not taker.cancelled():
                    self._wake(1)  # pass the wake-up on to the next waiting task
                raise
        return True

    # -- settling, for Delivery

    def _hand_over(self, delivery: Delivery, op: str, fields: dict[str, object]) -> None:
        body = None
        if op != "ack":
            if "backoff" not in self._connection.hello.features:
                fields.pop("backoff", None)
            body = head(op, id=delivery.id, subId=self._sub_id, leaseId=delivery.lease_id, **fields)
        self._settles.add(delivery, body)
        if self._held.get(delivery.seq) is delivery:  # else it was delivered again
            del self._held[delivery.seq]
            self._owed += 1
        self._connection.mark(self)

    async def _ack_many(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Ack deliveries as there is room. Returns those that were lost or settled during the wait."""
        for delivery in deliveries:
            if delivery._state is not HELD:
                delivery.check()
        settles, held, rest, passed = self._settles, self._held, [*dict.fromkeys(deliveries)], []
        while rest:
            await settles.unconfirmed.room()
            room = settles.unconfirmed.most - settles.unconfirmed.count
            acks = []
            for delivery in rest[:room]:
                if delivery._state is HELD:
                    delivery._state = SETTLING
                    self._owed += held.pop(delivery.seq, None) is not None
                    acks.append(delivery)
                else:
                    passed.append(delivery)
            settles.unconfirmed.count += len(acks)
            settles._acks += acks
            self._connection.mark(self)
            rest = rest[room:]
        return passed

    def _take_back(self, delivery: Delivery) -> None:
        self._held[delivery.seq] = delivery
        self._owed -= 1

    def _ack_frame(self, deliveries: list[Delivery]) -> bytes:
        if len(deliveries) == 1:
            return head("ack", id=deliveries[0].id, subId=self._sub_id, leaseId=deliveries[0].lease_id)
        return head("ack", id=[delivery.id for delivery in deliveries], subId=self._sub_id)

    def _lost(self, delivery: Delivery, error: LeaseLost) -> None:
        if self._held.get(delivery.seq) is delivery:
            del self._held[delivery.seq]
            self._owed += 1
            self._connection.mark(self)
        delivery._lose(error)

    def _extension(self, delivery: Delivery, ms: int | None) -> bytes:
        return head("extend", id=delivery.id, subId=self._sub_id, leaseId=delivery.lease_id, ms=ms)

    # -- for the connection

    def _resume(self) -> None:
        if self._owners is not None and self._owners.map is not None:
            better = self._owners.of(self.stream)
            if better is not self._connection and better.is_ready:
                self._connection.detach(self)
                self._attach(better)
                return
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
            delivery = Delivery(
                self, raw, stream, seq, attempt, lease_id, expires_at_ms, renew_at, self.lease_ms, self._reader
            )
            if attempt > 1:
                self._delivered_again(seq, lease_id)
            held[seq] = delivery
            if intercept is None or not intercept(delivery):
                buffer.append(delivery)
        self._outstanding -= len(seqs)
        self._renewals.arm(renew_at)
        if self._owed:
            self._connection.mark(self)
        self._wake(1)

    def _delivered_again(self, seq: int, lease_id: str) -> None:
        message = f"seq {seq} of `{self.stream}` was delivered again: its lease had expired"
        error = LeaseLost(Refusal("LeaseExpired", message, ref=lease_id))
        if seq in self._held:
            self._lost(self._held[seq], error)
        self._settles.lose_unsent(seq, error)

    def _expired(self, frame: ExpiredFrame) -> None:
        for delivery in self._leases():
            if delivery.lease_id == frame.lease_id:
                message = f"the lease on `{frame.id}` expired before it was settled"
                error = LeaseLost(Refusal("LeaseExpired", message, ref=frame.id))
                if delivery._state is SETTLING:
                    self._settles.lose(delivery, error)
                else:
                    self._lost(delivery, error)

    def _emit(self) -> None:
        self._settles.send()
        # Half a window keeps the server busy; granting earlier would only send more frames.
        if self._owed > 0 and 2 * self._outstanding < self.credit and not self._is_closed:
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
        self._settles.lose_all(error)

    def _wake(self, count: int) -> None:
        while count > 0 and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1
