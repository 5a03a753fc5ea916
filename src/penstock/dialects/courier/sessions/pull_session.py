"""A pull from outside any connection: one HTTP request that waits for records."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Consumer, PeerlessSession
from penstock.core.records import Record
from penstock.dialects.courier.operations import queue
from penstock.dialects.courier.sessions.answers import RuntimePort


class PullSession(PeerlessSession):
    """A session that takes one delivery and is done."""

    def __init__(self, runtime: RuntimePort, done: Callable[[queue.Body], None]) -> None:
        super().__init__()
        self._machine = runtime.machine
        self._done = done

    def deliver(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        self._done(queue.pulled(self._machine, now, records))

    def drain(self, refusal: Refusal) -> None:
        """Close with a reason; the machine has ended the pull without records."""
        if self.closing is None and refusal.kind.close is not None:
            self.closing = (refusal.kind.close, refusal.code)
