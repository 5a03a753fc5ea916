"""Participants, and what they sent that waits for a commit.

A `PendingCommit` holds what its sender sent next, so that frames and errors do not overtake an envelope.
"""

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
    """A participant that is present, or that sends over HTTP without being present."""

    __slots__ = ("id", "kind", "last", "member", "outbox", "party", "waiting")

    def __init__(self, id_: str, party: str, outbox: Outbox | None, kind: str = "websocket") -> None:
        self.id = id_
        self.party = party
        """The name that the space knows, given by the token."""
        self.outbox = outbox
        self.kind = kind
        """`websocket`, `virtual`, `pipeline`, `polling` or `http`."""
        self.member = Member(id_, party, outbox)
        self.waiting = 0
        """The weight of what it sent and that waits."""
        self.last: PendingCommit | None = None
        """Its newest commit that is not decided; what it sends next waits there."""


Answer = dict[str, Any]
Done = Callable[[Now, "Answer | MewRefusal"], None]
"""Called once with the answer for HTTP, or with the refusal."""


def accepted(now: Now) -> Answer:
    """The HTTP answer to an envelope that was broadcast."""
    return {"status": "accepted", "timestamp": rfc3339(now.wall_us)}


WEIGHT = 4 * 1024
"""Bytes of a waiting message that count as one more message."""


def weight(data: bytes) -> int:
    """The weight of a waiting message. The server stops reading from a peer while too much of it waits."""
    return 1 + len(data) // WEIGHT


class PendingCommit:
    """Something that is announced when its commit is durable."""

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
        """Called if the commit is refused."""
        self.cause = cause
        """The id of the envelope."""
        self.fresh = all(entry.fresh for entry in entries)
        self.size = sum(entry.size or 0 for entry in entries)
        self.refusal: Refusal | None = None
        self.behind: list[tuple[Callable[[Now], None], int]] = []
        """What its sender sent next and that needs no commit, with its weight."""
