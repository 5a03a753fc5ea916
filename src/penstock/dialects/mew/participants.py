"""Participants, and what they sent that waits for a commit.

A `PendingCommit` holds what its sender sent next, so that frames and errors do not overtake an envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.fanout.outbox import Outbox
from penstock.core.records import Entry
from penstock.dialects.mew.gateway_messages import MewRefusal


class Participant(msgspec.Struct, eq=False):
    """A participant that is present, or that sends over HTTP without being present."""

    id: str
    party: str
    """The name that the space knows, given by the token."""
    outbox: Outbox | None
    kind: str = "websocket"
    """`websocket`, `virtual`, `pipeline`, `polling` or `http`."""
    waiting: int = 0
    """The weight of what it sent and that waits."""
    last: PendingCommit | None = None
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


class PendingCommit(msgspec.Struct, eq=False):
    """Something that is announced when its commit is durable."""

    gate: int
    sender: Participant | None
    announce: Callable[[Now], Answer | MewRefusal | None]
    entries: Sequence[Entry] = ()
    done: Done | None = None
    failed: Callable[[Now], None] | None = None
    """Called if the commit is refused."""
    cause: str | None = None
    """The id of the envelope."""
    refusal: Refusal | None = None
    behind: list[tuple[Callable[[Now], None], int]] = []
    """What its sender sent next and that needs no commit, with its weight."""

    @property
    def size(self) -> int:
        return sum(entry.size or 0 for entry in self.entries)
