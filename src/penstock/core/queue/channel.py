"""A channel: an ordered, bounded, addressable sequence of records, and what it remembers of past ones.

Owns the order of ready records, the ids it has seen, and the counts of invariant 2. Knows no links' bytes, no timers and no journal.
Each operation is O(1), in `head` order O(log n); `ready_order.py` has the cost of other orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from zlib import crc32

import msgspec

from penstock.core.links import Consumer
from penstock.core.queue.counters import Counters, Latencies, MinuteRate
from penstock.core.queue.policy import Policy
from penstock.core.queue.ready_order import (
    KeyedOrder,
    LeasableKeys,
    PriorityOrder,
    ReadyOrder,
    SeqOrder,
    merged,
    ready_order_for,
)
from penstock.core.records import DELAYED, GONE, HELD, LEASED, READY, Record, plain_stores
from penstock.core.tenants import Holding

NO_IDS: deque[str] = deque(maxlen=0)
NO_CONSUMERS: deque[Consumer] = deque(maxlen=0)
UNCOUNTED = Counters()
"""What a quiet channel has in place of its own: a deque alone would be a quarter of what it weighs. Never changed."""


class Seen(msgspec.Struct, gc=False, eq=False):
    """What is remembered of a settled record."""

    seq: int
    check: int
    settled_us: int
    outcome: str
    batch: int
    """The commit of its settle: who asks earlier waits for it."""


@plain_stores
class Channel(msgspec.Struct, gc=False, eq=False):
    """One queue. Not tracked by the garbage collector: leaving consumers break its only cycle."""

    name: str
    policy: Policy
    seq: int = 0
    live: dict[str, Record] = {}
    """Every record not settled, by id: pending, ready, leased, delayed, held."""
    bytes: int = 0
    ready_order: ReadyOrder | None = None
    """The order of its ready records, where that is more than a plain queue's."""
    ready: deque[Record] | SeqOrder | ReadyOrder = None  # type: ignore[assignment]  # set below
    leasable: deque[Record] | SeqOrder | LeasableKeys | PriorityOrder = None  # type: ignore[assignment]  # set below
    """Those ready records that may be leased now, next one first."""
    leased: int = 0
    delayed: int = 0
    held: int = 0
    doomed: int = 0
    """Held records that were ready and that a purge will drop: they count as ready until it drops all of them."""
    settled: dict[str, Seen] = {}
    order: deque[str] = msgspec.field(default_factory=lambda: NO_IDS)
    """Settled ids, oldest first; kept apart from the dict because deleting the first key of a dict is slow."""
    consumers: dict[int, Consumer] = {}
    ring: deque[Consumer] = msgspec.field(default_factory=lambda: NO_CONSUMERS)
    """Consumers that can take a record now, next one first."""
    counters: Counters = msgspec.field(default_factory=Counters)
    rate_in: MinuteRate = msgspec.field(default_factory=MinuteRate)
    rate_out: MinuteRate = msgspec.field(default_factory=MinuteRate)
    latencies: Latencies = msgspec.field(default_factory=Latencies)
    last_wall_us: int = 0
    touched_us: int = 0
    ticket: int = 0
    gauged: Counters = msgspec.field(default_factory=lambda: UNCOUNTED)
    """Its counters when its last gauge was written: the next one says what changed since."""
    holding: Holding | None = None
    """What its tenant holds, when it has one."""
    own: Counters | None = None
    """Counts since the last gauge of what the pipeline sent here; None if that is nothing."""
    wants_gauge: bool = False
    """Whether a gauge is due even if nothing changed: where it stands may not be what its last one said."""

    def __post_init__(self) -> None:
        self.ready_order = ready_order_for(self.policy)
        if self.ready_order is None:
            plain: deque[Record] | SeqOrder = deque() if self.policy.redelivery == "tail" else SeqOrder()
            self.ready = self.leasable = plain
        else:
            self.ready, self.leasable = self.ready_order, self.ready_order.leasable

    @property
    def balance(self) -> int:
        """Zero, always: invariant 2."""
        here = len(self.ready) + self.leased + self.delayed + self.held
        return self.counters.in_ - self.counters.settled - here

    def count_own(self) -> Counters:
        """The counts of what the pipeline sent here."""
        self.own = self.own or Counters()
        return self.own

    @property
    def depth(self) -> int:
        """Ready records, as figures show them."""
        return len(self.ready) + self.doomed

    @property
    def postponed(self) -> int:
        """Delayed and held records, as figures show them."""
        return self.delayed + self.held - self.doomed

    @property
    def is_idle(self) -> bool:
        return not self.live and not self.consumers

    def adopt(self, policy: Policy) -> None:
        """Adopt another policy. Ready records keep their place, or sort by number; keys and levels apply once the channel is empty."""
        if self.live and (self.ready_order is not None or policy.partitioned or policy.priority):
            before = self.policy
            policy = msgspec.structs.replace(
                policy,
                partitioned=before.partitioned,
                priority=before.priority,
                priority_wait_us=before.priority_wait_us,
                redelivery=before.redelivery if self.ready_order is not None else policy.redelivery,
            )
        is_other = policy.redelivery != self.policy.redelivery
        is_other |= (policy.partitioned, policy.priority) != (self.policy.partitioned, self.policy.priority)
        self.policy = policy
        if is_other:
            waiting = list(self.ready)
            self.__post_init__()
            for record in waiting:
                assert isinstance(self.ready, deque | SeqOrder)
                self.ready.append(record)

    def leave(self, record: Record) -> None:
        """Take a record out of the count of its state; the caller gives it another."""
        if record.state == READY:
            self.ready.remove(record)
        elif record.state == LEASED:
            self.leased -= 1
            if self.ready_order is not None:
                self.ready_order.free(record)
        elif record.state == DELAYED:
            self.undelay(record)
        elif record.state == HELD:
            self.held -= 1

    def make_ready(self, record: Record, now_us: int, *, first: bool = False) -> None:
        record.state = READY
        ready = self.ready
        if not isinstance(ready, deque | SeqOrder):
            ready.put(record, now_us, first=first)
        elif first:
            ready.appendleft(record)
        else:
            ready.append(record)

    def take_out(self, count: int) -> list[Record]:
        """Take the next ready records out, other than by deliveries. O(1) a record, by number O(log n)."""
        if isinstance(self.ready, KeyedOrder | PriorityOrder):
            taken = list(islice(self.ready, count))
            for record in taken:
                self.ready.remove(record)
            return taken
        return [self.ready.popleft() for _ in range(min(count, len(self.ready)))]

    def take_chosen(self, records: set[Record]) -> None:
        """Take these ready records out, wherever they wait, in one pass."""
        if isinstance(self.ready, deque):
            self._line_up([record for record in self.ready if record not in records])
        else:
            self.ready.remove_all(records)

    def put_back(self, records: list[Record], now_us: int, *, is_chosen: bool) -> None:
        """Make ready again what was taken from the front, or, chosen, from before records with a greater number; in one pass."""
        for record in records:
            record.state = READY
        if isinstance(self.ready, deque):
            self._line_up(merged(list(self.ready), records) if is_chosen else [*records, *self.ready])
        elif isinstance(self.ready, PriorityOrder):
            self.ready.put_back(records, now_us)
        else:
            for record in records:
                self.make_ready(record, now_us)

    def _line_up(self, line: list[Record]) -> None:
        self.ready.clear()
        self.ready.extend(line)  # type: ignore[union-attr]  # a deque

    def make_delayed(self, record: Record) -> None:
        """A record waits for its time. One that was delivered before keeps others of its key waiting too."""
        record.state = DELAYED
        self.delayed += 1
        if self.ready_order is not None and record.attempt:
            self.ready_order.block(record)

    def undelay(self, record: Record) -> None:
        """Its wait is over; the caller gives it another state."""
        self.delayed -= 1
        if self.ready_order is not None and record.attempt:
            self.ready_order.free(record)

    def make_held(self, record: Record) -> None:
        record.state = HELD
        self.held += 1

    def forget(self, record: Record) -> None:
        """A record that never was: its commit was refused."""
        record.state = GONE
        del self.live[record.id]
        self.bytes -= len(record.body)

    def remember(self, records: Iterable[Record], outcome: str, now_us: int, batch: int) -> int:
        """Records are settled: keep their ids for the window, which the caller trims. Returns their bytes."""
        if self.order is NO_IDS:
            self.order = deque()
        live, settled, note = self.live, self.settled, self.order.append
        size = 0
        for record in records:
            id_, body, check = record.id, record.body, record.check
            record.state = GONE
            record.ticket = 0
            record.holder = record.lapsed = None
            del live[id_]
            settled[id_] = Seen(record.seq, crc32(body) if check is None else check, now_us, outcome, batch)
            note(id_)
            size += len(body)
        self.bytes -= size
        return size

    def is_decided(self, decided: int) -> bool:
        """Whether the journal has answered for every settle here."""
        return not self.order or self.settled[self.order[-1]].batch <= decided

    def trim(self, now_us: int, decided: int, keep: int | None = None) -> int:
        """Forget settled ids beyond the window, except settles that may still be refused. Returns how many."""
        order = self.order
        settled = self.settled
        limit = self.policy.dedup_count if keep is None else keep
        oldest_us = now_us - self.policy.dedup_us
        gone, too_many = 0, len(order) - limit
        while order:
            id_ = order[0]
            seen = settled[id_]
            if seen.batch > decided or (gone >= too_many and seen.settled_us > oldest_us):
                break
            del settled[id_]
            order.popleft()
            gone += 1
        return gone

    def unsettle(self, id_: str) -> None:
        """Forget a settled id before its time, so that it may come in again. O(window), and rare."""
        del self.settled[id_]
        self.order.remove(id_)

    def resettle(self, id_: str, seen: Seen) -> None:
        """Undo `unsettle`: the id did not come in again after all. O(window), and rare."""
        settled, order = self.settled, self.order
        place = next((n for n, other in enumerate(order) if settled[other].settled_us > seen.settled_us), len(order))
        settled[id_] = seen
        if order is NO_IDS:
            self.order = deque((id_,))
        else:
            order.insert(place, id_)
        if place < len(self.order) - 1:  # both in the same order
            self.settled = {known: settled[known] for known in self.order}

    def recall(self, record: Record) -> None:
        """Undo `remember`, when the journal refused the settle."""
        if record.id in self.settled:
            self.unsettle(record.id)
        self.live[record.id] = record
        self.bytes += len(record.body)
