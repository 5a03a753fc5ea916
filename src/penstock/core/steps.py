"""Work that is done a step a turn, so that no input holds the loop for long, and the queue of a connection whose messages need that.

A message may have megabytes. The queue hands messages over in their order, `STEP_BYTES` a turn, and checks a large one in steps before. A
request that is carried out in steps holds back the messages after it. While messages wait, the connection is not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from penstock.core.clock import Now
from penstock.core.links import ABSENT, Session

STEP_BYTES = 64 * 1024
"""Bytes that are checked in one step, and of the largest message that is checked at once: 1 ms of plain JSON, 8 ms of the worst."""
STEP_COST = 2_000
"""What one step may cost, in records of a plain stream that are moved: about 10 ms."""
CHUNK_MAX = 256 * 1024
"""Bytes of small messages that are handled at once: what one read of a socket brings."""

T = TypeVar("T")
R = TypeVar("R")


class Survey(Protocol):
    """Work that is done in steps."""

    def step(self, now: Now) -> bool:
        """Do the next part. True when nothing is left."""


class Steps(Generic[T]):
    """A generator as work that is done a step a turn."""

    def __init__(self, work: Generator[None, Any, T]) -> None:
        self._work = work
        self._is_begun = False
        self.result: T
        """Set when all steps are done."""

    def step(self, now: Now | None = None) -> bool:
        """Do one step; True when all are done. A `yield` of the generator returns the time of the next step."""
        try:
            self._work.send(now if self._is_begun else None)
        except StopIteration as end:
            self.result = end.value
            return True
        self._is_begun = True
        return False

    def end(self) -> None:
        """Do no further step; a result would be of no use."""
        self._work.close()

    def all(self, now: Now | None = None) -> T:
        """Do all steps at once."""
        while not self.step(now):
            pass
        return self.result


def _unchecked(message: bytes) -> Generator[None, None, Any]:
    yield


def _ignore(now: Now, messages: list[bytes], found: Any) -> None:
    """The messages of a connection that has ended."""


class Intake(Protocol):
    """Who stops reading the connection while messages wait."""

    is_full: bool


class InputQueue(Generic[T]):
    """The waiting messages of one connection. `check` checks a large one in steps; `take` gets small ones, or a large one with its result."""

    def __init__(
        self,
        run: Callable[[Survey, Callable[[], None], Session], None],
        session: Session,
        intake: Intake,
        check: Callable[[bytes], Generator[None, None, T]],
        take: Callable[[Now, list[bytes], T | None], None],
    ) -> None:
        self._run = run
        self._session = session
        self._intake = intake
        self._check = check
        self._take = take
        self._messages: deque[bytes] = deque()
        self._checked: Steps[T] | None = None
        """The checks of the first message."""
        self._work: Steps[None] | None = None
        self._is_running = self._is_late = False
        self._waiting = self._taken = 0
        self.is_paused = False
        """Whether messages wait for something else, such as a join."""

    def __len__(self) -> int:
        return len(self._messages) + (self._work is not None)

    @property
    def size(self) -> int:
        """Bytes of the messages that wait, and of those whose request is being carried out."""
        return self._waiting if self._work is None else self._waiting + self._taken

    @staticmethod
    def is_needed(messages: list[bytes], size: int) -> bool:
        """Whether messages of this size together are too much for one turn."""
        return size > STEP_BYTES and (size > CHUNK_MAX or max(map(len, messages)) > STEP_BYTES)

    def add(self, messages: list[bytes], *, is_late: bool = False) -> None:
        """Handle these messages after those that wait; with `is_late` not in this turn."""
        self._is_late = is_late and not self._is_running
        self._messages.extend(messages)
        self._waiting += sum(map(len, messages))
        self._start()

    def carry_out(self, work: Generator[None, Any, R], answer: Callable[[R], None]) -> None:
        """Carry out a request in steps, then answer it. It is finished even if the connection closes."""

        def whole() -> Generator[None, Any, None]:
            answer((yield from work))

        self._work = Steps(whole())
        self._start()

    def hold_back(self, messages: list[bytes]) -> None:
        """Handle these messages in a later turn, before those that wait."""
        self._messages.extendleft(reversed(messages))
        self._waiting += sum(map(len, messages))
        self._start()

    def resume(self) -> None:
        """Handle what has waited for something else."""
        self.is_paused = False
        if self:
            self._start()

    def clear(self) -> None:
        """Forget the messages that wait."""
        self._messages.clear()
        self._waiting = 0
        self._checked = None
        self._intake.is_full = self._is_running

    def release(self) -> None:
        """The connection has ended: forget its messages and who handles them. A request in steps goes on."""
        self.clear()
        self._session = self._intake = ABSENT
        self._check, self._take = _unchecked, _ignore

    @property
    def is_busy(self) -> bool:
        """Whether a request is being carried out in steps."""
        return self._work is not None

    def _start(self) -> None:
        self._intake.is_full = True
        if not self._is_running and not self.is_paused:
            self._is_running = True
            self._run(self, self._done, self._session)

    def _done(self) -> None:
        self._is_running = False
        if self._session.closing is not None:
            self._work = None  # set if it failed
            self.clear()
        self._intake.is_full = bool(self)

    def step(self, now: Now) -> bool:
        """Hand over as many bytes as a turn allows, or do one step of a request, or of the checks of a large message."""
        if self._work is not None:
            if self._work.step(now):
                self._work = None
            return not self
        if self._is_late:
            self._is_late = False
            return False
        size = 0
        ready: list[bytes] = []
        found: T | None = None
        if self._session.closing is not None or not self._session.link.open:
            self.clear()
        while self._messages and size <= STEP_BYTES:
            message = self._messages[0]
            if len(message) > STEP_BYTES:
                if ready:
                    break
                if self._checked is None:
                    self._checked = Steps(self._check(message))
                if not self._checked.step():
                    return False
                found, self._checked = self._checked.result, None
            ready.append(self._messages.popleft())
            size += len(message)
        self._waiting -= size
        self._taken = size
        self._take(now, ready, found)
        return self.is_paused or not self
