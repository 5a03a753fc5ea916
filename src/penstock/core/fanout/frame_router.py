"""The frame router of a space: members, and routes whose frames go to some of them or to all.

A route has an owner, writers, and fixed targets; without targets it goes to all members, its writer included. Frames pass unchanged:
only the route's id is read. Consecutive frames of one route are handed over as one piece, made once for all recipients. A run ends
when any other message is sent, so nothing overtakes. Cost of `publish`: O(1), O(recipients) per run, O(targets) after a member change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from penstock.core.fanout.outbox import Outbox

MARK = 35
"""The byte that a frame begins with, and that ends the route's id: `#`."""
HEADS_MAX = 4_096
"""Sizes of frames whose beginnings on the wire are remembered."""
RUN_MAX = 64 * 1024
"""Bytes of frames that travel as one piece: what may be dropped is dropped in such pieces."""


@dataclass(slots=True, eq=False)
class Member:
    """A member of the space, under a name; several members may be one party."""

    name: str
    party: str
    """Who it is: targets may be given by either."""
    outbox: Outbox | None
    """None for one that the journal serves."""


@dataclass(slots=True, eq=False)
class FrameRoute:
    """A stream of frames from its writers to its targets."""

    id: str
    owner: str
    targets: tuple[str, ...] = ()
    """Who receives its frames; empty means all members. Never changes."""
    keep: str = "counts"
    """What the journal keeps of its frames: `full`, `counts` or `off`."""
    overflow: Literal["drop-oldest", "wait", "disconnect"] = "drop-oldest"
    writers: dict[str, None] = field(init=False)
    key: bytes = field(init=False)
    mark: int = field(init=False)
    """Where the data of a frame begins."""
    is_kept: bool = field(init=False)
    sheds: bool = field(init=False)
    """Whether a slow reader misses the oldest frames."""
    waits: bool = field(init=False)
    """Whether its writers wait for a slow reader; if neither, that reader is disconnected."""
    full: dict[Outbox, None] = field(default_factory=dict)
    """Outboxes of readers that are too far behind."""
    removed: dict[Member, None] = field(default_factory=dict)
    """Members that receive no more of its frames, while they stay."""
    base: int = 0
    """The number of its newest frame when it was rebuilt from the journal."""
    frames: int = 0
    bytes: int = 0
    deliveries: int = 0
    """Frames times those who were to receive them."""
    broadcast: int = 0
    """What deliveries would have been without targets."""
    dropped: int = 0
    counted: tuple[int, ...] = (0, 0, 0, 0, 0)
    """The five counts above when they were last written down."""
    reach: int = 0
    """How many receive a frame, those included that the journal serves; as of its latest audience."""
    _audience: tuple[Outbox, ...] = ()
    _version: int = -1

    def __post_init__(self) -> None:
        self.writers = {self.owner: None}
        self.key = self.id.encode()
        self.mark = len(self.key) + 2
        self.is_kept = self.keep == "full"
        self.sheds = self.overflow == "drop-oldest"
        self.waits = self.overflow == "wait"

    @property
    def seq(self) -> int:
        """The number of its newest frame."""
        return self.base + self.frames


class Tally:
    """What one route did since the last look."""

    __slots__ = ("broadcast", "bytes", "deliveries", "dropped", "frames", "route")

    def __init__(self, route: FrameRoute) -> None:
        self.route = route
        before = route.counted
        after = route.counted = (route.frames, route.bytes, route.deliveries, route.broadcast, route.dropped)
        self.frames, self.bytes, self.deliveries, self.broadcast, self.dropped = (
            now - then for now, then in zip(after, before, strict=True)
        )


Head = Callable[[int], bytes]
"""How a frame of so many bytes begins on the wire."""
Keep = Callable[[FrameRoute, str, bytes, int, int], None]
"""Called with each frame of a route that is kept in full: the route, the writer, the data, its number, how many receive it."""


class FrameRouter:
    """The members and routes of one space."""

    def __init__(self, head: Head, keep: Keep) -> None:
        self._head = head
        self._heads: dict[int, bytes] = {}
        """Of the sizes that came lately: frames of a stream are mostly alike."""
        self._keep = keep
        self.members: dict[str, Member] = {}
        self._parties: dict[str, dict[str, Member]] = {}
        """The same by who they are, then by name."""
        self.routes: dict[bytes, FrameRoute] = {}
        self.touched: dict[Outbox, None] = {}
        """Outboxes that were given something."""
        self.active: dict[FrameRoute, None] = {}
        """Lanes with frames that were not counted yet."""
        self.past = {"frames": 0, "bytes": 0, "deliveries": 0, "broadcast": 0, "dropped": 0}
        """What routes did that are closed."""
        self.blocked: dict[FrameRoute, None] = {}
        """Routes with a reader that is too far behind; the runtime empties it."""
        self._version = 0
        """Grows with every change of who is there."""
        self._everybody: tuple[Outbox, ...] | None = None
        """Audience of a route without targets, until a member comes or leaves."""
        self._route: FrameRoute | None = None
        self._run: list[bytes] = []
        self._size = 0

    def enter(self, member: Member) -> None:
        """Add a member; it replaces one of the same name."""
        self.flush()
        self._forget(member.name)
        self.members[member.name] = member
        self._parties.setdefault(member.party, {})[member.name] = member

    def leave(self, name: str) -> None:
        self.flush()
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._version += 1
        self._everybody = None
        gone = self.members.pop(name, None)
        if gone is not None:
            same = self._parties[gone.party]
            del same[name]
            if not same:
                del self._parties[gone.party]

    def is_there(self, name: str) -> bool:
        """Whether a target of this name would receive anything."""
        return name in self.members or name in self._parties

    def open(self, route: FrameRoute) -> None:
        self.routes[route.key] = route

    def close(self, route: FrameRoute) -> None:
        self.flush()
        if self.routes.pop(route.key, None) is not None:
            for name in self.past:
                self.past[name] += getattr(route, name)

    def route(self, id_: str) -> FrameRoute | None:
        return self.routes.get(id_.encode())

    def publish(self, writer: str, data: bytes, end: int) -> bool:
        """Forward a frame whose route's id ends at `end`; False when the route is not there, or not this writer's."""
        route = self.routes.get(data[1:end])
        if route is None or writer not in route.writers:
            return False
        if route is not self._route:
            if self._route is not None:
                self.flush()
            self._route = route
            self.active[route] = None
        size = len(data)
        head = self._heads.get(size)
        run = self._run
        run.append(head if head is not None else self._new_head(size))
        run.append(data)
        self._size = total = self._size + size
        if route.is_kept:
            self.audience(route)
            self._keep(route, writer, data[route.mark :], route.seq + len(run) // 2, route.reach)
        if total > RUN_MAX:
            self.flush()
        return True

    def _new_head(self, size: int) -> bytes:
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        head = self._heads[size] = self._head(size)
        return head

    def flush(self) -> None:
        """Hand the frames of the current run over: one piece, made once."""
        route = self._route
        if route is None:
            return
        run = self._run
        piece = b"".join(run)
        count = len(run) // 2
        route.frames += count
        route.bytes += self._size - count * route.mark
        self._route = None
        self._run = []
        self._size = 0
        touched = self.touched
        for outbox in self.audience(route):
            outbox.put(piece, route, count)
            touched[outbox] = None
        if route.full:
            self.blocked[route] = None
        route.deliveries += count * route.reach
        route.broadcast += count * len(self.members)

    def broadcast(self, data: bytes, but: str | None = None) -> None:
        """Send a message to all members, after the frames before it."""
        self.flush()
        touched = self.touched
        for name, member in self.members.items():
            if member.outbox is not None and name != but:
                member.outbox.put(data)
                touched[member.outbox] = None

    def send(self, outbox: Outbox, data: bytes) -> None:
        """Send a message to one member, after the frames before it."""
        self.flush()
        outbox.put(data)
        self.touched[outbox] = None

    def audience(self, route: FrameRoute) -> tuple[Outbox, ...]:
        """Where a route's frames go now, each place once."""
        if route._version != self._version:
            route._version = self._version
            if route.targets or route.removed:
                members = self.receivers(route)
                count, route._audience = len(members), _outboxes(members)
            else:
                if self._everybody is None:
                    self._everybody = _outboxes(self.members.values())
                count, route._audience = len(self.members), self._everybody
            # The journal serves those without an outbox, where it keeps the frames.
            route.reach = count if route.is_kept else len(route._audience)
        return route._audience

    def receivers(self, route: FrameRoute) -> list[Member]:
        """Who receives a route's frames now."""
        found: dict[str, Member] = {} if route.targets else self.members
        for target in route.targets:
            if target in self.members:
                found[target] = self.members[target]
            found.update(self._parties.get(target, {}))
        return [member for member in found.values() if member not in route.removed]

    def remove(self, route: FrameRoute, member: Member) -> int:
        """Send a member no more frames of a route; returns how many that waited are dropped."""
        self.flush()
        route.removed = {each: None for each in route.removed if self.members.get(each.name) is each}
        route.removed[member] = None
        route._version = -1
        return 0 if member.outbox is None else member.outbox.withdraw(route)

    def counts(self) -> dict[str, int]:
        """What all routes did, open and closed ones, since the start."""
        self.flush()
        routes = self.routes.values()
        return {name: past + sum(getattr(route, name) for route in routes) for name, past in self.past.items()}

    def note_dropped(self, route: FrameRoute) -> None:
        """Frames of a route were dropped, perhaps to make room for those of another one: count them."""
        if self.routes.get(route.key) is route:
            self.active[route] = None

    def take_tallies(self) -> list[Tally]:
        """What routes did since the last call, those that did nothing left out."""
        self.flush()
        active, self.active = self.active, {}
        return [Tally(route) for route in active]


def _outboxes(members: Iterable[Member]) -> tuple[Outbox, ...]:
    return tuple(member.outbox for member in members if member.outbox is not None)
