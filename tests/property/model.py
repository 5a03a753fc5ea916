"""A queue of dictionaries that the stateful test compares the machine with.

It identifies records by channel and number, and knows whether each is pending, present or gone, and who may settle it. It has no order,
no time and no bounds: those are checked as invariants.
"""

from dataclasses import dataclass, field

Place = tuple[str, int]


@dataclass
class Kept:
    """One record as the model sees it."""

    id: str
    body: bytes
    batch: int
    holder: int | None = None
    """The consumer that it was last delivered to and that has not lost it."""


@dataclass
class Model:
    """Every record that was ever admitted."""

    pending: dict[Place, Kept] = field(default_factory=dict)
    live: dict[Place, Kept] = field(default_factory=dict)
    durable: set[Place] = field(default_factory=set)
    """Admitted and committed: what a restart must bring back unless a durable settle took it away."""
    settling: dict[int, list[Place]] = field(default_factory=dict)
    """Settles by the batch that makes them durable."""
    settled: set[Place] = field(default_factory=set)
    """Settled durably: never to be seen again."""

    def admit(self, place: Place, id_: str, body: bytes, batch: int) -> None:
        self.pending[place] = Kept(id_, body, batch)

    def settle(self, place: Place, batch: int) -> None:
        self.settling.setdefault(batch, []).append(place)

    def commit(self, batch: int, *, fresh: bool) -> list[Place]:
        """A batch is durable; without `fresh`, its new records are not. Returns what became visible."""
        mine = [place for place, kept in self.pending.items() if kept.batch == batch]
        seen = []
        for place in mine:
            kept = self.pending.pop(place)
            if fresh:
                self.live[place] = kept
                self.durable.add(place)
                seen.append(place)
        for place in self.settling.pop(batch, []):
            self.live.pop(place, None)
            self.settled.add(place)
        return seen

    def refuse(self, batch: int) -> None:
        """Nothing of a batch is durable: its records never were, and what it settled is still there."""
        for place in [place for place, kept in self.pending.items() if kept.batch == batch]:
            del self.pending[place]
        self.settling.pop(batch, None)

    def is_settled(self, place: Place) -> bool:
        return place in self.settled or any(place in places for places in self.settling.values())

    def restart(self) -> None:
        """Only durable records remain, without a holder."""
        self.pending.clear()
        self.settling.clear()
        for kept in self.live.values():
            kept.holder = None
