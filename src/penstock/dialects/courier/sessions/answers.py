"""Answers in request order, each held back until what it says is durable.

An answer names the commit it waits for (its gate); when that commit is refused, the answer becomes the refusal. Deliveries go out
between answers, not through here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.core.clock import Now
from penstock.core.commit_log import GatedAnswers
from penstock.core.errors import Refusal
from penstock.core.links import ABSENT, Consumer, IsTaken, Session
from penstock.core.queue.machine import QueueMachine
from penstock.core.scopes import Principal

if TYPE_CHECKING:
    from penstock.core.steps import Survey
    from penstock.dialects.courier.sessions.view_feed import Watching

Render = Callable[[Refusal | None], bytes]
"""Makes an answer's bytes: the refusal's when one is given."""


class RuntimePort(Protocol):
    """What a session has of its runtime."""

    machine: QueueMachine
    finished: int
    """Number of the last batch whose outcome is known."""

    @property
    def live(self) -> Watching:
        """Who keeps the followers of views up to date."""

    def apply(self, now: Now) -> None:
        """Carry out the machine's effects before it is called again."""

    def wait(self, answers: GatedAnswers) -> None:
        """Call `finished` of these answers for each batch until it returns False."""

    is_agent_taken: IsTaken
    token_refused: Callable[[str | None, str], None]

    def authenticate(self, token: str | None) -> Principal | None:
        """Who a token stands for."""

    def health(self, now: Now) -> dict[str, Any]:
        """What GET /health says."""

    def after(self, gate: int, session: Session, call: Callable[[Now], None]) -> None:
        """Call with the time when batch `gate` has its outcome, then write what it left for the session."""

    def when(self, gate: int, fresh: bool, call: Callable[[Refusal | None], object]) -> None:
        """The same, also if the peer has gone."""

    def input_refused(self, door: str, code: str) -> None:
        """Count a message that is too large, no JSON, or JSON that is not accepted."""

    def evicted(self, consumer: Consumer) -> None:
        """Count and log a subscription that ended to make room for another of its connection."""

    def survey(self, survey: Survey, done: Callable[[], None], session: Session | None = None) -> None:
        """Do it a step a turn, then call `done`, which may leave something for the session to say."""


class Slot(msgspec.Struct, eq=False):
    """An answer whose time comes by itself, in its place among the others."""

    data: bytes | None = None


@dataclass(slots=True, eq=False)
class Answers:
    """The answers of one connection."""

    _runtime: RuntimePort
    session: Session
    gate: int = 0
    """The newest batch with something that was requested here."""
    _queue: deque[tuple[int, bool, Render | Slot | bytes]] = field(default_factory=deque)
    _filled: int = 0
    """Bytes of answers that wait for one before them."""
    is_full: bool = False
    """Whether more requests wait than one turn handles: the connection is not read meanwhile."""

    def __len__(self) -> int:
        return len(self._queue) + self.is_full * (self._runtime.machine.limits.answers_max + 1)

    def add(self, data: bytes) -> None:
        """Answer now, or behind what is still waiting."""
        if self._queue:
            self._queue.append((0, False, data))
        else:
            self.session.out.append(data)

    def after(self, gate: int, render: Render, *, fresh: bool = False) -> None:
        """Answer when batch `gate` is finished. `fresh`: the answer stands or falls with new records."""
        runtime = self._runtime
        if gate <= runtime.finished:
            if not self._queue:
                self.session.out.append(render(None))
                return
            gate = 0
        else:
            runtime.machine.commit_log.await_gate(gate)
            self.gate = max(self.gate, gate)
        self._queue.append((gate, fresh, render))
        runtime.wait(self)

    def release(self) -> None:
        """The connection has ended: no answer goes out."""
        self._queue.clear()
        self.session = ABSENT

    def slot(self) -> Slot:
        """Keep a place for an answer that comes later by itself."""
        slot = Slot()
        self._queue.append((0, False, slot))
        return slot

    def fill(self, slot: Slot, data: bytes) -> None:
        slot.data = data
        self._filled += len(data)
        self.finished(self._runtime.finished, None, None)
        if self._filled > self._runtime.machine.limits.outbox_hard_max and self.session.closing is None:
            message = "answers of more than `limits.outbox_hard_max` bytes wait for an answer before them"
            self.session.drain(Refusal("SlowConsumer", message, hint="read the answer to a pull before you send more"))

    def finished(self, no: int, fresh: Refusal | None, whole: Refusal | None) -> bool:
        """Give every answer that may go now. Returns whether gated ones remain."""
        queue = self._queue
        out = self.session.out
        if fresh is not None:
            self._refuse(no, fresh, whole)
        while queue:
            gate, _, what = queue[0]
            if gate > no:
                break
            if isinstance(what, Slot):
                if what.data is None:
                    break
                if what.data:
                    out.append(what.data)
                    self._filled -= len(what.data)
            elif isinstance(what, bytes):
                out.append(what)
            else:
                out.append(what(None))
            queue.popleft()
        return bool(queue)

    def _refuse(self, no: int, fresh: Refusal, whole: Refusal | None) -> None:
        """Batch `no` was refused: settle now what its answers say, for some may have to wait for others."""
        for index, (gate, is_fresh, what) in enumerate(self._queue):
            if gate == no and not isinstance(what, bytes | Slot):
                self._queue[index] = (0, False, what(fresh if is_fresh else whole))
