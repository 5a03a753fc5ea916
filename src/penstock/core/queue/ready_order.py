"""The order of ready records, where it is more than a plain queue.

The policy of a channel chooses it: `SeqOrder` by number, `KeyedOrder` by partition key, `PriorityOrder` by priority; a plain
channel has a deque. Each order holds the ready records of one channel. `KeyedOrder` keeps "at most one record of a key is
leased, and the smallest number of a key goes first"; `PriorityOrder` keeps "the most urgent first, and no record starves".
No operation scans all records: each is O(1), O(log n) by number, and O(n of one key or level) out of order.
"""

from __future__ import annotations

from bisect import bisect
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate

from penstock.core.queue.policy import Policy
from penstock.core.records import Record

LEVELS = 10
"""Levels of urgency, 0 to 9; 9 is the most urgent."""
NORMAL = 5
"""The level of a record that asks for none."""
AGED_EVERY = 4
"""One of so many deliveries goes to a record that has waited too long; urgent work keeps three quarters."""


@dataclass(slots=True, eq=False)
class SeqOrder:
    """Ready records by `seq`, with the methods of a deque that a channel uses."""

    _heap: list[tuple[int, Record]] = field(default_factory=list)

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
        self.remove_all({record})

    def remove_all(self, records: set[Record]) -> None:
        self._heap = sorted(entry for entry in self._heap if entry[1] not in records)


def _number(record: Record) -> int:
    return record.seq


@dataclass(slots=True, eq=False)
class PartitionKey:
    """One partition key: its ready records by number, and how many others of it are out."""

    name: str | int | Record
    busy: int = 0
    """Records that are leased, or that were delivered and wait for their time: they block the key."""
    first: Record | None = None
    rest: deque[Record] | None = None
    """Made when a second one waits: a deque is large, and most keys have one."""

    def __len__(self) -> int:
        return (self.first is not None) + len(self.rest or ())

    def __iter__(self) -> Iterator[Record]:
        if self.first is not None:
            yield self.first
            yield from self.rest or ()

    def put(self, record: Record) -> None:
        first = self.first
        if first is None:
            self.first = record
            return
        if self.rest is None:
            self.rest = deque()
        rest = self.rest
        if record.seq < first.seq:
            self.first = record
            rest.appendleft(first)
        elif not rest or record.seq > rest[-1].seq:
            rest.append(record)
        else:  # it was scheduled, or its settle was refused
            rest.insert(bisect(rest, record.seq, key=_number), record)

    def take(self) -> Record:
        record = self.first
        assert record is not None
        self.first = self.rest.popleft() if self.rest else None
        return record

    def remove(self, record: Record) -> None:
        if record is self.first:
            self.take()
        else:
            assert self.rest is not None
            self.rest.remove(record)


@dataclass(slots=True, eq=False)
class LeasableKeys:
    """What may be leased now: the first record of each free key, next key first."""

    _order: KeyedOrder

    def __len__(self) -> int:
        return len(self._order.ring)

    def popleft(self) -> Record:
        return self._order.take()


@dataclass(slots=True, eq=False)
class KeyedOrder:
    """Ready records by partition key. A record without a key is a key of its own."""

    ring: OrderedDict[PartitionKey, None] = field(default_factory=OrderedDict)
    """Keys that have something waiting and nothing out, next one first."""
    _blocked: OrderedDict[PartitionKey, None] = field(default_factory=OrderedDict)
    """Keys that have something waiting and something out."""
    _keys: dict[str | int | Record, PartitionKey] = field(default_factory=dict)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        """What is next first: the heads of the free keys in turn, then what is behind them, then what is blocked."""
        for key in self.ring:
            assert key.first is not None
            yield key.first
        for key in self.ring:
            yield from key.rest or ()
        for key in self._blocked:
            yield from key

    @property
    def leasable(self) -> LeasableKeys:
        """What may be leased now."""
        return LeasableKeys(self)

    def expendable(self) -> Iterator[Record]:
        """In the order in which an overflowing channel gives them up."""
        return iter(self)

    @property
    def blocked(self) -> tuple[int, int]:
        """Records that wait for another of their key, and their keys. O(blocked keys)."""
        return sum(len(key) for key in self._blocked), len(self._blocked)

    def at(self, now_us: int) -> None:
        """Time means nothing to keys."""

    def put(self, record: Record, now_us: int, *, first: bool) -> None:
        """A record is ready: it waits in its key by number. With `first` its key is the next one."""
        key = self._key(record)
        key.put(record)
        self._count += 1
        if key.busy:
            self._blocked[key] = None
        elif first:
            self.ring[key] = None
            self.ring.move_to_end(key, last=False)
        else:
            self.ring.setdefault(key)

    def take(self) -> Record:
        """Lease out the next record: its key is blocked until it is back or gone."""
        key, _ = self.ring.popitem(last=False)
        record = key.take()
        key.busy += 1
        self._count -= 1
        if key.first is not None:
            self._blocked[key] = None
        return record

    def block(self, record: Record) -> None:
        """A record that was delivered waits for its time, and its key with it."""
        key = self._key(record)
        key.busy += 1
        if key in self.ring:
            del self.ring[key]
            self._blocked[key] = None

    def free(self, record: Record) -> None:
        """A record is out no longer: its lease or its wait is over."""
        key = self._keys[self._name(record)]
        key.busy -= 1
        if key.busy:
            return
        if key.first is None:
            del self._keys[key.name]
        else:
            del self._blocked[key]
            self.ring[key] = None

    def remove(self, record: Record) -> None:
        """A ready record leaves other than by a delivery."""
        key = self._keys[self._name(record)]
        key.remove(record)
        self._count -= 1
        if key.first is not None:
            return
        if key.busy:
            del self._blocked[key]
        else:
            del self.ring[key]
            del self._keys[key.name]

    def remove_all(self, records: set[Record]) -> None:
        """Ready records leave, in one pass over each of their keys."""
        for key in dict.fromkeys(self._keys[self._name(record)] for record in records):
            last, *others = (record for record in key if record in records)
            key.rest = deque(record for record in key.rest or () if record is last or record not in records)
            self._count -= len(others)
            self.remove(last)

    def clear(self) -> None:
        """Nothing waits any more; what is out stays out."""
        self.ring.clear()
        self._blocked.clear()
        self._count = 0
        for key in list(self._keys.values()):
            key.first = key.rest = None
            if not key.busy:
                del self._keys[key.name]

    def _key(self, record: Record) -> PartitionKey:
        name = self._name(record)
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = PartitionKey(name)
        return key

    def _name(self, record: Record) -> str | int | Record:
        return record if record.sort_key is None else record.sort_key


@dataclass(slots=True, eq=False)
class PriorityOrder:
    """Ready records by urgency. Every `AGED_EVERY`th delivery goes to the record that waited longest, if it waited too long."""

    max_wait_us: int
    by_number: bool
    """Whether a record that comes back goes to its index by number, or to the end of its level."""
    _levels: list[deque[tuple[int, Record]] | None] = field(default_factory=lambda: [None] * LEVELS)
    """Since when each record has waited, never less than for the one before it, and the record."""
    _count: int = 0
    _now_us: int = 0
    _since_look: int = 0

    @property
    def leasable(self) -> PriorityOrder:
        return self

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        """The most urgent first. Those that have waited too long come sooner than it says."""
        for level in reversed(self._levels):
            for _, record in level or ():
                yield record

    def expendable(self) -> Iterator[Record]:
        """In the order in which an overflowing channel gives them up: the least urgent first."""
        for level in self._levels:
            for _, record in level or ():
                yield record

    def at(self, now_us: int) -> None:
        """What time it is for the deliveries that follow."""
        self._now_us = now_us

    def put(self, record: Record, now_us: int, *, first: bool) -> None:
        """A record is ready, at its level: at its end, by number, or with `first` before all others."""
        level = self._level(record)
        if level is None:
            level = self._levels[_level_of(record)] = deque()
        self._count += 1
        if first and not self.by_number:
            index = 0
        elif self.by_number and level and record.seq < level[-1][1].seq:
            index = bisect(level, record.seq, key=lambda entry: entry[1].seq)
        else:
            level.append((now_us, record))
            return
        self._insert(level, index, record, now_us)

    def put_back(self, records: list[Record], now_us: int) -> None:
        """Records that were taken out are ready again, before those that came after them. O(their levels)."""
        self._count += len(records)
        for number in dict.fromkeys(map(_level_of, records)):
            since = {record: since_us for since_us, record in self._levels[number] or ()}
            line = merged(list(since), [record for record in records if _level_of(record) == number])[::-1]
            waits = accumulate((since.get(record, now_us) for record in line), min)  # as `_insert` keeps them
            self._levels[number] = deque(list(zip(waits, line, strict=True))[::-1])

    def _insert(self, level: deque[tuple[int, Record]], index: int, record: Record, now_us: int) -> None:
        # Waiting times never decrease along the level, or a record in front would hide older ones from `_aged`.
        since_us = min(now_us, level[index][0]) if level else now_us
        level.insert(index, (since_us, record))

    def popleft(self) -> Record:
        self._since_look += 1
        if self._since_look >= AGED_EVERY:
            self._since_look = 0
            level = self._aged()
            if level is not None:
                return self._take(level)
        for level in reversed(self._levels):
            if level:
                return self._take(level)
        raise IndexError("nothing waits")

    def _aged(self) -> deque[tuple[int, Record]] | None:
        """The level whose head has waited longest, if that is too long."""
        found = None
        oldest_us = self._now_us - self.max_wait_us
        for level in self._levels:
            if level and level[0][0] <= oldest_us:
                found, oldest_us = level, level[0][0] - 1
        return found

    def _take(self, level: deque[tuple[int, Record]]) -> Record:
        self._count -= 1
        return level.popleft()[1]

    def block(self, record: Record) -> None:
        """Records of a level do not block each other."""

    def free(self, record: Record) -> None:
        """Records of a level do not block each other."""

    def remove(self, record: Record) -> None:
        """A ready record leaves other than by a delivery."""
        level = self._level(record)
        assert level is not None
        index = next(n for n, entry in enumerate(level) if entry[1] is record)
        del level[index]
        self._count -= 1

    def remove_all(self, records: set[Record]) -> None:
        self._count -= len(records)
        for number in dict.fromkeys(map(_level_of, records)):
            self._levels[number] = deque(entry for entry in self._levels[number] or () if entry[1] not in records)

    def clear(self) -> None:
        self._levels = [None] * LEVELS
        self._count = 0

    def _level(self, record: Record) -> deque[tuple[int, Record]] | None:
        return self._levels[_level_of(record)]


def _level_of(record: Record) -> int:
    return record.sort_key if isinstance(record.sort_key, int) else NORMAL


ReadyOrder = KeyedOrder | PriorityOrder
"""An order that needs to know more of a record than when it came."""


def ready_order_for(policy: Policy) -> ReadyOrder | None:
    """The order that a policy asks for; None for a plain queue."""
    if policy.partitioned:
        return KeyedOrder()
    if policy.priority:
        return PriorityOrder(policy.priority_wait_us, by_number=policy.redelivery == "head")
    return None


def merged(line: list[Record], back: list[Record]) -> list[Record]:
    """A line with these records, each before the first one with a greater number. O(n)."""
    whole: list[Record] = []
    start = 0
    for record in sorted(back, key=_number):
        end = next((n for n in range(start, len(line)) if line[n].seq > record.seq), len(line))
        whole += [*line[start:end], record]
        start = end
    return whole + line[start:]
