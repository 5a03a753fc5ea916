"""Request and reply: `ask` waits for an envelope with its `corr` in the asker's own inbox.

Owns the open questions, and a private subscription to the inbox that exists only while a question is open and the application does not
subscribe to the inbox itself. Envelopes that answer no question stay leased and are released when the last question is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.client.control.frames import Error, Sent
from penstock.client.queue.delivery import Delivery
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.client.queue.subscription import Subscription

REPLY_WANTED = "reply-wanted"
"""The header of a question that an asker waits for."""
FAILED = "error"
"""The header of an answer that reports a failure: its code."""
ASIDE_MAX = 1_000
"""Credit of the private subscription: the most envelopes that may precede an answer."""


class PendingQuestions:
    """The open questions of one client."""

    def __init__(self, subscribe: Callable[[int], Subscription]) -> None:
        self._subscribe = subscribe
        self._answers: dict[str, asyncio.Future[Delivery]] = {}
        self._listening: set[Subscription] = set()
        """Subscriptions of the application to its own inbox."""
        self._private: Subscription | None = None

    def intercept(self, delivery: Delivery) -> bool:
        """Take a delivery that answers an open question: ack it and pass it to the asker."""
        if not self._answers:
            return False
        corr = delivery._head.corr
        answer = self._answers.get(corr) if corr else None
        if answer is None or answer.done():
            return False
        answer.set_result(delivery)
        # The asker has the content. If the ack is lost, the server delivers it once more, and it is released.
        delivery._holder._settles.claim(delivery)
        delivery._holder._hand_over(delivery, "ack", {})
        return True

    def listening(self, subscription: Subscription) -> None:
        self._listening.add(subscription)

    def stopped(self, subscription: Subscription) -> None:
        """An inbox of the application was closed; open questions get a private subscription instead."""
        self._listening.discard(subscription)
        if self._answers and self._private is None and not self._has_inbox():
            self._private = self._subscribe(ASIDE_MAX)
            with suppress(PenstockError):  # the connection has ended
                _ = self._private._begin()

    async def expect(self, corr: str) -> asyncio.Future[Delivery]:
        """Open a question; must be followed by `close`."""
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self._answers[corr] = answer
        if not self._has_inbox():
            if self._private is None:
                self._private = self._subscribe(ASIDE_MAX)
            await self._private.open()
        return answer

    async def close(self, corr: str) -> None:
        """Close a question that was answered or given up."""
        self._answers.pop(corr, None)
        if not self._answers and self._private is not None:
            private, self._private = self._private, None
            await private.close()

    def _has_inbox(self) -> bool:
        """Whether the application has an open subscription to its inbox, which receives the answers."""
        return any(subscription.is_open for subscription in self._listening)


def checked(to: str, answer: Delivery) -> Delivery:
    """The answer, unless it reports that the handler of the question failed."""
    code = (answer.envelope.get("headers") or {}).get(FAILED) if answer.type.endswith(".error") else None
    if isinstance(code, str):
        text = answer.payload.get("message") if isinstance(answer.payload, dict) else answer.payload
        raise Error(code, detail=f"`{to}` failed: {text}", ref=answer._head.corr).exception()
    return answer


def no_agent() -> PenstockError:
    """Questions and inboxes need an agent name."""
    return PenstockError(Refusal("InvalidRequest", "this client has no agent name", hint="connect with `agent=…`"))


def unanswered(to: str, timeout_s: float, sent: Sent | None) -> PenstockError:
    """The error of a question without an answer; `sent` is None if the question was not sent in time."""
    hint = "wait longer with `timeout=…`"
    if sent is None:
        message = f"the question to `{to}` was not accepted within {timeout_s:g} s"
    else:
        message = f"`{to}` did not answer in {timeout_s:g} s"
        if sent.recipient is not None and not sent.recipient.present:
            hint = f"no consumer reads `{sent.to}`: start the agent that answers; the question waits in its inbox"
        else:
            hint += ", or check that the recipient calls `delivery.reply(…)`"
    return PenstockError(Refusal("Timeout", message, hint=hint))
