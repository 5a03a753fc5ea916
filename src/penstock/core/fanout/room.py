"""Fan-out: a room of members, and lanes whose frames go to some of them or to all.

A lane has an owner, writers, and targets that never change; without targets it goes to everybody, its writer included. Frames are
forwarded as they came: nothing but the lane's id is read. Frames of one lane that follow one another are handed over as one piece,
made once however many receive it, so a burst costs a recipient one entry. Per sender nothing overtakes: a run ends as soon as
anything else is told. Cost of `publish`: O(1), and O(recipients) once a run; after somebody came or went also O(targets), once a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.core.fanout.outbox import Outbox

MARK = 35
"""The byte that a frame begins with, and that ends the lane's id: `#`."""
HEADS_MAX = 4_096
"""Sizes of frames whose beginnings on the wire are remembered."""
RUN_MAX = 64 * 1024
"""Bytes of frames that travel as one piece: what may be dropped is dropped in such pieces."""


class Member:
    """Somebody in a room, under a name; several may be the same party under names of their own."""

    __slots__ = ("name", "outbox", "party")

    def __init__(self, name: str, party: str, outbox: Outbox | None) -> None:
        self.name = name
        self.party = party
        """Who it is: targets may be given by either."""
        self.outbox = outbox
        """None for one that the journal serves."""


class Lane:
    """A stream of frames from its writers to its targets."""

    __slots__ = (
        "_audience",
        "_version",
        "base",
        "broadcast",
        "bytes",
        "counted",
        "deliveries",
        "dropped",
        "frames",
        "id",
        "is_kept",
        "keep",
        "key",
        "mark",
        "owner",
        "reach",
        "sheds",
        "targets",
        "writers",
    )

    def __init__(
        self, id_: str, owner: str, targets: tuple[str, ...] = (), *, keep: str = "counts", sheds: bool = True
    ) -> None:
        self.id = id_
        self.key = id_.encode()
        self.owner = owner
        self.writers: dict[str, None] = {owner: None}
        self.targets = targets
        """Who receives its frames; nobody named means everybody. Never changes."""
        self.keep = keep
        """What the journal keeps of its frames: `full`, `counts` or `off`."""
        self.is_kept = keep == "full"
        self.sheds = sheds
        """Whether a reader that is slow misses the oldest frames; otherwise it is let go."""
        self.mark = len(self.key) + 2
        """Where the data of a frame begins."""
        self.base = 0
        """The number of its newest frame when it was rebuilt from the journal."""
        self.frames = 0
        self.bytes = 0
        self.deliveries = 0
        """Frames times those who were to receive them."""
        self.broadcast = 0
        """What deliveries would have been without targets."""
        self.dropped = 0
        self.counted = (0, 0, 0, 0, 0)
        """The five counts above when they were last written down."""
        self.reach = 0
        """How many receive a frame, those included that the journal serves; as of its latest audience."""
        self._audience: tuple[Outbox, ...] = ()
        self._version = -1

    @property
    def seq(self) -> int:
        """The number of its newest frame."""
        return self.base + self.frames


class Tally:
    """What one lane did since the last look."""

    __slots__ = ("broadcast", "bytes", "deliveries", "dropped", "frames", "lane")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        before = lane.counted
        after = lane.counted = (lane.frames, lane.bytes, lane.deliveries, lane.broadcast, lane.dropped)
        self.frames, self.bytes, self.deliveries, self.broadcast, self.dropped = (
            now - then for now, then in zip(after, before, strict=True)
        )


Head = Callable[[int], bytes]
"""How a frame of so many bytes begins on the wire."""
Keep = Callable[[Lane, str, bytes, int, int], None]
"""Called with each frame of a lane that is kept in full: the lane, the writer, the data, its number, how many receive it."""


class Room:
    """Members and lanes. Nothing is shared with another room."""

    def __init__(self, head: Head, keep: Keep) -> None:
        self._head = head
        self._heads: dict[int, bytes] = {}
        """Of the sizes that came lately: frames of a stream are mostly alike."""
        self._keep = keep
        self.members: dict[str, Member] = {}
        self._parties: dict[str, dict[str, Member]] = {}
        """The same by who they are, then by name."""
        self.lanes: dict[bytes, Lane] = {}
        self.touched: dict[Outbox, None] = {}
        """Outboxes that were given something."""
        self.active: dict[Lane, None] = {}
        """Lanes with frames that were not counted yet."""
        self.past = {"frames": 0, "bytes": 0, "deliveries": 0, "broadcast": 0, "dropped": 0}
        """What lanes did that are closed."""
        self._version = 0
        """Grows with every change of who is there."""
        self._everybody: tuple[Outbox, ...] | None = None
        """Where a lane without targets goes, until somebody comes or goes."""
        self._lane: Lane | None = None
        self._run: list[bytes] = []
        self._size = 0

    def enter(self, member: Member) -> None:
        """Somebody is there, perhaps in the place of somebody of the same name."""
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

    def open(self, lane: Lane) -> None:
        self.lanes[lane.key] = lane

    def close(self, lane: Lane) -> None:
        self.flush()
        if self.lanes.pop(lane.key, None) is not None:
            for name in self.past:
                self.past[name] += getattr(lane, name)

    def lane(self, id_: str) -> Lane | None:
        return self.lanes.get(id_.encode())

    def publish(self, writer: str, data: bytes, end: int) -> bool:
        """Forward a frame whose lane's id ends at `end`; False when the lane is not there, or not this writer's."""
        lane = self.lanes.get(data[1:end])
        if lane is None or writer not in lane.writers:
            return False
        if lane is not self._lane:
            if self._lane is not None:
                self.flush()
            self._lane = lane
            self.active[lane] = None
        size = len(data)
        head = self._heads.get(size)
        run = self._run
        run.append(head if head is not None else self._new_head(size))
        run.append(data)
        self._size = total = self._size + size
        if lane.is_kept:
            self.audience(lane)
            self._keep(lane, writer, data[lane.mark :], lane.seq + len(run) // 2, lane.reach)
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
        lane = self._lane
        if lane is None:
            return
        run = self._run
        piece = b"".join(run)
        count = len(run) // 2
        lane.frames += count
        lane.bytes += self._size - count * lane.mark
        self._lane = None
        self._run = []
        self._size = 0
        touched = self.touched
        for outbox in self.audience(lane):
            outbox.put(piece, lane, count)
            touched[outbox] = None
        lane.deliveries += count * lane.reach
        lane.broadcast += count * len(self.members)

    def tell(self, data: bytes, but: str | None = None) -> None:
        """Give everybody a message, behind every frame that came before it."""
        self.flush()
        touched = self.touched
        for name, member in self.members.items():
            if member.outbox is not None and name != but:
                member.outbox.put(data)
                touched[member.outbox] = None

    def tell_one(self, outbox: Outbox, data: bytes) -> None:
        """Give one member a message, behind every frame that came before it."""
        self.flush()
        outbox.put(data)
        self.touched[outbox] = None

    def audience(self, lane: Lane) -> tuple[Outbox, ...]:
        """Where a lane's frames go now, each place once."""
        if lane._version != self._version:
            lane._version = self._version
            if lane.targets:
                members = self.receivers(lane)
                count, lane._audience = len(members), _outboxes(members)
            else:
                if self._everybody is None:
                    self._everybody = _outboxes(self.members.values())
                count, lane._audience = len(self.members), self._everybody
            # The journal serves those without an outbox, where it keeps the frames.
            lane.reach = count if lane.is_kept else len(lane._audience)
        return lane._audience

    def receivers(self, lane: Lane) -> list[Member]:
        """Who receives a lane's frames now."""
        if not lane.targets:
            return list(self.members.values())
        found: dict[str, Member] = {}
        for target in lane.targets:
            if target in self.members:
                found[target] = self.members[target]
            found.update(self._parties.get(target, {}))
        return list(found.values())

    def counts(self) -> dict[str, int]:
        """What all lanes did, open and closed ones, since the start."""
        self.flush()
        lanes = self.lanes.values()
        return {name: past + sum(getattr(lane, name) for lane in lanes) for name, past in self.past.items()}

    def take_tallies(self) -> list[Tally]:
        """What lanes did since the last call, those that did nothing left out."""
        self.flush()
        active, self.active = self.active, {}
        return [Tally(lane) for lane in active]


def _outboxes(members: Iterable[Member]) -> tuple[Outbox, ...]:
    return tuple(member.outbox for member in members if member.outbox is not None)
