"""The queue client without `async`; `connect_sync` makes one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

from penstock.client.control.frames import ServerHello
from penstock.client.queue.batch import SendBatch
from penstock.client.queue.client import Client
from penstock.client.queue.connect import connect
from penstock.client.queue.delivery import Delivery
from penstock.client.queue.live_view import Change, LiveView
from penstock.client.queue.subscription import Subscription
from penstock.client.queue.worker import check_concurrency
from penstock.client.sync import twin


class SyncDelivery(twin.Twin[Delivery]):
    """A delivered envelope; settle it with `ack`, `nack`, `release` or `term`.

    Until then the client extends its lease in the background.
    """

    ack = twin.inline(Delivery[Any].ack)
    nack = twin.inline(Delivery[Any].nack)
    release = twin.inline(Delivery[Any].release)
    term = twin.inline(Delivery[Any].term)
    extend = twin.blocking(Delivery[Any].extend)
    reply = twin.blocking(Delivery[Any].reply)

    async def _settle(self, op: str, confirm: bool, **fields: object) -> None:
        """What the inline verbs call: hand over to the loop without waiting for its thread, unless the caller must wait."""
        source, thread = self._source, self._thread
        settles = source._holder._settles
        if confirm or settles.unconfirmed.count >= settles.unconfirmed.most:
            thread.wait(source._settle(op, confirm, **fields))
            return
        settles.claim(source)
        thread.post(partial(source._holder._hand_over, source, op, fields))
        settles.raise_failure()

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is known to be lost. Long work that never waits should call this; it sends nothing."""
        self._source.check()

    id = twin.mirrored[Delivery, str](lambda delivery: delivery.id)
    type = twin.mirrored[Delivery, str](lambda delivery: delivery.type)
    corr = twin.mirrored[Delivery, str | None](lambda delivery: delivery.corr)
    sender = twin.mirrored[Delivery, str | None](lambda delivery: delivery.sender)
    stream = twin.mirrored[Delivery, str](lambda delivery: delivery.stream)
    seq = twin.mirrored[Delivery, int](lambda delivery: delivery.seq)
    attempt = twin.mirrored[Delivery, int](lambda delivery: delivery.attempt)
    lease_id = twin.mirrored[Delivery, str](lambda delivery: delivery.lease_id)
    lease_expires_at_ms = twin.mirrored[Delivery, int | None](lambda delivery: delivery.lease_expires_at_ms)
    body = twin.mirrored[Delivery, bytes](lambda delivery: delivery.body)
    envelope = twin.mirrored[Delivery, dict[str, Any]](lambda delivery: delivery.envelope)
    payload = twin.mirrored[Delivery, Any](lambda delivery: delivery.payload)
    is_settled = twin.mirrored[Delivery, bool](lambda delivery: delivery.is_settled)
    is_lost = twin.mirrored[Delivery, bool](lambda delivery: delivery.is_lost)
    has_replied = twin.mirrored[Delivery, bool](lambda delivery: delivery.has_replied)

    def __repr__(self) -> str:
        return repr(self._source)


def _deliveries(sources: list[Delivery], thread: twin.LoopThread) -> list[SyncDelivery]:
    return [SyncDelivery(source, thread) for source in sources]


class SyncSubscription(twin.OpenedTwin[Subscription]):
    """Deliveries of one stream: `for delivery in subscription`, best inside `with`, which releases unsettled deliveries at its end."""

    close = twin.blocking(Subscription[Any].close)
    flush = twin.blocking(Subscription[Any].flush)
    next_batch = twin.blocking(Subscription.next_batch, _deliveries)

    stream = twin.mirrored[Subscription, str](lambda subscription: subscription.stream)
    credit = twin.mirrored[Subscription, int](lambda subscription: subscription.credit)
    lease_ms = twin.mirrored[Subscription, int | None](lambda subscription: subscription.lease_ms)
    batch = twin.mirrored[Subscription, int](lambda subscription: subscription.batch)
    is_open = twin.mirrored[Subscription, bool](lambda subscription: subscription.is_open)
    lost = twin.mirrored[Subscription, int](lambda subscription: subscription.lost)

    def ack(self, deliveries: Sequence[SyncDelivery], *, confirm: bool = False) -> None:
        """Ack many at once. With `confirm`, raises the first error after all others are durable."""
        self._thread.wait(self._source.ack([delivery._source for delivery in deliveries], confirm=confirm))

    def batches(self, count_max: int = 4096) -> Iterator[list[SyncDelivery]]:
        """Deliveries in lists of all that have arrived, until the subscription is closed."""
        while batch := self.next_batch(count_max):
            yield batch

    def work(self, handler: Callable[[SyncDelivery], object], *, concurrency: int = 1) -> None:
        """Call `handler` for every delivery, on up to `concurrency` threads, until the subscription is closed.

        A delivery is acked when the handler returns. When it raises, the delivery is nacked and comes back after a back-off; the
        asker of a question gets `HandlerFailed` at once instead. A thread cannot be interrupted: after a lease is
        lost, the handler's next call on its delivery raises `LeaseLost`, and so does `delivery.check()`. A handler may close the
        subscription, which ends the work.

        Example:
            def resize(delivery):
                make_small(delivery.payload["file"])

            with penstock.connect_sync() as client:
                client.subscribe("images/in", credit=8).work(resize, concurrency=8)
        """

        def call(delivery: Delivery) -> object:
            return handler(SyncDelivery(delivery, self._thread))

        self._run(self._source.work, call, concurrency)

    def work_batch(
        self,
        handler: Callable[[list[SyncDelivery]], object],
        *,
        max: int = 256,  # noqa: A002
        concurrency: int = 1,
    ) -> None:
        """Call `handler` with a list of all deliveries that have arrived, up to `max`, on up to `concurrency` threads.

        When the handler returns, those that it did not settle are acked; when it raises, they are nacked.
        """

        def call(batch: list[Delivery]) -> object:
            return handler(_deliveries(batch, self._thread))

        self._run(partial(self._source.work_batch, max=max), call, concurrency)

    def _run(self, work: Callable[..., Any], call: Callable[[Any], object], concurrency: int) -> None:
        check_concurrency(concurrency)
        with ThreadPoolExecutor(concurrency, "penstock-work") as pool:

            async def on_a_thread(taken: object) -> None:
                # No future takes a StopIteration; a generator turns it into a RuntimeError.
                await asyncio.get_running_loop().run_in_executor(pool, list, (call(one) for one in (taken,)))

            self._thread.wait(work(on_a_thread, concurrency=concurrency))

    def __iter__(self) -> Iterator[SyncDelivery]:
        return self

    def __next__(self) -> SyncDelivery:
        buffered = self._source._next_buffered()  # without a change of threads
        if buffered is not None:
            return SyncDelivery(buffered, self._thread)
        batch = self.next_batch(1)
        if not batch:
            raise StopIteration
        return batch[0]


class SyncLiveView(twin.OpenedTwin[LiveView], twin.IteratedTwin[LiveView, Change]):
    """A view as it changes: `for change in view`, best inside `with`. `rows` is the table after the changes read so far."""

    close = twin.blocking(LiveView.close)
    next_change = twin.blocking(LiveView.next_change)

    view = twin.mirrored[LiveView, str](lambda live: live.view)
    addr = twin.mirrored[LiveView, str | None](lambda live: live.addr)
    credit = twin.mirrored[LiveView, int](lambda live: live.credit)
    version = twin.mirrored[LiveView, int](lambda live: live.version)
    rows = twin.mirrored[LiveView, dict[str, Any]](lambda live: live.rows)


class SyncSendBatch(twin.Twin[SendBatch]):
    """Sends without waiting for each answer; the end of its `with` block waits until everything is durable."""

    enqueue = twin.blocking(SendBatch.enqueue)
    send = twin.blocking(SendBatch.send)
    flush = twin.blocking(SendBatch.flush)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.wait(self._source.__aexit__(*exception))


class SyncClient(twin.Closing, twin.Twin[Client]):
    """A connection to Penstock for code without `async`; `connect_sync` makes one. Threads may share it.

    Example:
        with penstock.connect_sync(agent="sam") as client:
            sent = client.send("jen", {"text": "hello"})
            print(sent.seq, sent.recipient)
    """

    enqueue = twin.blocking(Client.enqueue)
    send = twin.blocking(Client.send)
    ask = twin.blocking(Client.ask, SyncDelivery)
    batch = twin.called(Client.batch, SyncSendBatch)
    subscribe = twin.called(Client.subscribe, SyncSubscription)
    inbox = twin.called(Client.inbox, SyncSubscription)
    pull = twin.blocking(Client.pull, _deliveries)
    settle = twin.blocking(Client.settle)
    stats = twin.blocking(Client.stats)
    streams = twin.blocking(Client.streams)
    peek = twin.blocking(Client.peek)
    where = twin.blocking(Client.where)
    explain = twin.blocking(Client.explain)
    trigger = twin.blocking(Client.trigger)
    snapshot = twin.blocking(Client.snapshot)
    live = twin.called(Client.live, SyncLiveView)
    redrive = twin.blocking(Client.redrive)
    purge = twin.blocking(Client.purge)
    drop = twin.blocking(Client.drop)
    schemas = twin.blocking(Client.schemas)
    validate = twin.blocking(Client.validate)
    ping = twin.blocking(Client.ping)
    flush = twin.blocking(Client.flush)

    agent = twin.mirrored[Client, str | None](lambda client: client.agent)
    server = twin.mirrored[Client, ServerHello](lambda client: client.server)
    url = twin.mirrored[Client, str](lambda client: client.url)
    lost = twin.mirrored[Client, int](lambda client: client.lost)

    def close(self) -> None:
        """Wait up to 5 s for the answers to settles, then close the connection and stop its thread."""
        try:
            self._thread.wait(self._source.close())
        finally:
            self._thread.close()


@twin.parameters_of(connect)
def connect_sync(*args: Any, **kwargs: Any) -> SyncClient:
    """Connect to Penstock without `async`; the arguments are those of `connect`.

    Example:
        with penstock.connect_sync(agent="sam") as client:
            client.send("jen", {"text": "hello"})
    """
    thread = twin.LoopThread()

    async def dial() -> Client:
        return await connect(*args, **kwargs)

    try:
        client = thread.wait(dial())
    except BaseException:
        thread.close()
        raise
    return SyncClient(client, thread)
