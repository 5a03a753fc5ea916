"""A channel: an ordered, bounded, addressable sequence of records, and what it remembers of past ones.

Owns the order of ready records, the ids it has seen, and the counts of invariant 2. Knows no links' bytes, no
timers and no journal: the machine in `queue.py` tells it what happens. Each operation is O(1), in `head` order
O(log n).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from zlib import crc32

import msgspec

from penstock.core.counters import Counters, Latencies, Rate
from penstock.core.links import Consumer
from penstock.core.policy import Policy
from penstock.core.records import DELAYED, GONE, HELD, READY, Record


class Seen(msgspec.Struct, gc=False, eq=False):
    """What is remembered of a settled record."""

    seq: int
    check: int
    settled_us: int
    outcome: str
    batch: int
    """The commit of its settle: who asks earlier waits for it."""


class HeadFirst:
    """Ready records by `seq`, with the methods of a deque that a channel uses."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, Record]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Record]:
        return (record for _, record in sorted(self._heap, key=lambda entry: entry[0]))

    def append(self, record: Record) -> None:
        heappush(self._heap, (record.seq, record))

    appendleft = append

    def clear(self) -> None:
        self._heap.clear()

    def popleft(self) -> Record:
        return heappop(self._heap)[1]

    def remove(self, record: Record) -> None:
        rest = [entry for entry in self._heap if entry[1] is not record]
        rest.sort()
        self._heap[:] = rest


def _line(policy: Policy) -> deque[Record] | HeadFirst:
    return deque() if policy.redelivery == "tail" else HeadFirst()


class Channel:
    """One queue."""

    __slots__ = (
        "bytes",
        "consumers",
        "counters",
        "delayed",
        "gauged",
        "held",
        "last_wall_us",
        "latencies",
        "leased",
        "live",
        "name",
        "order",
        "policy",
        "rate_in",
        "rate_out",
        "ready",
        "ring",
        "seq",
        "settled",
        "ticket",
        "touched_us",
        "wants_gauge",
    )

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self.seq = 0
        self.live: dict[str, Record] = {}
        """Every record not settled, by id: pending, ready, leased, delayed, held."""
        self.bytes = 0
        self.ready: deque[Record] | HeadFirst = _line(policy)
        self.leased = 0
        self.delayed = 0
        self.held = 0
        self.settled: dict[str, Seen] = {}
        self.order: deque[str] = deque()
        """Settled ids, oldest first; beside the dict because a dict is slow at losing its first key."""
        self.consumers: dict[int, Consumer] = {}
        self.ring: deque[Consumer] = deque()
        """Consumers that can take a record now, next one first."""
        self.counters = Counters()
        self.rate_in = Rate()
        self.rate_out = Rate()
        self.latencies = Latencies()
        self.last_wall_us = 0
        self.touched_us = 0
        self.ticket = 0
        self.gauged = Counters()
        """Its counters when its last gauge was written: the next one says what changed since."""
        self.wants_gauge = False
        """Whether a gauge is due even if nothing changed: where it stands may not be what its last one said."""

    @property
    def balance(self) -> int:
        """Zero, always: invariant 2."""
        here = len(self.ready) + self.leased + self.delayed + self.held
        return self.counters.in_ - self.counters.settled - here

    @property
    def is_idle(self) -> bool:
        return not self.live and not self.consumers

    def adopt(self, policy: Policy) -> None:
        """Go on with another policy; what is ready keeps its place, or goes by its number where that is the new order."""
        if policy.redelivery != self.policy.redelivery:
            waiting = list(self.ready)
            self.ready = _line(policy)
            for record in waiting:
                self.ready.append(record)
        self.policy = policy

    def leave(self, record: Record) -> None:
        """Take a record out of the count of its state; the caller gives it another."""
        match record.state:
            case 1:  # READY
                self.ready.remove(record)
            case 2:  # LEASED
                self.leased -= 1
            case 3:  # DELAYED
                self.delayed -= 1
            case 4:  # HELD
                self.held -= 1
            case _:
                return

    def make_ready(self, record: Record, *, first: bool = False) -> None:
        record.state = READY
        if first:
            self.ready.appendleft(record)
        else:
            self.ready.append(record)

    def put_back(self, record: Record, place: int) -> None:
        """Make ready again what had been taken from this place in the line."""
        record.state = READY
        if isinstance(self.ready, HeadFirst):
            self.ready.append(record)
        else:
            self.ready.insert(place, record)

    def make_delayed(self, record: Record) -> None:
        record.state = DELAYED
        self.delayed += 1

    def make_held(self, record: Record) -> None:
        record.state = HELD
        self.held += 1

    def forget(self, record: Record) -> None:
        """A record that never was: its commit was refused."""
        record.state = GONE
        del self.live[record.id]
        self.bytes -= len(record.body)

    def remember(self, record: Record, outcome: str, now_us: int, batch: int, decided: int) -> int:
        """A record is settled: keep its id for the window. Returns how many ids the channel holds more."""
        self.mark_settled(record, outcome, now_us, batch)
        return 1 - self.trim(now_us, decided)

    def mark_settled(self, record: Record, outcome: str, now_us: int, batch: int) -> None:
        """`remember` for one of many: the caller trims the window once for all of them."""
        record.state = GONE
        record.ticket = 0
        record.holder = record.lapsed = None
        del self.live[record.id]
        self.bytes -= len(record.body)
        check = crc32(record.body) if record.check is None else record.check
        self.settled[record.id] = Seen(record.seq, check, now_us, outcome, batch)
        self.order.append(record.id)

    def is_decided(self, decided: int) -> bool:
        """Whether the journal has answered for every settle here."""
        return not self.order or self.settled[self.order[-1]].batch <= decided

    def trim(self, now_us: int, decided: int, keep: int | None = None) -> int:
        """Forget settled ids beyond the window's count and age. Returns how many.

        A settle that may still be refused is kept: its id must not come in again meanwhile.
        """
        order = self.order
        settled = self.settled
        limit = self.policy.dedup_count if keep is None else keep
        oldest_us = now_us - self.policy.dedup_us
        gone = 0
        while order:
            seen = settled[order[0]]
            if seen.batch > decided or (len(order) <= limit and seen.settled_us > oldest_us):
                break
            del settled[order.popleft()]
            gone += 1
        return gone

    def unsettle(self, id_: str) -> None:
        """Forget a settled id before its time, so that it may come in again. O(window), and rare."""
        del self.settled[id_]
        self.order.remove(id_)

    def recall(self, record: Record) -> None:
        """Undo `remember`, when the journal refused the settle."""
        if record.id in self.settled:
            self.unsettle(record.id)
        self.live[record.id] = record
        self.bytes += len(record.body)
