"""What happened in a channel, in numbers of fixed size: counts, rates and latencies.

Invariant 2: `in_ = ack + dead + drop + purged + moved + ready + leased + delayed`, at any instant.
"""

from __future__ import annotations

from operator import add

import msgspec

from penstock.core.records import plain_stores

RATE_WINDOW_S = 10
"""Seconds a rate looks back."""
SECOND_US = 1_000_000
LATENCY_HALF_US = 30 * SECOND_US
"""A latency percentile covers the current half window and the one before it."""
_SUB_BITS = 3
_BUCKETS = 36 << _SUB_BITS


@plain_stores
class Counters(msgspec.Struct, gc=False):
    """Totals since the channel began, restarts included."""

    in_: int = msgspec.field(default=0, name="in")
    out: int = 0
    re: int = 0
    ack: int = 0
    nack: int = 0
    release: int = 0
    timeout: int = 0
    dup: int = 0
    drop: int = 0
    dead: int = 0
    purged: int = 0
    moved: int = 0
    reject: int = 0

    @property
    def changes(self) -> int:
        """Grows with everything that happens; equal means that nothing did."""
        return sum(getattr(self, name) for name in self.__struct_fields__)

    def add(self, other: Counters, sign: int = 1) -> None:
        """Count in, or with -1 out, what another has counted."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))

    @property
    def settled(self) -> int:
        return self.ack + self.dead + self.drop + self.purged + self.moved


_NEVER: list[int] = []
"""The counts of a rate that nothing was ever added to."""


@plain_stores
class MinuteRate(msgspec.Struct, gc=False, eq=False):
    """Events a second over the last `RATE_WINDOW_S` seconds, in one list of fixed length."""

    _counts: list[int] = msgspec.field(default_factory=lambda: _NEVER)
    # Made when first needed: most channels of a large server are quiet.
    _second: int = -1

    def add(self, now_us: int, n: int) -> None:
        second = now_us // SECOND_US
        if second != self._second:
            self._roll(second)
        self._counts[second % (RATE_WINDOW_S + 1)] += n

    def per_second(self, now_us: int) -> float:
        """The mean over the whole window; the running second is left out because it is not over."""
        if not self._counts:
            return 0.0
        second = now_us // SECOND_US
        if second - self._second > RATE_WINDOW_S:
            return 0.0
        self._roll(second)
        whole = sum(self._counts) - self._counts[second % (RATE_WINDOW_S + 1)]
        return whole / RATE_WINDOW_S

    def _roll(self, second: int) -> None:
        slots = RATE_WINDOW_S + 1
        if not self._counts:
            self._counts = [0] * slots
        for passed in range(max(self._second + 1, second - slots + 1), second + 1):
            self._counts[passed % slots] = 0
        self._second = max(self._second, second)


def bucket_of(us: int) -> int:
    """The histogram bucket of a duration: eight buckets for each doubling, so within 12.5 %."""
    if us < 1 << _SUB_BITS:
        return max(us, 0)
    shift = us.bit_length() - _SUB_BITS - 1
    return min(((shift + 1) << _SUB_BITS) + ((us >> shift) & ((1 << _SUB_BITS) - 1)), _BUCKETS - 1)


def bucket_us(bucket: int) -> int:
    """The upper end of a bucket, so a percentile is never flattered."""
    if bucket < 1 << _SUB_BITS:
        return bucket
    shift = (bucket >> _SUB_BITS) - 1
    return (((1 << _SUB_BITS) + (bucket & ((1 << _SUB_BITS) - 1)) + 1) << shift) - 1


@plain_stores
class Latencies(msgspec.Struct, gc=False, eq=False):
    """A sliding histogram: two halves of `LATENCY_HALF_US`, turned over as time passes."""

    _half: int = -1
    # Made when first needed, like those of a rate.
    _current: list[int] | None = None
    _before: list[int] | None = None

    def buckets(self, now_us: int) -> list[int]:
        """The list to count in now; the hot path adds to it directly."""
        self._turn(now_us)
        if self._current is None:
            self._current = [0] * _BUCKETS
        return self._current

    def _turn(self, now_us: int) -> None:
        half = now_us // LATENCY_HALF_US
        if half != self._half:
            self._before = self._current if half == self._half + 1 else None
            self._current = None
            self._half = half

    def percentiles_us(self, now_us: int, shares: tuple[float, ...]) -> list[int]:
        """The duration below which each share of the window lies; zeros when the window is empty."""
        counts = self.counts(now_us)
        return [0] * len(shares) if counts is None else percentiles_us(counts, shares)

    def counts(self, now_us: int) -> list[int] | None:
        """How many fell into each bucket of the window; None when it is empty."""
        self._turn(now_us)
        if self._before is None or self._current is None:
            return self._before or self._current
        return merged(self._before, self._current)


def merged(first: list[int], second: list[int]) -> list[int]:
    """The counts of two histograms together."""
    return list(map(add, first, second))


def percentiles_us(counts: list[int], shares: tuple[float, ...]) -> list[int]:
    """The duration below which each share of a histogram lies."""
    total = sum(counts)
    found = []
    for share in shares:
        rank = share * total
        seen = 0
        value = 0
        for bucket, count in enumerate(counts):
            seen += count
            if count and seen >= rank:
                value = bucket_us(bucket)
                break
        found.append(value)
    return found
