"""The base of sessions whose peer sends small JSON messages, and the limit on messages a second that all sessions share.

Owns the checks that come before a message is handled. Errors leave the socket open, except malformed JSON (1007), a flood (1008), a
message that is too large (1009) and too many unknown operations (1003). Rate limits apply to enqueues only: rejecting an ack would cause
a duplicate delivery, so a peer that floods is disconnected instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.json_checks import cost_problem
from penstock.core.limits import Limits
from penstock.core.links import Link
from penstock.core.steps import InputQueue
from penstock.dialects.courier.sessions.answers import Answers, RuntimePort
from penstock.dialects.courier.wire.envelopes import json_problem, path_of, to_refusal

SECOND_US = 1_000_000
WEIGHT_MAX, REFUSED_WEIGHT = 2_000, 4
"""Messages of one connection that are handled before the next one waits for a turn, and for how many a refusal counts."""
Message = TypeVar("Message")


@dataclass(slots=True, eq=False)
class FloodLimiter:
    """Counts the messages of a peer in the current second."""

    _limit: int
    _second: int = 0
    _count: int = 0

    def flood(self, now: Now) -> Refusal | None:
        """Count one message; a refusal if there were too many this second."""
        rest = self.rest(now) - 1
        self.leave(rest)
        return self.refusal if rest < 0 else None

    def rest(self, now: Now) -> int:
        """How many messages there may still be in this second."""
        second = now.us // SECOND_US
        if second != self._second:
            self._second = second
            self._count = 0
        return self._limit - self._count

    def leave(self, rest: int) -> None:
        """Many messages were handled: so many may still follow in their second."""
        self._count = self._limit - rest

    @property
    def refusal(self) -> Refusal:
        """Why one message too many is refused."""
        return Refusal("RateLimited", f"more than {self._limit} messages a second")


class StrikeCounter(msgspec.Struct, eq=False):
    """Counts what a peer sends that is no request. Strikes decay, so that a long connection does not collect them."""

    _limits: Limits
    _count: int = 0
    _since_us: int = 0

    def strike(self, now: Now, code: int, refusal: Refusal) -> tuple[int, str] | None:
        """Count one; the code and the reason to close with if there were too many."""
        decay_us = self._limits.strike_decay_ms * 1000
        self._count = max(self._count - (now.us - self._since_us) // decay_us, 0)
        if self._count == 0:
            self._since_us = now.us
        else:
            self._since_us += (now.us - self._since_us) // decay_us * decay_us
        self._count += 1
        if self._count <= self._limits.strikes_max:
            return None
        return code, f"{refusal.code}: {self._count} strikes, the last: {refusal.message}"[:120]


class MessageSession(ABC, Generic[Message]):
    """One connection whose messages are decoded to one struct."""

    fault = "InvalidRequest"
    """The code of a message with a wrong type elsewhere than in `credit`."""

    def __init__(self, runtime: RuntimePort, decode: Callable[[bytes], Message]) -> None:
        self.out: list[bytes] = []
        self.closing: tuple[int, str] | None = None
        self.link: Link
        """Set by the runtime, right after the machine accepted the connection."""
        self.answers = Answers(runtime, self)
        self._runtime = runtime
        self._machine = runtime.machine
        self._decode = decode
        self._weight = 0
        self._queue = InputQueue[None](runtime.survey, self, self.answers, lambda _: (None for _ in ()), self._take)
        """Messages that wait for a later turn."""
        self._strikes = StrikeCounter(runtime.machine.limits)
        self._flood_limiter = FloodLimiter(runtime.machine.limits.control_rate)

    @property
    def input_bytes(self) -> int:
        return self._queue.size

    @property
    def _size_max(self) -> int:
        return self._machine.limits.message_max

    @abstractmethod
    def _write(self, refusal: Refusal) -> None: ...

    @abstractmethod
    def _message(self, now: Now, message: Message) -> None: ...

    def _fail(self, refusal: Refusal, close: int | None = None) -> None:
        self._weight += REFUSED_WEIGHT
        self._write(refusal)
        if close is not None and self.closing is None:
            self.closing = (close, refusal.code)

    def _reject(self, refusal: Refusal, close: int) -> None:
        """Refuse a message that is no request."""
        self._runtime.input_refused("websocket", refusal.code)
        self._fail(refusal, close)

    def release(self) -> None:
        self.answers.release()
        self._queue.release()

    def drain(self, refusal: Refusal) -> None:
        self._fail(refusal, refusal.kind.close)

    def _strike(self, now: Now, refusal: Refusal) -> None:
        self._fail(refusal)
        self.closing = self._strikes.strike(now, 1003, refusal)

    def receive(self, now: Now, data: bytes) -> None:
        if self.closing is not None:
            return
        if self.answers.is_full or self._weight >= WEIGHT_MAX:
            self._queue.add([data], is_late=True)
        else:
            self._receive(now, data)

    def _take(self, now: Now, messages: list[bytes], found: None) -> None:
        """Handle messages that have waited, as many as one turn allows."""
        self._weight = 0
        for number, data in enumerate(messages):
            if self._weight >= WEIGHT_MAX or self._queue.is_busy or self.closing is not None:
                self._queue.hold_back(messages[number:])
                break
            self._receive(now, data)

    def _receive(self, now: Now, data: bytes) -> None:
        self._weight += 1
        flood = self._flood_limiter.flood(now)
        if flood is not None:
            self._fail(flood, 1008)
            return
        if len(data) > self._size_max:
            self._reject(Refusal("TooLarge", f"a message has at most {self._size_max} bytes"), 1009)
            return
        try:
            message = self._decode(data)
        except msgspec.ValidationError as error:
            self._fail(to_refusal(error, "InvalidCredit" if path_of(error) == "credit" else self.fault))
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._reject(Refusal("InvalidJSON", f"the message is not JSON: {error}"), 1007)
            return
        problem = cost_problem(data) or json_problem(data)
        if problem is not None:
            self._reject(problem, 1007)
        else:
            self._message(now, message)
