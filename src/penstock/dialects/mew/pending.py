"""What waits for its commit: the facts it rests on, the changes they made, and what is told once they are durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.errors import Refusal
from penstock.core.instant import Now, rfc3339
from penstock.core.records import Entry
from penstock.dialects.mew.messages import Fault

if TYPE_CHECKING:
    from penstock.dialects.mew.space import Participant

Answer = dict[str, Any]
Done = Callable[[Now, "Answer | Fault"], None]
"""Told once what became of an envelope: what HTTP answers, or why not."""


def accepted(now: Now) -> Answer:
    """What HTTP answers to an envelope that was passed on."""
    return {"status": "accepted", "timestamp": rfc3339(now.wall_us)}


class Pending:
    """Something that is told when its commit is durable."""

    __slots__ = (
        "backs",
        "cause",
        "do",
        "done",
        "entries",
        "fresh",
        "gate",
        "refusal",
        "sender",
        "size",
        "tell",
        "undo",
    )

    def __init__(
        self,
        gate: int,
        sender: Participant | None,
        tell: Callable[[Now], Answer | Fault | None],
        entries: Sequence[Entry] = (),
        *,
        done: Done | None = None,
        cause: str | None = None,
        do: Callable[[], None] | None = None,
        undo: Callable[[Now], None] | None = None,
    ) -> None:
        self.gate = gate
        self.sender = sender
        self.tell = tell
        self.entries = entries
        self.done = done
        self.cause = cause
        """The envelope that its sender would look for in an error."""
        self.do = do
        """What follows the changes that the entries tell."""
        self.undo = undo
        self.backs: list[Callable[[], None]] = []
        """How to take those changes back."""
        self.fresh = all(entry.fresh for entry in entries)
        self.size = sum(entry.size or 0 for entry in entries)
        self.refusal: Refusal | None = None
