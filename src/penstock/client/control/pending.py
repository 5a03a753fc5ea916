"""The unanswered requests of one connection.

Owns their numbers, their deadlines and their bound; knows nothing of links. What is in flight is bounded by
count and bytes, and callers wait for room. Cost of a request: one future and one dict entry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw

from penstock.core.errors import PenstockError, Refusal
from penstock.core.limits import Limits

REQUESTS_MAX = 4096
"""The most requests in flight; below the server's `answers_max`, at which it would stop reading."""
REQUESTS_BYTES = 64 * 1024 * 1024
"""The most bytes of requests in flight; they are kept until answered, to send them again."""
SENDS_MAX = 5
"""How often one request is sent at most: a request that breaks connections must not do so forever."""
SWEEP_S = 0.5
"""Interval of the check for timed-out requests."""
FRAME_MAX = Limits().frame_max
"""The most bytes of one line that the server accepts."""


@dataclass(slots=True)
class PendingRequest:
    """A request without an answer."""

    line: bytes
    future: asyncio.Future[Raw]
    deadline: float
    is_repeatable: bool
    sends: int = 0


class PendingRequests:
    """The requests in flight. `late` makes the error of a timed-out request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[], PenstockError]) -> None:
        self._loop = loop
        self._late = late
        self._pending: dict[str, PendingRequest] = {}
        self._bytes = 0
        self._serial = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self.is_transport_paused: Callable[[], bool] = lambda: False

    def add(self, body: bytes, future: asyncio.Future[Raw], *, repeat: bool, timeout_s: float) -> PendingRequest:
        """Number a frame that lacks its last brace, and keep it until its answer."""
        self._serial += 1
        req_id = str(self._serial)
        line = b'%b,"reqId":"%d"}\n' % (body, self._serial)
        pending = PendingRequest(line, future, self._loop.time() + timeout_s, repeat)
        if len(line) > FRAME_MAX:
            message = f"the request has {len(line)} bytes; at most {FRAME_MAX} are allowed"
            future.set_exception(PenstockError(Refusal("TooLarge", message)))
            return pending
        self._pending[req_id] = pending
        self._bytes += len(line)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_S, self._sweep)
        if self._waiters:
            self.admit()
        return pending

    def answered(self, req_id: str, result: Raw) -> bool:
        """Complete a request with its result; False when it is unknown."""
        pending = self._pending.pop(req_id, None)
        if pending is None:
            return False
        self._bytes -= len(pending.line)
        if not pending.future.done():
            pending.future.set_result(result)
        if self._waiters:
            self.admit()
        return True

    def refused(self, req_id: str, error: PenstockError) -> bool:
        """Fail a request with its error; False when it is unknown."""
        if req_id not in self._pending:
            return False
        self._fail(req_id, error)
        self.admit()
        return True

    def disconnected(self, error: PenstockError) -> None:
        """Fail the requests that were sent and may not be repeated, or were repeated too often."""
        for req_id, pending in list(self._pending.items()):
            if pending.sends and (not pending.is_repeatable or pending.sends >= SENDS_MAX):
                self._fail(req_id, error)

    def fail_all(self, error: PenstockError) -> None:
        for req_id in list(self._pending):
            self._fail(req_id, error)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        while self._waiters:
            _wake(self._waiters.popleft())

    def waiting(self) -> list[PendingRequest]:
        return list(self._pending.values())

    def is_full(self) -> bool:
        """Whether the next caller has to wait, for room or behind earlier callers."""
        return bool(self._waiters) or self._is_at_bound()

    def _is_at_bound(self) -> bool:
        return len(self._pending) >= REQUESTS_MAX or self._bytes >= REQUESTS_BYTES or self.is_transport_paused()

    async def room(self) -> None:
        """Wait for room, first come first served."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.admit()  # pass the free place on to the next caller
            raise

    def admit(self) -> None:
        """Wake one waiting caller; its request, or the next answer, wakes the next one."""
        while self._waiters and not self._is_at_bound():
            if _wake(self._waiters.popleft()):
                return

    def _fail(self, req_id: str, error: PenstockError) -> None:
        pending = self._pending.pop(req_id)
        self._bytes -= len(pending.line)
        if not pending.future.done():
            pending.future.set_exception(error)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = self._loop.time()
        for req_id in [name for name, pending in self._pending.items() if pending.deadline <= now]:
            self._fail(req_id, self._late())
        if self._pending:
            self._sweep_timer = self._loop.call_later(SWEEP_S, self._sweep)
        self.admit()


def _wake(waiter: asyncio.Future[None]) -> bool:
    if waiter.done():
        return False
    waiter.set_result(None)
    return True
