"""Surveys: reads over all streams, done a few streams a turn so that they do not block the loop.

The runtime calls `step` once a turn until it returns true; then `body` has the answer. Each stream is read at one instant, but not all at
the same instant: a stream that is created meanwhile may be missing. With few streams one step is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.queue.machine import QueueMachine
from penstock.core.scopes import Principal
from penstock.dialects.courier.operations import queries
from penstock.dialects.courier.operations.outcomes import Body, Result

STREAMS_A_TURN = 200
"""Streams that one turn reads: a few milliseconds of work."""

_encode = msgspec.json.encode


class Survey(Protocol):
    """Work that is done in steps."""

    def step(self, now: Now) -> bool:
        """Do the next part. True when nothing is left."""


class MetricsSurvey:
    """The metrics of every stream the caller may read."""

    def __init__(self, machine: QueueMachine, principal: Principal) -> None:
        self._machine = machine
        self._principal = principal
        self._names = Slices(lambda: list(machine.channels))
        self._parts = [b'{"streams":[']

    def step(self, now: Now) -> bool:
        found = queries.metrics_of(self._machine, now, self._principal, self._names.take())
        if found:
            rows = _encode(found)[1:-1]  # encoded at once: the bytes take a fifth of the memory
            self._parts += [rows] if len(self._parts) == 1 else [b",", rows]
        return self._names.is_over

    def body(self) -> bytes:
        """The answer as JSON, copied once: with very many streams it is large."""
        return b"".join([*self._parts, b"]}"])


class WhereSurvey:
    """Every place where an envelope is, or was."""

    def __init__(self, machine: QueueMachine, principal: Principal, id_: str) -> None:
        self._machine = machine
        self._principal = principal
        self._id = id_
        self._names = Slices(lambda: [*machine.channels, *machine.dormant])
        self._rows: list[Body] = []

    def step(self, now: Now) -> bool:
        self._rows += self._machine.where(now, self._id, self._names.take())
        return self._names.is_over

    def body(self) -> bytes | Refusal:
        found = queries.places(self._principal, self._id, self._rows)
        return _encode(found.value()) if isinstance(found, Result) else found


class Slices(msgspec.Struct, eq=False):
    """Names in slices. They are listed when the first slice is taken, so a survey that waits uses no memory."""

    _list: Callable[[], list[str]]
    _names: list[str] = []
    _next: int = 0

    def take(self) -> list[str]:
        if self._next == 0:
            self._names = self._list()
        first, self._next = self._next, self._next + STREAMS_A_TURN
        return self._names[first : self._next]

    @property
    def is_over(self) -> bool:
        return self._next >= len(self._names)
