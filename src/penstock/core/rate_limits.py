"""Token buckets: how many envelopes a payer may send, and how many a stream accepts.

Owns the buckets of every token, tenant, address and stream. Knows no clock, no socket and no envelope. A bucket is a debt that shrinks by
`count` units a microsecond; one envelope costs `period_us` units and the debt may reach `burst` envelopes. Integers avoid rounding:

- over any time T, at most `burst + rate * (T + 1 us)` envelopes are admitted;
- a sender that keeps to the rate is never refused, even if its clock reading is short by less than a microsecond;
- a clock that steps back repays nothing, and one that leaps ahead fills a bucket and no more.

A check changes nothing. All buckets are checked before any is charged. O(1) a check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from penstock.core.errors import Refusal
from penstock.core.scopes import Principal

SECOND_US = 1_000_000
LOOKS = 2
"""Buckets looked at whenever one is made: those that are full by now go, so the idle never pile up."""
DENOMINATOR_MAX = 1_000_000
"""A rate is the nearest fraction with a denominator up to this: `100 / 60` is exact."""

Key = tuple[str, str]


class Rate(msgspec.Struct, frozen=True):
    """`count` envelopes in each `period_us`, and `burst` at once."""

    count: int
    period_us: int
    burst: int

    @classmethod
    def per_second(cls, rate: float, burst: int) -> Rate:
        """The rate of a config value per second."""
        exact = Fraction(rate).limit_denominator(DENOMINATOR_MAX)
        return cls(exact.numerator, SECOND_US * exact.denominator, burst)

    def __str__(self) -> str:
        return f"{self.count * SECOND_US / self.period_us:g} a second, {self.burst} at once"


class Rates(msgspec.Struct, frozen=True):
    """Who may bring how much; None means any amount."""

    token: Rate | None = None
    """Of each token that has none of its own."""
    address: Rate | None = None
    """Of all peers without a token at one address."""
    named: dict[str, Rate] = {}
    """Of tokens by the name of their holder."""
    tenant: Rate | None = None
    """Of all tokens of each tenant that has no rate of its own."""
    tenants: dict[str, Rate] = {}
    """Of tenants by their name."""


@dataclass(slots=True, eq=False)
class Bucket:
    """What is owed to one rate."""

    rate: Rate
    at_us: int
    debt: int = 0

    def settle(self, now_us: int) -> None:
        """Pay off what time has paid."""
        if now_us > self.at_us:
            self.debt = max(0, self.debt - (now_us - self.at_us) * self.rate.count)
        self.at_us = now_us

    def room(self) -> int:
        """How many envelopes fit now."""
        rate = self.rate
        return max(0, min(rate.burst, (rate.burst * rate.period_us + rate.count - self.debt) // rate.period_us))

    def wait_us(self, count: int) -> int:
        """Time until so many fit, without further traffic."""
        rate = self.rate
        over = self.debt + (count - rate.burst) * rate.period_us - rate.count
        return max(0, -(-over // rate.count))

    def turn(self, rate: Rate) -> None:
        """Go on with another rate, owing as many envelopes as before."""
        owed = self.debt * rate.period_us // self.rate.period_us
        self.debt = min(owed, rate.burst * rate.period_us)
        self.rate = rate


class Meter:
    """The buckets of one server."""

    def __init__(self, rates: Rates, stream_rate: Callable[[str], Rate | None], *, buckets_max: int = 100_000) -> None:
        self.rates = rates
        self.stream_rate = stream_rate
        self.buckets_max = buckets_max
        self._buckets: dict[Key, Bucket] = {}
        self.refused = 0
        """Envelopes refused for their rate."""
        self.forgotten = 0
        """Buckets given up at the bound before they were full again: their payers got a new burst."""

    def __len__(self) -> int:
        return len(self._buckets)

    def room(self, now_us: int, who: Principal, address: str, stream: str) -> int | None:
        """How many envelopes may come in now; None means any number."""
        rooms = [bucket.room() for _, bucket in self._asked(now_us, who, address, stream)]
        return min(rooms) if rooms else None

    def check(
        self, now_us: int, who: Principal, address: str, stream: str | None, count: int, *, whole: bool = False
    ) -> Refusal | None:
        """Why so many envelopes are refused now; charges nothing. `whole`: more than a burst waits for a full bucket."""
        worst: tuple[int, Key, Rate] | None = None
        for key, bucket in self._asked(now_us, who, address, stream):
            burst = bucket.rate.burst
            if count > burst and not whole:
                self.refused += count
                hint = f"send at most {burst} in one request; more never fit"
                message = f"{count} envelopes at once, and the rate of {_shown(key)} is {bucket.rate}"
                return Refusal("TooLarge", message, ref=key[1], hint=hint)
            wait_us = bucket.wait_us(min(count, burst))
            if wait_us and (worst is None or wait_us > worst[0]):
                worst = (wait_us, key, bucket.rate)
        if worst is None:
            return None
        self.refused += count
        wait_us, key, rate = worst
        message = f"the rate of {_shown(key)} is {rate}"
        return Refusal("RateLimited", message, ref=key[1], retry_after_ms=-(-wait_us // 1000))

    def charge(self, now_us: int, who: Principal, address: str, stream: str | None, count: int) -> None:
        """So many envelopes came in."""
        for key, bucket in self._asked(now_us, who, address, stream):
            if key not in self._buckets:
                self._keep(now_us, key, bucket)
            bucket.debt += count * bucket.rate.period_us

    def _asked(self, now_us: int, who: Principal, address: str, stream: str | None) -> list[tuple[Key, Bucket]]:
        """The buckets that a request of this payer to this stream has to do with, as they are now."""
        found = []
        rates = self.rates
        if who.anonymous:
            if rates.address is not None:
                key = ("address", address)
                found.append((key, self._bucket(now_us, key, rates.address)))
        elif not who.operator:
            rate = rates.named.get(who.name, rates.token)
            if rate is not None:
                key = ("token", who.name)
                found.append((key, self._bucket(now_us, key, rate)))
        if who.tenant is not None:
            rate = rates.tenants.get(who.tenant, rates.tenant)
            if rate is not None:
                key = ("tenant", who.tenant)
                found.append((key, self._bucket(now_us, key, rate)))
        if stream is not None and (rate := self.stream_rate(stream)) is not None:
            key = ("stream", stream)
            found.append((key, self._bucket(now_us, key, rate)))
        return found

    def _bucket(self, now_us: int, key: Key, rate: Rate) -> Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            return Bucket(rate, now_us)  # kept only once something is charged to it
        bucket.settle(now_us)
        if bucket.rate is not rate:
            bucket.turn(rate)
        return bucket

    def _keep(self, now_us: int, key: Key, bucket: Bucket) -> None:
        """Remember a new bucket, and forget some that say nothing any more."""
        buckets = self._buckets
        for _ in range(min(LOOKS, len(buckets))):
            oldest = next(iter(buckets))
            seen = buckets.pop(oldest)
            seen.settle(now_us)
            if seen.debt:
                buckets[oldest] = seen  # look again when all others had their turn
        while len(buckets) >= self.buckets_max:
            del buckets[next(iter(buckets))]
            self.forgotten += 1
        buckets[key] = bucket


def _shown(key: Key) -> str:
    return f"{key[0]} `{key[1]}`"
