"""A pull from outside any connection: one HTTP request that waits for records."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Consumer, Link
from penstock.core.records import Record
from penstock.dialects.courier.operations import queue
from penstock.dialects.courier.sessions.answers import Answers, RuntimePort


class PullSession:
    """A session that takes one delivery and is done."""

    def __init__(self, runtime: RuntimePort, done: Callable[[queue.Body], None]) -> None:
        self.out: list[bytes] = []
        self.closing: tuple[int, str] | None = None
        self.link: Link
        self.answers = Answers(runtime, self)
        self._machine = runtime.machine
        self._done = done

    def receive(self, now: Now, data: bytes) -> None:
        return None

    def deliver(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        self._done(queue.pulled(self._machine, now, records))

    def expired(self, consumer: Consumer, record: Record, lease_id: str) -> None:
        return None

    def finished(self, no: int, fresh: Refusal | None, whole: Refusal | None) -> bool:
        return False

    def drain(self, refusal: Refusal) -> None:
        """Its pull ends with nothing; whoever asks again is told why."""
        if self.closing is None and refusal.kind.close is not None:
            self.closing = (refusal.kind.close, refusal.code)
