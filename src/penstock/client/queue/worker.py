"""Work: a handler for each delivery of a subscription, some of them side by side.

Owns the workers, and how a lost lease reaches a handler that is in the middle of something. What it keeps: a handler that returns has its
delivery acked, one that raises has it nacked, and one whose lease is lost hears so at the very `await` it is waiting at, before anybody
else's copy of the work has gone far. Nothing that a handler does ends the work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from penstock.client.queue.delivery import Delivery, LeaseLost, State
from penstock.core.errors import PenstockError, Refusal

Handler = Callable[[Delivery], Awaitable[object]]

CONCURRENCY_MAX = 10_000
"""Handlers side by side; each is a task."""
REASON_MAX = 200
"""Characters of an exception that go into the reason of a nack."""

_LOG = logging.getLogger("penstock.client")


class Interruption(LeaseLost, asyncio.CancelledError):
    """`LeaseLost` in the middle of a handler.

    It is a cancellation as well, so that whatever the handler waits in (a task group, a lock) puts itself in order as it would for one.
    """


class Watched:
    """A handler at work on one delivery; awaiting it runs the handler, and a lost lease is raised inside of it."""

    def __init__(self, delivery: Delivery, work: Coroutine[Any, Any, object]) -> None:
        self._delivery = delivery
        self._work = work
        self._task: asyncio.Task[object] | None = None
        self._loss: Interruption | None = None

    def __await__(self) -> Generator[Any, None, None]:
        work, delivery = self._work, self._delivery
        self._task = asyncio.current_task()
        delivery.on_loss = self._lost
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
            delivery.on_loss = None
            if self._loss is not None and self._task is not None:
                self._task.uncancel()  # the handler ended without hearing of it

    def _lost(self, loss: LeaseLost) -> None:
        task = self._task
        if task is None or task is asyncio.current_task():
            return  # the handler itself called what found out, which raises
        self._loss = Interruption(loss.refusal)
        task.cancel()

    def _meant(self, error: BaseException) -> BaseException:
        """What an exception at an `await` stands for: our cancellation is the loss, unless somebody else wants one too."""
        loss = self._loss
        if loss is None or self._task is None or not isinstance(error, asyncio.CancelledError):
            return error
        self._loss = None
        return error if self._task.uncancel() else loss


async def handle(delivery: Delivery, handler: Handler) -> None:
    """Run a handler, and settle what it did not settle itself; raises nothing but a cancellation."""

    async def work() -> None:
        await handler(delivery)

    try:
        await Watched(delivery, work())
        if delivery.state is State.HELD:
            await delivery.ack()
    except asyncio.CancelledError as error:
        if isinstance(error, LeaseLost):
            _LOG.warning("%r was lost while its handler worked: %s", delivery, error.refusal.message)
        elif _is_cancelled():
            raise
        else:  # something that the handler waited for was cancelled, and not the handler
            await _failed(delivery, error)
    except Exception as error:
        await _failed(delivery, error)


def _is_cancelled() -> bool:
    """Whether somebody wants this very task to end."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _failed(delivery: Delivery, error: BaseException) -> None:
    """Give back what a handler failed at; called where its exception is being handled."""
    if delivery.is_lost:
        _LOG.warning("%r was lost: it is delivered again", delivery)
        return
    _LOG.exception("the handler of %r failed", delivery)
    if delivery.state is not State.HELD:
        return
    try:
        await delivery.nack(reason=f"{type(error).__name__}: {error}".removesuffix(": ")[:REASON_MAX])
    except PenstockError as refused:
        _LOG.warning("%r could not be nacked, its lease will end: %s", delivery, refused.refusal.message)


def check_concurrency(concurrency: int) -> None:
    """Raise unless that many handlers can work side by side."""
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        message = f"concurrency is 1 to {CONCURRENCY_MAX}, not {concurrency}"
        raise PenstockError(Refusal("InvalidRequest", message, ref="concurrency"))
