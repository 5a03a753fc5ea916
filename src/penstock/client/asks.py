"""Questions and their answers: an `ask` waits for an envelope with its `corr` on the asker's own inbox.

Owns the open questions, and a private subscription to the inbox that lives only while a question is open
and the application listens to no inbox itself. What arrives there and answers nothing is kept aside and
goes back, uncounted, when the last question is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.client.delivery import Delivery
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.client.subscription import Subscription

ASIDE_MAX = 1_000
"""Credit of the private subscription: how many envelopes may be in front of an answer."""


class Asks:
    """The open questions of one client."""

    def __init__(self, subscribe: Callable[[int], Subscription]) -> None:
        self._subscribe = subscribe
        self._answers: dict[str, asyncio.Future[Delivery]] = {}
        self._listening: set[Subscription] = set()
        """Subscriptions of the application to its own inbox."""
        self._private: Subscription | None = None
        self._acks: set[asyncio.Task[None]] = set()

    def intercept(self, delivery: Delivery) -> bool:
        """Take a delivery that answers an open question; it is acked, and the asker gets it."""
        if not self._answers:
            return False
        corr = delivery.head.corr
        answer = self._answers.get(corr) if corr else None
        if answer is None or answer.done():
            return False
        answer.set_result(delivery)
        # The asker has the content: an ack that fails costs a second delivery that nobody waits for.
        task = asyncio.get_running_loop().create_task(_ack(delivery))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)
        return True

    def listening(self, subscription: Subscription) -> None:
        self._listening.add(subscription)

    def stopped(self, subscription: Subscription) -> None:
        """An inbox of the application was closed; questions that relied on it need another way."""
        self._listening.discard(subscription)

    async def expect(self, corr: str) -> asyncio.Future[Delivery]:
        """Open a question; must be followed by `close`."""
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self._answers[corr] = answer
        if not any(subscription.is_open for subscription in self._listening):
            if self._private is None:
                self._private = self._subscribe(ASIDE_MAX)
            await self._private.open()
        return answer

    async def close(self, corr: str) -> None:
        self._answers.pop(corr, None)
        if not self._answers and self._private is not None:
            private, self._private = self._private, None
            if self._acks:
                await asyncio.wait(self._acks)
            await private.close()


async def _ack(delivery: Delivery) -> None:
    try:
        await delivery.ack()
    except PenstockError:
        pass


def no_agent() -> PenstockError:
    """Asking, and reading an inbox, need a name to be addressed by."""
    refusal = Refusal("InvalidRequest", "this client has no agent name", hint="connect with `agent=…`")
    return PenstockError(refusal)
