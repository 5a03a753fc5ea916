"""Participants, what each party may send, and what participants sent that waits for a commit.

Capabilities of the settings or the invitation are tried first, then the grants. A `PendingCommit` holds what its sender sent next, so that
frames and errors do not overtake an envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.errors import Refusal
from penstock.core.fanout.outbox import Outbox
from penstock.core.records import Entry
from penstock.dialects.mew.capabilities import Capability, Matcher, clean, with_baseline
from penstock.dialects.mew.gateway_messages import MewRefusal

CapabilitySource = Literal["static", "dynamic", "implicit"]


class SpaceObserver(Protocol):
    """Receives a report of everything that passes, for log files."""

    def received(self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str) -> None: ...

    def delivered(
        self, now: Now, envelope: bytes, id_: str, participants: Iterable[tuple[str, str]], space: str
    ) -> None: ...

    def rejected(
        self, now: Now, envelope: bytes, id_: str, participant: str, space: str, transport: str, reason: str
    ) -> None: ...

    def decided(self, now: Now, decision: Decision) -> None: ...


class Decision(msgspec.Struct, frozen=True):
    """Whether a participant was allowed to send an envelope, and why."""

    envelope: str
    participant: str
    space: str
    kind: str
    matched: Capability | None
    source: CapabilitySource | None
    """`static` from the settings or the invitation, `dynamic` from a grant, `implicit` from the protocol."""
    held: tuple[Capability, ...]
    transport: str
    correlation: tuple[str, ...] = ()


class Rights:
    """What one party may send."""

    __slots__ = ("all", "granted", "static")

    def __init__(self, static: tuple[Capability, ...], granted: Iterable[tuple[Capability, ...]]) -> None:
        self.static = Matcher(with_baseline(static))
        dynamic = tuple(capability for capabilities in granted for capability in capabilities)
        self.granted = Matcher(dynamic) if dynamic else None
        self.all = with_baseline(clean([*static, *dynamic]))

    def match(self, kind: str, payload: bytes | None) -> tuple[Capability, CapabilitySource] | None:
        found = self.static.match(kind, payload)
        if found is not None:
            return found, "static"
        if self.granted is not None:
            found = self.granted.match(kind, payload)
            if found is not None:
                return found, "dynamic"
        return None


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
Fault = MewRefusal | None
"""Why a request was refused; None if it was not."""


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
