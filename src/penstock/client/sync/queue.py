"""The client without `async`: the same methods, run on one background thread.

Nothing is implemented twice. `blocking(Client.send)` is `Client.send` with the same arguments and result,
waited for; a test compares both surfaces name by name.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from penstock.client.links.frames import Hello
from penstock.client.queue.client import Client, connect
from penstock.client.queue.delivery import Delivery
from penstock.client.queue.live_view import Change, LiveView
from penstock.client.queue.subscription import Subscription
from penstock.client.queue.worker import check_concurrency

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
Source = TypeVar("Source", bound=AsyncIterator[Any])


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-client", daemon=True)
        self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run on the loop and wait; an interrupt of the waiting thread cancels what it waits for."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a plain function on the loop and wait."""

        async def run() -> R:
            return function(*args, **kwargs)

        return self.wait(run())

    def close(self) -> None:
        """End the loop and its threads: looking up a host's name makes one more."""
        if self._loop.is_closed():
            return
        try:
            self.wait(self._loop.shutdown_default_executor())
        except RuntimeError:
            pass  # the interpreter is ending, and so are they
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Closable(Protocol):
    """What ends when it is closed."""

    def close(self) -> object: ...


class Closing:
    """Ends with its `with` block."""

    def __exit__(
        self: Closable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Twin(Generic[S]):
    """A synchronous object in front of an asynchronous one."""

    def __init__(self, source: S, thread: LoopThread) -> None:
        self._source = source
        self._thread = thread


class IteratedTwin(Twin[Source], Generic[Source, T]):
    """A twin with `for`, where the source has `async for`."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        items = self._thread.wait(self._taken())
        if not items:
            raise StopIteration
        return items[0]

    async def _taken(self) -> list[T]:
        """The next item, or none: the end cannot leave a coroutine as the exception that it is."""
        try:
            return [await anext(self._source)]
        except StopAsyncIteration:
            return []


class blocking(Generic[S, P, R]):  # noqa: N801 - reads as a function where it is used
    """A coroutine method of the source, as a plain method of its twin."""

    def __init__(self, method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__
        self.__wrapped__ = method

    @overload
    def __get__(self, twin: None, owner: object) -> Self: ...
    @overload
    def __get__(self, twin: Twin[S], owner: object) -> Callable[P, R]: ...

    def __get__(self, twin: Twin[S] | None, owner: object) -> Self | Callable[P, R]:
        if twin is None:
            return self
        source, thread, method = twin._source, twin._thread, self._method

        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return thread.wait(method(source, *args, **kwargs))

        return call


class mirrored(Generic[S, R]):  # noqa: N801 - reads as a function where it is used
    """A value of the source, read through its twin."""

    def __init__(self, read: Callable[[S], R]) -> None:
        self._read = read

    @overload
    def __get__(self, twin: None, owner: object) -> Self: ...
    @overload
    def __get__(self, twin: Twin[S], owner: object) -> R: ...

    def __get__(self, twin: Twin[S] | None, owner: object) -> Self | R:
        return self if twin is None else self._read(twin._source)


class SyncDelivery(Twin[Delivery]):
    """An envelope in your hands; settle it with one of `ack`, `nack`, `release` and `term`.

    Its lease is extended in the background until then.
    """

    ack = blocking(Delivery.ack)
    nack = blocking(Delivery.nack)
    release = blocking(Delivery.release)
    term = blocking(Delivery.term)
    extend = blocking(Delivery.extend)
    reply = blocking(Delivery.reply)

    def check(self) -> None:
        """Raise `LeaseLost` if the lease is known to be gone: for long work that never waits. Asks nobody."""
        self._source.check()

    id = mirrored[Delivery, str](lambda delivery: delivery.id)
    type = mirrored[Delivery, str](lambda delivery: delivery.type)
    sender = mirrored[Delivery, str | None](lambda delivery: delivery.sender)
    stream = mirrored[Delivery, str](lambda delivery: delivery.stream)
    seq = mirrored[Delivery, int](lambda delivery: delivery.seq)
    attempt = mirrored[Delivery, int](lambda delivery: delivery.attempt)
    lease_id = mirrored[Delivery, str](lambda delivery: delivery.lease_id)
    lease_expires_at_ms = mirrored[Delivery, int | None](lambda delivery: delivery.lease_expires_at_ms)
    body = mirrored[Delivery, bytes](lambda delivery: delivery.body)
    envelope = mirrored[Delivery, dict[str, Any]](lambda delivery: delivery.envelope)
    payload = mirrored[Delivery, Any](lambda delivery: delivery.payload)
    is_settled = mirrored[Delivery, bool](lambda delivery: delivery.is_settled)
    is_lost = mirrored[Delivery, bool](lambda delivery: delivery.is_lost)

    def __repr__(self) -> str:
        return repr(self._source)


class SyncSubscription(Closing, Twin[Subscription]):
    """`for delivery in subscription`, best inside `with`, which gives back what is left."""

    close = blocking(Subscription.close)

    stream = mirrored[Subscription, str](lambda subscription: subscription.stream)
    credit = mirrored[Subscription, int](lambda subscription: subscription.credit)
    lease_ms = mirrored[Subscription, int | None](lambda subscription: subscription.lease_ms)
    batch = mirrored[Subscription, int](lambda subscription: subscription.batch)
    is_open = mirrored[Subscription, bool](lambda subscription: subscription.is_open)

    def open(self) -> Self:
        """Subscribe; returns when the server agreed. Iterating does this by itself."""
        self._thread.wait(self._source.open())
        return self

    def ack(self, deliveries: Sequence[SyncDelivery]) -> None:
        """Ack many at once; raises when one of them failed, after all others are on record."""
        self._thread.wait(self._source.ack([delivery._source for delivery in deliveries]))

    def next_batch(self, count_max: int = 4096) -> list[SyncDelivery]:
        """What arrived and nobody took yet, at least one; empty when the subscription is closed."""
        batch = self._thread.wait(self._source.next_batch(count_max))
        return [SyncDelivery(delivery, self._thread) for delivery in batch]

    def batches(self, count_max: int = 4096) -> Iterator[list[SyncDelivery]]:
        """All that arrived, list by list."""
        while batch := self.next_batch(count_max):
            yield batch

    def work(self, handler: Callable[[SyncDelivery], object], *, concurrency: int = 1) -> None:
        """Call `handler` for every delivery, on up to `concurrency` threads, until the subscription is closed.

        As with `async`, but a thread cannot be interrupted: `LeaseLost` is raised by whatever the handler does with its delivery next,
        and `delivery.check()` asks for it. A handler may close the subscription, which ends the work.

        Example:
            def resize(delivery):
                make_small(delivery.payload["file"])

            with penstock.connect_sync() as client:
                client.subscribe("images/in", credit=8).work(resize, concurrency=8)
        """
        check_concurrency(concurrency)
        thread = self._thread
        with ThreadPoolExecutor(concurrency, "penstock-work") as pool:

            async def on_a_thread(delivery: Delivery) -> None:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(pool, handler, SyncDelivery(delivery, thread))

            thread.wait(self._source.work(on_a_thread, concurrency=concurrency))

    def __iter__(self) -> Iterator[SyncDelivery]:
        return self

    def __next__(self) -> SyncDelivery:
        batch = self.next_batch(1)
        if not batch:
            raise StopIteration
        return batch[0]

    def __enter__(self) -> Self:
        return self.open()


class SyncLiveView(Closing, IteratedTwin[LiveView, Change]):
    """`for change in view`, best inside `with`; `rows` is the whole table as far as it was read."""

    close = blocking(LiveView.close)
    next_change = blocking(LiveView.next_change)

    view = mirrored[LiveView, str](lambda live: live.view)
    addr = mirrored[LiveView, str | None](lambda live: live.addr)
    credit = mirrored[LiveView, int](lambda live: live.credit)
    version = mirrored[LiveView, int](lambda live: live.version)
    rows = mirrored[LiveView, dict[str, Any]](lambda live: live.rows)

    def open(self) -> Self:
        """Follow; returns when the first snapshot is here. Iterating does this by itself."""
        self._thread.wait(self._source.open())
        return self

    def __enter__(self) -> Self:
        return self.open()


class SyncClient(Closing, Twin[Client]):
    """A connection to Penstock for code without `async`; made by `connect_sync`. Safe to share by threads.

    Example:
        with penstock.connect_sync(agent="sam") as client:
            sent = client.send("jen", {"text": "hello"})
            print(sent.seq, sent.recipient)
    """

    enqueue = blocking(Client.enqueue)
    send = blocking(Client.send)
    settle = blocking(Client.settle)
    stats = blocking(Client.stats)
    metrics = blocking(Client.metrics)
    peek = blocking(Client.peek)
    where = blocking(Client.where)
    explain = blocking(Client.explain)
    trigger = blocking(Client.trigger)
    query = blocking(Client.query)
    snapshot = blocking(Client.snapshot)
    redrive = blocking(Client.redrive)
    ping = blocking(Client.ping)

    agent = mirrored[Client, str | None](lambda client: client.agent)
    server = mirrored[Client, Hello](lambda client: client.server)
    url = mirrored[Client, str](lambda client: client.url)

    def ask(
        self,
        to: str,
        payload: object,
        *,
        type: str = "question",  # noqa: A002
        timeout: float = 30.0,
    ) -> SyncDelivery:
        """Send, and wait for the answer that the other side gives with `delivery.reply(…)`."""
        answer = self._thread.wait(self._source.ask(to, payload, type=type, timeout=timeout))
        return SyncDelivery(answer, self._thread)

    def pull(
        self,
        stream: str,
        *,
        max: int = 1,  # noqa: A002
        wait_ms: int = 0,
        lease_ms: int | None = None,
        renew: bool = True,
    ) -> list[SyncDelivery]:
        """Take up to `max` deliveries, waiting for the first one up to `wait_ms`."""
        pulled = self._thread.wait(
            self._source.pull(stream, max=max, wait_ms=wait_ms, lease_ms=lease_ms, renew=renew)
        )
        return [SyncDelivery(delivery, self._thread) for delivery in pulled]

    def subscribe(
        self, stream: str, *, credit: int = 100, lease_ms: int | None = None, batch: int = 1
    ) -> SyncSubscription:
        """Deliveries of a stream as they come; `for`, or `with` first."""
        source = self._thread.call(
            self._source.subscribe, stream, credit=credit, lease_ms=lease_ms, batch=batch
        )
        return SyncSubscription(source, self._thread)

    def inbox(
        self, agent: str | None = None, *, credit: int = 100, lease_ms: int | None = None, batch: int = 1
    ) -> SyncSubscription:
        """Subscribe to `agents/<agent>/inbox`, by default this client's own."""
        source = self._thread.call(self._source.inbox, agent, credit=credit, lease_ms=lease_ms, batch=batch)
        return SyncSubscription(source, self._thread)

    def live(self, view: str, *, addr: str | None = None, credit: int = 1_000) -> SyncLiveView:
        """A view as it changes; `for`, or `with` first. At most `credit` changes wait here."""
        source = self._thread.call(self._source.live, view, addr=addr, credit=credit)
        return SyncLiveView(source, self._thread)

    def close(self) -> None:
        """End the connection and its thread."""
        self._thread.wait(self._source.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self


def connect_sync(
    url: str | None = None,
    token: str | None = None,
    agent: str | None = None,
    *,
    timeout: float = 30.0,
    connect_timeout: float = 10.0,
    reconnect: bool = True,
    retries: int = 0,
) -> SyncClient:
    """Connect to Penstock, without `async`; the arguments are those of `connect`.

    Example:
        with penstock.connect_sync(agent="sam") as client:
            client.send("jen", {"text": "hello"})
    """
    thread = LoopThread()

    async def dial() -> Client:
        return await connect(
            url,
            token,
            agent,
            timeout=timeout,
            connect_timeout=connect_timeout,
            reconnect=reconnect,
            retries=retries,
        )

    try:
        client = thread.wait(dial())
    except BaseException:
        thread.close()
        raise
    return SyncClient(client, thread)
