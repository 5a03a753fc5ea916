"""Runs a handler for a delivery and settles it.

A handler that returns has its delivery acked, and one that raises has it nacked with a back-off. If an asker waits for the answer, it
gets the error instead, and the question becomes a dead letter: a late answer would reach an asker that is gone. A handler whose lease is
lost gets `LeaseLost` at its current `await`, before another consumer has done much of the same work. No exception ends the worker.

The worker runs a handler itself up to its first wait, so a handler that does not wait costs no coroutine, task or future besides its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CoroutineType
from typing import Any

from penstock.client.control.frames import HandlerFailure
from penstock.client.queue.delivery import HELD, Delivery, P
from penstock.client.queue.request_reply import REPLY_WANTED
from penstock.core.errors import LeaseLost, PenstockError, Refusal

Handler = Callable[[Delivery[P]], Awaitable[object]]
BatchHandler = Callable[[list[Delivery[P]]], Awaitable[object]]
Ack = Callable[[list[Delivery]], Awaitable[object]]

CONCURRENCY_MAX = 10_000
"""The most concurrent handlers; each is a task."""
NO_FIELDS: dict[str, object] = {}
REASON_MAX = 200
"""The most characters of an exception in the reason of a nack."""

_LOG = logging.getLogger("penstock.client")


class Interruption(LeaseLost, asyncio.CancelledError):
    """`LeaseLost` inside a handler.

    It is also a `CancelledError`, so that a task group or a lock that the handler awaits cleans up as for a cancellation.
    """


class Watched:
    """A handler that waits: awaiting it runs the rest of the handler, and a lost lease is raised inside it."""

    def __init__(self, delivery: Delivery, work: Coroutine[Any, Any, object], waits_for: object) -> None:
        self._delivery = delivery
        self._work = work
        self._waits_for = waits_for
        self._task: asyncio.Task[object] | None = None
        self._loss: Interruption | None = None

    def __await__(self) -> Generator[Any, None, None]:
        work, delivery, waits_for = self._work, self._delivery, self._waits_for
        self._task = asyncio.current_task()
        delivery._on_loss = self._lost
        try:
            while True:
                raised = None
                try:
                    yield waits_for
                except GeneratorExit:
                    work.close()
                    raise
                except BaseException as error:
                    raised = self._meant(error)
                try:
                    waits_for = work.send(None) if raised is None else work.throw(raised)
                except StopIteration:
                    return
        finally:
            delivery._on_loss = None
            if self._loss is not None and self._task is not None:
                self._task.uncancel()  # the handler ended before the cancellation reached it

    def _lost(self, loss: LeaseLost) -> None:
        task = self._task
        if task is None or task is asyncio.current_task():
            return  # the handler itself made the call that detected the loss, and that call raises
        self._loss = Interruption(loss.refusal)
        task.cancel()

    def _meant(self, error: BaseException) -> BaseException:
        """Translate an exception at an `await`: our own cancellation becomes the loss, unless the task was also cancelled from outside."""
        loss = self._loss
        if loss is None or self._task is None or not isinstance(error, asyncio.CancelledError):
            return error
        self._loss = None
        return error if self._task.uncancel() else loss


def start(delivery: Delivery, handler: Handler) -> Coroutine[Any, Any, None] | None:
    """Run a handler up to its first wait. Returns what is left to await, None if the handler is done and its delivery handed over."""
    try:
        called = handler(delivery)
    except (Exception, asyncio.CancelledError) as error:
        return _judge([delivery], error)
    work = called if type(called) is CoroutineType else _awaited(called)
    try:
        waits_for = work.send(None)
    except StopIteration:
        if delivery._state is not HELD:
            return None
        settles = delivery._holder._settles
        if settles.must_wait() or settles._failure is not None:
            return handle([delivery], asyncio.sleep(0), _ack)
        settles.claim(delivery)
        delivery._holder._hand_over(delivery, "ack", NO_FIELDS)
        return None
    except (Exception, asyncio.CancelledError) as error:
        return _judge([delivery], error)
    return handle([delivery], Watched(delivery, work, waits_for), _ack)


async def handle(deliveries: list[Delivery], work: Awaitable[object], ack: Ack) -> None:
    """Wait for a handler, and ack what it did not settle. Raises only a cancellation."""
    try:
        await work
        if held := [delivery for delivery in deliveries if delivery._state is HELD]:
            _log_failure(held[0])
            await ack(held)
    except (Exception, asyncio.CancelledError) as error:
        await _judge(deliveries, error)


async def _awaited(work: Awaitable[object]) -> None:
    await work


async def run_batch(handler: BatchHandler, deliveries: list[Delivery]) -> None:
    await handler([*deliveries])


async def _ack(deliveries: list[Delivery]) -> None:
    await deliveries[0]._settle("ack", False)


async def _judge(deliveries: list[Delivery], error: BaseException) -> None:
    """Settle the deliveries of a handler that raised."""
    if isinstance(error, asyncio.CancelledError):
        if isinstance(error, LeaseLost):
            _LOG.warning("%r was lost while its handler worked: %s", deliveries[0], error.refusal.message)
            return
        task = asyncio.current_task()
        if task is None or task.cancelling() > 0:
            raise error
        # Else something that the handler awaited was cancelled, not the handler.
    more = f" and of {len(deliveries) - 1} more" if len(deliveries) > 1 else ""
    _LOG.error("the handler of %r%s failed", deliveries[0], more, exc_info=error)
    for delivery in deliveries:
        await _failed(delivery, error)


async def _failed(delivery: Delivery, error: BaseException) -> None:
    """Nack the delivery of a failed handler."""
    if delivery._state is not HELD:
        return
    _log_failure(delivery)
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")[:REASON_MAX]
    headers = delivery.envelope.get("headers") or {}
    try:
        if REPLY_WANTED in headers and delivery.sender and not delivery.has_replied:
            await delivery.reply(HandlerFailure(reason))
            await delivery._settle("term", False, reason=reason)
        else:
            await delivery._settle("nack", False, reason=reason, backoff=True)
    except PenstockError as refused:
        _LOG.warning("%r could not be settled; its lease will expire: %s", delivery, refused.refusal.message)


def _log_failure(delivery: Delivery) -> None:
    """Log the failure of an earlier settle, which says nothing about this delivery."""
    failure = delivery._holder._settles.take_failure()
    if failure is not None:
        _LOG.warning("a delivery of `%s` could not be settled: %s", delivery.stream, failure)


def check_concurrency(concurrency: int) -> None:
    """Raise unless `concurrency` is within its bounds."""
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        message = f"concurrency is 1 to {CONCURRENCY_MAX}, not {concurrency}"
        raise PenstockError(Refusal("InvalidRequest", message, ref="concurrency"))
