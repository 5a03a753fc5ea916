"""The messages of one connection that the witness can check."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.dialects.courier.sessions.subscribe import SubscribeQuery
from tests.simulation.queue.history import Place

Frame = dict[str, Any]


def ends(op: str, frame: Frame) -> bool:
    """Whether a settle, once confirmed, is final."""
    return op in ("ack", "term") or (op == "nack" and frame.get("requeue") is False)


class Awaited(NamedTuple):
    """A settle on a socket whose answer is to come."""

    message_no: int
    op: str
    id: str
    message: Frame


class Conversation:
    """What was said on one connection."""

    def __init__(self, who: str, query: SubscribeQuery | None) -> None:
        self.who = who
        """The principal's name."""
        self.stream = None if query is None else query.stream
        """A subscribe socket's stream."""
        self.vandal = False
        """Says nothing but what must be refused."""
        self.rest = b""
        self.requests: dict[int, Frame] = {}
        self.answered = 0
        """The newest request that was answered."""
        self.succeeded: set[int] = set()
        self.granted = 0 if query is None else query.credit
        self.delivered = 0
        self.automatic = query is not None and bool(query.auto)
        self.places: dict[str, dict[str, int]] = {}
        """What was delivered here: id, stream, number."""
        self.messages = 0
        self.awaited: list[Awaited] = []
        """A socket's settles, in order: they have no number."""

    def place(self, id_: str) -> Place | None:
        """The record an id means here; None when it could be one of several."""
        seen = self.places.get(id_, {})
        return next(iter(seen.items())) if len(seen) == 1 else None

    def waited_for(self, id_: str, *, settled: bool = False) -> Awaited | None:
        """The settle that an answer is about; those of earlier messages can have no answer any more.

        An extension is only answered when it fails.
        """
        for awaited in self.awaited:
            if id_ == awaited.id and not (settled and awaited.op == "extend"):
                self.awaited.remove(awaited)
                self.awaited = [other for other in self.awaited if other.message_no >= awaited.message_no]
                return awaited
        return None
