"""Runs a handler for a delivery and settles it.

A handler that returns has its delivery acked, and one that raises has it nacked with a back-off. If an asker waits for the answer, it
gets the error instead, and the question becomes a dead letter: a late answer would reach an asker that is gone. A handler whose lease is
lost gets `LeaseLost` at its current `await`, before another consumer has done much of the same work. No exception ends the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from penstock.client.control.frames import HandlerFailure
from penstock.client.queue.delivery import Delivery, P, State
from penstock.client.queue.request_reply import REPLY_WANTED
from penstock.core.errors import LeaseLost, PenstockError, Refusal

Handler = Callable[[Delivery[P]], Awaitable[object]]

CONCURRENCY_MAX = 10_000
"""The most concurrent handlers; each is a task."""
REASON_MAX = 200
"""The most characters of an exception in the reason of a nack."""

_LOG = logging.getLogger("penstock.client")


class Interruption(LeaseLost, asyncio.CancelledError):
    """`LeaseLost` inside a handler.

    It is also a `CancelledError`, so that a task group or a lock that the handler awaits cleans up as for a cancellation.
    """


class Watched:
    """A handler of one delivery: awaiting it runs the handler, and a lost lease is raised inside it."""

    def __init__(self, delivery: Delivery, work: Coroutine[Any, Any, object]) -> None:
        self._delivery = delivery
        self._work = work
        self._task: asyncio.Task[object] | None = None
        self._loss: Interruption | None = None

    def __await__(self) -> Generator[Any, None, None]:
        work, delivery = self._work, self._delivery
        self._task = asyncio.current_task()
        delivery._on_loss = self._lost
        raised: BaseException | None = None
        try:
            while True:
                try:
                    waits_for = work.send(None) if raised is None else work.throw(raised)
                except StopIteration:
                    return
                raised = None
                try:
                    yield waits_for
                except GeneratorExit:
                    work.close()
                    raise
                except BaseException as error:
                    raised = self._meant(error)
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


async def handle(delivery: Delivery, handler: Handler) -> None:
    """Run a handler, and settle the delivery if the handler did not. Raises only a cancellation."""

    async def work() -> None:
        await handler(delivery)

    try:
        await Watched(delivery, work())
        if delivery._state is State.HELD:
            await settle(delivery, "ack")
    except asyncio.CancelledError as error:
        if isinstance(error, LeaseLost):
            _LOG.warning("%r was lost while its handler worked: %s", delivery, error.refusal.message)
        elif _is_cancelled():
            raise
        else:  # something that the handler awaited was cancelled, not the handler
            await _failed(delivery, error)
    except Exception as error:
        await _failed(delivery, error)


def _is_cancelled() -> bool:
    """Whether this task itself is being cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _failed(delivery: Delivery, error: BaseException) -> None:
    """Nack the delivery of a failed handler; called inside its `except` block."""
    if delivery.is_lost:
        _LOG.warning("%r was lost; it will be delivered again", delivery)
        return
    _LOG.exception("the handler of %r failed", delivery)
    if delivery._state is not State.HELD:
        return
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")[:REASON_MAX]
    headers = delivery.envelope.get("headers") or {}
    try:
        if REPLY_WANTED in headers and delivery.sender and not delivery.has_replied:
            await delivery.reply(HandlerFailure(reason))
            await settle(delivery, "term", reason=reason)
        else:
            await settle(delivery, "nack", reason=reason, backoff=True)
    except PenstockError as refused:
        _LOG.warning("%r could not be settled; its lease will expire: %s", delivery, refused.refusal.message)


async def settle(delivery: Delivery, op: str, **fields: object) -> None:
    """Hand over a settle. The failure of an earlier one is logged: it says nothing about this delivery."""
    failure = delivery._settles.take_failure()
    if failure is not None:
        _LOG.warning("a delivery of `%s` could not be settled: %s", delivery.stream, failure)
    await delivery._settle(op, False, **fields)


def check_concurrency(concurrency: int) -> None:
    """Raise unless `concurrency` is within its bounds."""
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        message = f"concurrency is 1 to {CONCURRENCY_MAX}, not {concurrency}"
        raise PenstockError(Refusal("InvalidRequest", message, ref="concurrency"))
