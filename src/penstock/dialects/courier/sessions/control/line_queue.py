"""Lines of one connection that are handled over several turns, because they are many or large.

A WebSocket message or a control line may have `limits.frame_max` bytes. The queue hands lines over in their order, `STEP_BYTES` a turn, and
checks a large line in steps before. A request that is carried out in steps holds back the lines after it. While lines wait, the connection is
not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.dialects.courier.operations.outcomes import Outcome
from penstock.dialects.courier.sessions.answers import Answers, RuntimePort
from penstock.dialects.courier.wire.request_checks import STEP_BYTES, Steps, check_request

CHUNK_MAX = 256 * 1024
"""Bytes of small lines that are handled at once: what one read of a socket brings."""

Take = Callable[[Now, list[bytes], Refusal | None], None]
"""Handles lines: small ones, or a large one with what its checks found."""


class LineQueue:
    """The waiting lines of one connection."""

    __slots__ = ("_answer", "_answers", "_check", "_is_running", "_lines", "_runtime", "_take", "_work")

    def __init__(self, runtime: RuntimePort, answers: Answers, take: Take) -> None:
        self._runtime = runtime
        self._answers = answers
        self._take = take
        self._lines: deque[bytes] = deque()
        self._check: Steps[Refusal | None] | None = None
        self._work: Steps[Outcome] | None = None
        self._answer: Callable[[Outcome], None]
        self._is_running = False

    def __len__(self) -> int:
        return len(self._lines) + (self._work is not None)

    @staticmethod
    def is_needed(lines: list[bytes], size: int) -> bool:
        """Whether lines of this size together are too much for one turn."""
        return size > STEP_BYTES and (size > CHUNK_MAX or max(map(len, lines)) > STEP_BYTES)

    def add(self, lines: list[bytes]) -> None:
        """Handle these lines after those that wait."""
        self._lines.extend(lines)
        self._start()

    def carry_out(self, work: Generator[None, None, Outcome], answer: Callable[[Outcome], None]) -> None:
        """Carry out a request in steps, then answer it. It is finished even if the connection closes."""
        self._work, self._answer = Steps(work), answer
        self._start()

    def hold_back(self, lines: list[bytes]) -> None:
        """Handle these lines in a later turn, before those that wait."""
        self._lines.extendleft(reversed(lines))
        self._start()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being carried out in steps."""
        return self._work is not None

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._answers.is_full = True
            self._runtime.survey(self, self._done, self._answers.session)

    def _done(self) -> None:
        self._is_running = self._answers.is_full = False

    def step(self, now: Now) -> bool:
        """Hand over as many bytes as a turn allows, or do one step of a request, or of the checks of a large line."""
        if self._work is not None:
            if self._work.step(now):
                outcome, self._work = self._work.result, None
                self._answer(outcome)
            return not self
        size = 0
        ready: list[bytes] = []
        problem: Refusal | None = None
        session = self._answers.session
        if session.closing is not None or not session.link.open:
            self._lines.clear()
        while self._lines and size <= STEP_BYTES:
            line = self._lines[0]
            if len(line) > STEP_BYTES:
                if ready:
                    break
                if self._check is None:
                    self._check = Steps(check_request(line, self._runtime.machine.limits))
                if not self._check.step(now):
                    return False
                problem, self._check = self._check.result, None
            ready.append(self._lines.popleft())
            size += len(line)
        self._take(now, ready, problem)
        return not self
