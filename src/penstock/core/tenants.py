"""Tenants: names that keep them apart, and what each may hold.

A tenant's stream `x` is the channel `t/<tenant>/x`, dead letters included, so tenants may use the same names. Each has a quota of streams,
records and bytes. Usage is estimated from above and counted only when the estimate reaches the quota, at most once in
`COUNT_EVERY_US`, so an enqueue costs two comparisons. The quota is never exceeded, except by moves between a tenant's own channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import Refusal

if TYPE_CHECKING:
    from penstock.core.clock import Now
    from penstock.core.queue.channel import Channel

TENANTS = "t/"
DEAD_PREFIX = "dlq/"
COUNT_EVERY_US = 10_000
RETRY_QUOTA_MS = 1_000


def prefix_of(tenant: str) -> str:
    """What every channel of a tenant begins with."""
    return f"{TENANTS}{tenant}/"


def split(name: str) -> tuple[str, str]:
    """A channel's name as its tenant's prefix, which may be empty, and the rest."""
    if not name.startswith(TENANTS):
        return "", name
    end = name.find("/", len(TENANTS)) + 1
    return (name[:end], name[end:]) if end else ("", name)


def tenant_of(name: str) -> str | None:
    """The tenant of a channel; None if it has none."""
    prefix, _ = split(name)
    return prefix[len(TENANTS) : -1] if prefix else None


def is_dead(name: str) -> bool:
    """Whether a channel holds dead letters."""
    return split(name)[1].startswith(DEAD_PREFIX)


def dead_name(name: str) -> str:
    """The dead-letter channel of a channel, of the same tenant; that of a dead-letter channel is itself."""
    prefix, rest = split(name)
    return name if rest.startswith(DEAD_PREFIX) else f"{prefix}{DEAD_PREFIX}{rest}"


def home_name(name: str) -> str:
    """Where the letters of a dead-letter channel come from."""
    prefix, rest = split(name)
    return prefix + rest.removeprefix(DEAD_PREFIX)


class Quota(msgspec.Struct, frozen=True):
    """What one tenant may hold."""

    streams_max: int = 1_000
    envelopes_max: int = 100_000
    bytes_max: int = 256 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Holding:
    """What one tenant holds."""

    name: str
    channels: dict[str, Channel] = field(default_factory=dict)
    """Its channels in memory."""
    _records: int = 0
    _bytes: int = 0
    """Never less than there is: what left since the last count is still in it."""
    _counted_us: int = -COUNT_EVERY_US

    def streams_problem(self, quota: Quota) -> Refusal | None:
        """Why it may not have another stream in memory."""
        if len(self.channels) < quota.streams_max:
            return None
        return self._over(f"{len(self.channels)} streams", "streams_max", quota.streams_max)

    def admit(self, now: Now, quota: Quota, records: int, size: int) -> Refusal | None:
        """Count what comes in, or say why it may not."""
        if not self._has_room(quota, records, size):
            if now.us - self._counted_us >= COUNT_EVERY_US:
                self._counted_us = now.us
                self.recount()
            if not self._has_room(quota, records, size):
                if self._records + records > quota.envelopes_max:
                    return self._over(f"{self._records} envelopes", "envelopes_max", quota.envelopes_max)
                return self._over(f"{self._bytes} bytes", "bytes_max", quota.bytes_max)
        self._records += records
        self._bytes += size
        return None

    def regain(self, size: int) -> None:
        """A record is here that was not asked for: it moved here, or its settle was refused."""
        self._records += 1
        self._bytes += size

    def recount(self) -> None:
        """Records came other than by `admit`: after a restart."""
        self._records, self._bytes = self.held()

    def _has_room(self, quota: Quota, records: int, size: int) -> bool:
        return self._records + records <= quota.envelopes_max and self._bytes + size <= quota.bytes_max

    def held(self) -> tuple[int, int]:
        """Records and bytes, counted. O(its channels)."""
        records = sum(len(channel.live) for channel in self.channels.values())
        return records, sum(channel.bytes for channel in self.channels.values())

    def _over(self, has: str, setting: str, bound: int) -> Refusal:
        message = f"tenant `{self.name}` holds {has} and may hold {bound}"
        hint = f"retry later, or raise `tenants.{self.name}.{setting}`"
        return Refusal("QuotaExceeded", message, ref=self.name, retry_after_ms=RETRY_QUOTA_MS, hint=hint)


class Tenants:
    """Every tenant that has a channel in memory."""

    def __init__(self) -> None:
        self.holdings: dict[str, Holding] = {}
        self.quota_for: Callable[[str], Quota] = lambda name: Quota()

    def streams_problem(self, name: str) -> Refusal | None:
        """Why this channel may not come into memory."""
        tenant = tenant_of(name)
        holding = None if tenant is None else self.holdings.get(tenant)
        if tenant is None or holding is None or name in holding.channels:
            return None
        return holding.streams_problem(self.quota_for(tenant))

    def loaded(self, channel: Channel) -> None:
        tenant = tenant_of(channel.name)
        if tenant is None:
            return
        holding = self.holdings.get(tenant)
        if holding is None:
            holding = self.holdings[tenant] = Holding(tenant)
        holding.channels[channel.name] = channel
        channel.holding = holding

    def unloaded(self, channel: Channel) -> None:
        holding = channel.holding
        if holding is None:
            return
        holding.channels.pop(channel.name, None)
        if not holding.channels:
            self.holdings.pop(holding.name, None)

    def recovered(self) -> None:
        """Everything has been restored."""
        for holding in self.holdings.values():
            holding.recount()

    def admit(self, now: Now, channel: Channel, records: int, size: int) -> Refusal | None:
        """Count what comes into a tenant's channel, or say why it may not."""
        holding = channel.holding
        if holding is None:
            return None
        return holding.admit(now, self.quota_for(holding.name), records, size)
