"""Connections as machines see them: sessions, links, and consumers.

A session speaks one protocol, a link is its connection inside a machine, a consumer is one subscription or pull of a link.
`Session` is what the runtime needs of every protocol; sessions that subscribe or pull also have `deliver` and `expired`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.names import agent_problem
from penstock.core.records import plain_stores
from penstock.core.scopes import UNAUTHENTICATED, Principal

if TYPE_CHECKING:
    from penstock.core.queue.channel import Channel
    from penstock.core.queue.taps import Tap
    from penstock.core.records import Record


AGENT_MAX = 256
"""Characters of an agent's name."""
RESERVED_AGENTS = frozenset(("operator", "system", "penstock", "anonymous"))
"""Names that the server uses itself."""

IsTaken: TypeAlias = Callable[[Principal, str], bool]
"""Whether a name belongs to another token."""


class Session(Protocol):
    """What a runtime needs of the session of any protocol."""

    out: list[bytes]
    """Messages to write, in order; the runtime takes them away."""
    link: Link
    """The runtime sets it right after the machine has accepted the connection."""
    closing: tuple[int, str] | None
    """Set to close the connection once `out` is written: a WebSocket close code and a reason."""

    @property
    def answers(self) -> Sized:
        """What still waits for an answer. A connection closes only when it is empty."""

    @property
    def input_bytes(self) -> int:
        """Bytes that the peer has sent and that wait to be handled."""

    def receive(self, now: Now, data: bytes) -> None:
        """Handle bytes of the peer: a chunk, or one WebSocket message."""

    def drain(self, refusal: Refusal) -> None:
        """End the connection: the server shuts down, or revokes what let the peer in."""

    def release(self) -> None:
        """The connection has ended: drop what waits, and all that refers back to the session.

        The memory returns at once: a cycle of references waits for a visit of the cycle collector, which holds the loop."""


class PeerlessSession:
    """Base of sessions without a peer, such as a worker inside the server: no bytes arrive, and none are written."""

    input_bytes = 0

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.closing: tuple[int, str] | None = None
        self.link: Link
        self.answers: Sized = ()

    def receive(self, now: Now, data: bytes) -> None:
        raise AssertionError("a session without a peer receives no bytes")

    def expired(self, consumer: Consumer, record: Record, lease_id: str) -> None:
        """The record is redelivered; the late settle is refused."""

    def drain(self, refusal: Refusal) -> None:
        """The machine ends pulls and deliveries by itself."""

    def release(self) -> None:
        """Nothing refers back to it."""


class _NoOutput(list[bytes]):
    """Forgets what is written."""

    def append(self, message: bytes) -> None: ...

    def extend(self, messages: Iterable[bytes]) -> None: ...


class AbsentSession(PeerlessSession):
    """Stands for the session of every connection that has ended, where work that goes on refers to it."""

    def __init__(self) -> None:
        super().__init__()
        self.out = _NoOutput()
        self.closing = (1000, "closed")
        self.is_full = False


@dataclass(slots=True, eq=False)
class Link:
    """One connection inside a machine."""

    no: int
    principal: Principal
    """Who speaks; replaced when a hello brings a token."""
    session: Any
    """The dialect's object for this connection: opaque here."""
    room: int
    """Bytes that may still be handed over before the peer must read."""
    stalled: bool = False
    """A consumer wanted more than there was room for."""
    open: bool = True
    address: str = ""
    """Where the peer is, as far as rates are concerned."""
    peer: str = ""
    """Where the peer is, for people."""
    agent: str | None = None
    """The agent that the peer says it is; `agent_refusal` has checked it."""
    consumers: list[Consumer] = field(default_factory=list)
    taps: dict[str, Tap] = field(default_factory=dict)
    """The channels it only looks at, by name."""

    @property
    def who(self) -> str:
        """The agent: the one that its token names, else the one it says it is, else the name of its token."""
        return self.principal.agent or self.agent or self.principal.name

    @property
    def voucher(self) -> str | None:
        """The token of a peer that only says which agent it is."""
        speaker = self.principal
        return None if speaker.anonymous or self.who in (speaker.agent, speaker.name) else speaker.name

    def claim(self, agent: str | None, is_taken: IsTaken) -> Refusal | None:
        """The peer says which agent it is; returns why it may not. None changes nothing."""
        refusal = None if agent is None else agent_refusal(self.principal, agent, is_taken)
        if refusal is None:
            self.agent = agent or self.agent
        return refusal

    def name(self, kind: str = "link") -> str:
        """Who it is and where, for people; with the token of a peer that only says which agent it is."""
        token = f", token {self.voucher}" if self.voucher else ""
        return f"{self.who} ({kind} {self.no}{self.peer and f', {self.peer}'}{token})"


def agent_refusal(principal: Principal, agent: str, is_taken: IsTaken) -> Refusal | None:
    """Why a peer may not call itself by this name."""
    if len(agent) > AGENT_MAX:
        return Refusal("InvalidRequest", f"`agent` has at most {AGENT_MAX} characters", ref="agent")
    problem = agent_problem(agent)
    if problem is not None or principal.agent == agent or principal.operator:
        return problem
    hint = "leave `agent` out, or use the token of that agent"
    if principal.agent is not None:
        message = f"this token speaks for `{principal.agent}`, not for `{agent}`"
    elif agent.casefold() in RESERVED_AGENTS:
        message, hint = f"`{agent}` is a name of the server", "use another name"
    elif is_taken(principal, agent):
        message = f"`{agent}` is the name of another token or its agent"
    else:
        return None
    return Refusal("Forbidden", message, ref="agent", hint=hint)


ABSENT = AbsentSession()
ABSENT.link = Link(0, UNAUTHENTICATED, ABSENT, 0, open=False)


@plain_stores
class Consumer(msgspec.Struct, gc=False, eq=False):
    """A subscription or a pull: its credit, and the leases it holds. Not tracked by the garbage collector, like a record: its link, its
    channel and its leases forget it when it ends."""

    no: int
    channel: Channel
    link: Link
    lease_us: int
    label: str = ""
    """The client's name for it, in its own protocol."""
    tag: Any = None
    """What the dialect wants to keep with it."""
    credit: int = 0
    granted: int = 0
    delivered: int = 0
    auto: int = 0
    """Credit that the server keeps up by itself; 0 leaves it to the client."""
    batch: int = 1
    expiry_wanted: bool = False
    pull: bool = False
    """Ends with its first delivery; its leases outlive the connection."""
    ringed: bool = False
    """In its channel's ring of consumers that can take more."""
    ticket: int = 0
    """Number of its timer: that of its wait while it is a pull that waits, else that of its leases."""
    leases: dict[int, Record] = {}
    """By number, the oldest first. They end in this order, except those with timers of their own."""
    leases_end_us: int = 0
    """When the last of those ends."""

    @property
    def holder_name(self) -> str:
        """Who holds its leases, for people: the agent or token, which connection, and from where."""
        return self.link.name("pull" if self.pull else "link")
