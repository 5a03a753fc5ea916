"""What happened in a channel, in numbers of fixed size: counts, rates and latencies.

Invariant 2: `in_ = ack + dead + drop + purged + moved + ready + leased + delayed`, at any instant.
"""

from __future__ import annotations

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


# Rates and histograms are dicts of numbers: the garbage collector visits lists and what they hold, and leaves such dicts alone.

_NEVER: dict[int, int] = {}
"""The counts of a rate that nothing was ever added to."""


@plain_stores
class MinuteRate(msgspec.Struct, gc=False, eq=False):
    """Events a second over the last `RATE_WINDOW_S` seconds, counted by second."""

    _counts: dict[int, int] = msgspec.field(default_factory=lambda: _NEVER)
    # Made when first needed: most channels of a large server are quiet.

    def add(self, now_us: int, n: int) -> None:
        second = now_us // SECOND_US
        if second not in self._counts:
            self._counts = {at: count for at, count in self._counts.items() if at >= second - RATE_WINDOW_S}
            self._counts[second] = 0
        self._counts[second] += n

    def per_second(self, now_us: int) -> float:
        """The mean over the whole window; the running second is left out because it is not over."""
        second = now_us // SECOND_US
        return sum([count for at, count in self._counts.items() if 0 < second - at <= RATE_WINDOW_S]) / RATE_WINDOW_S


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
    # Made when first needed, like those of a rate. By bucket, without those that are empty.
    _current: dict[int, int] | None = None
    _before: dict[int, int] | None = None

    def buckets(self, now_us: int) -> dict[int, int]:
        """The counts by bucket to add to now; the hot path does so directly."""
        self._turn(now_us)
        if self._current is None:
            self._current = {}
        return self._current

    def add(self, now_us: int, us: int) -> None:
        """Count one duration."""
        counts, bucket = self.buckets(now_us), bucket_of(us)
        counts[bucket] = counts.get(bucket, 0) + 1

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

    def counts(self, now_us: int) -> dict[int, int] | None:
        """How many fell into each bucket of the window; None when it is empty."""
        self._turn(now_us)
        if self._before is None or self._current is None:
            return self._before or self._current
        return merged(self._before, self._current)


def merged(first: dict[int, int], second: dict[int, int]) -> dict[int, int]:
    """The counts of two histograms together."""
    return {bucket: first.get(bucket, 0) + second.get(bucket, 0) for bucket in first | second}


def percentiles_us(counts: dict[int, int], shares: tuple[float, ...]) -> list[int]:
    """The duration below which each share of a histogram lies."""
    total = sum(counts.values())
    ordered = sorted(counts.items())
    found = []
    for share in shares:
        rank = share * total
        seen = 0
        value = 0
        for bucket, count in ordered:
            seen += count
            if count and seen >= rank:
                value = bucket_us(bucket)
                break
        found.append(value)
    return found
