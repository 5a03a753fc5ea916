"""Participants, and what they sent that waits: an envelope for its commit, and behind it whatever its sender sent next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.fanout.frame_router import Member
from penstock.core.fanout.outbox import Outbox
from penstock.core.records import Entry
from penstock.dialects.mew.gateway_messages import MewRefusal


class Participant:
    """Somebody who is there, or who sends without being there."""

    __slots__ = ("id", "kind", "last", "member", "outbox", "party", "waiting")

    def __init__(self, id_: str, party: str, outbox: Outbox | None, kind: str = "websocket") -> None:
        self.id = id_
        self.party = party
        """The name under which the space knows it: that of the token it showed."""
        self.outbox = outbox
        self.kind = kind
        """`websocket`, `virtual`, `pipeline`, `polling` or `http`."""
        self.member = Member(id_, party, outbox)
        self.waiting = 0
        """How much it sent that waits for its turn."""
        self.last: PendingCommit | None = None
        """The newest of that which waits for its commit; what comes behind waits there."""


Answer = dict[str, Any]
Done = Callable[[Now, "Answer | MewRefusal"], None]
"""Told once what became of an envelope: what HTTP answers, or why not."""


def accepted(now: Now) -> Answer:
    """What HTTP answers to an envelope that was passed on."""
    return {"status": "accepted", "timestamp": rfc3339(now.wall_us)}


WEIGHT = 4 * 1024
"""Bytes of a message that count as one more message that waits."""


def weight(data: bytes) -> int:
    """How much a message that waits counts: a peer is not read while much of it waits."""
    return 1 + len(data) // WEIGHT


class PendingCommit:
    """Something that is told when its commit is durable."""

    __slots__ = (
        "announce",
        "behind",
        "cause",
        "done",
        "entries",
        "failed",
        "fresh",
        "gate",
        "refusal",
        "sender",
        "size",
    )

    def __init__(
        self,
        gate: int,
        sender: Participant | None,
        announce: Callable[[Now], Answer | MewRefusal | None],
        *,
        entries: Sequence[Entry] = (),
        done: Done | None = None,
        failed: Callable[[Now], None] | None = None,
        cause: str | None = None,
    ) -> None:
        self.gate = gate
        self.sender = sender
        self.announce = announce
        self.entries = entries
        self.done = done
        self.failed = failed
        """Called when the commit is refused."""
        self.cause = cause
        """The envelope that it is about."""
        self.fresh = all(entry.fresh for entry in entries)
        self.size = sum(entry.size or 0 for entry in entries)
        self.refusal: Refusal | None = None
        self.behind: list[tuple[Callable[[Now], None], int]] = []
        """What its sender sent next and needs no commit, and how much that is."""
