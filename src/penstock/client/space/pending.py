"""Sent envelopes that wait for an echo or an answer.

At most `OPEN_MAX` are pending; further senders wait. An envelope is confirmed by its echo, which the gateway sends when it is durable, or by
the gateway's own answer where it does not echo. An answer is the first other envelope that is correlated to ours; where only the gateway
can answer, envelopes of participants are ignored. A correlated `system/error` fails the pending envelope.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Literal

from penstock.client.space.messages import SpaceEnvelope, SpaceError, object_of
from penstock.core.errors import PenstockError

OPEN_MAX = 1_000
"""The most pending envelopes of one participant."""


Wanted = Literal["echo", "answer", "gateway"]
"""What completes a pending envelope: its echo, any answer, or an answer of the gateway."""


class PendingEnvelope:
    """A sent envelope and the future of its echo or answer."""

    def __init__(self, envelope_id: str, wants: Wanted) -> None:
        self.id = envelope_id
        self.wants = wants
        self.future: asyncio.Future[SpaceEnvelope] = asyncio.get_running_loop().create_future()


class PendingEnvelopes:
    """All pending envelopes of a participant."""

    def __init__(self) -> None:
        self._open: dict[str, PendingEnvelope] = {}
        self.slots = asyncio.Semaphore(OPEN_MAX)
        """Hold one while an envelope is pending; waits until one is free."""
        self._stem = secrets.token_hex(6)
        self._serial = 0

    def next_id(self) -> str:
        self._serial += 1
        return f"{self._stem}-{self._serial}"

    def begin(self, wants: Wanted) -> PendingEnvelope:
        """Add a pending envelope; `end` removes it."""
        exchange = PendingEnvelope(self.next_id(), wants)
        self._open[exchange.id] = exchange
        return exchange

    def end(self, exchange: PendingEnvelope) -> None:
        del self._open[exchange.id]
        exchange.future.cancel()

    def take(self, envelope: SpaceEnvelope) -> bool:
        """Whether an envelope from the wire settled something."""
        settled = False
        for cause in envelope.correlation_id:
            exchange = self._open.get(cause)
            if exchange is None or exchange.future.done():
                continue
            if envelope.kind == "system/error" and envelope.is_from_gateway:
                exchange.future.set_exception(SpaceError(object_of(envelope.payload)))
                settled = True
            elif exchange.wants == "answer" or envelope.is_from_gateway:
                exchange.future.set_result(envelope)
                settled = True
        echoed = self._open.get(envelope.id)
        if echoed is not None and echoed.wants == "echo" and not echoed.future.done():
            echoed.future.set_result(envelope)
            settled = True
        return settled

    def fail(self, error: PenstockError) -> None:
        """Fail all pending envelopes: their outcome is unknown."""
        for exchange in self._open.values():
            if not exchange.future.done():
                exchange.future.set_exception(error)
                exchange.future.exception()  # it may be ending at this moment
