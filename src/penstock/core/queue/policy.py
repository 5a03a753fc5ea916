"""The policy of a channel: lease length, bounds, order, retries, dedup window.

A policy is a value that the config chooses by the name of the stream. Code never chooses one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.core.rate_limits import Rate
from penstock.core.tenants import is_dead

IMMEDIATE = 5
"""Redeliveries of a record that follow at once, unless its channel has a back-off of its own; beyond them the record is hot."""


class Retry(msgspec.Struct, frozen=True):
    """Back-off after a nack without a delay, and after an expiry."""

    base_us: int
    factor: float = 2.0
    max_us: int = 60_000_000
    jitter: float = 0.0
    """Share of the delay that is drawn at random: 0.2 means 80 to 100 %."""
    immediate: int = 0
    """Failures that cost no delay; the delay after the next one is `base_us`."""

    def delay_us(self, failures: int, draw: float) -> int:
        """The delay after this many failures that cost one; `draw` is a number from 0 to 1."""
        delay = float(self.base_us)
        for _ in range(failures - 1):
            delay *= self.factor
            if delay >= self.max_us:
                break
        return int(min(delay, self.max_us) * (1.0 - self.jitter * draw))


DEFAULT_RETRY = Retry(1_000_000, max_us=300_000_000, jitter=0.2, immediate=IMMEDIATE)
"""A consumer that fails at once does not spin, and one that fails for a moment does not wait."""


class Policy(msgspec.Struct, frozen=True):
    """The settings of one channel."""

    lease_us: int = 30_000_000
    max_depth: int = 100_000
    """Bound on ready, delayed and leased records together."""
    max_bytes: int = 256 * 1024 * 1024
    overflow: Literal["reject", "drop-oldest"] = "reject"
    redelivery: Literal["tail", "head"] = "tail"
    max_deliveries: int = 20
    """Nacks and expiries before a record goes to the dead letters; 0 means no limit."""
    max_abandoned: int = 100
    """Lost connections of its holders before it goes there; 0 means no limit."""
    max_inflight: int = 0
    """Leases at once; 0 means no limit, 1 means strict processing order."""
    on_disconnect: Literal["release", "hold"] = "release"
    late_ack: Literal["reject", "accept"] = "reject"
    dedup_count: int = 10_000
    dedup_us: int = 600_000_000
    retry: Retry | None = DEFAULT_RETRY
    """None delivers again at once, always."""
    rate: Rate | None = None
    """How fast envelopes may come in; None means any rate."""
    schema_mode: Literal["off", "warn", "enforce"] = "off"
    """Whether payloads are held against the schema their envelope names."""
    partitioned: bool = False
    """At most one record of a partition key is out at a time; excludes `priority`."""
    priority: bool = False
    """Urgent records go first."""
    priority_wait_us: int = 30_000_000
    """A record that waited this long gets a turn whatever its urgency."""


_DEFAULT, _DEFAULT_DEAD = Policy(), Policy(max_deliveries=0, max_abandoned=0)


def default_policy(name: str) -> Policy:
    """The policy of a channel that no config names. A dead letter is kept, however often it fails."""
    return _DEFAULT_DEAD if is_dead(name) else _DEFAULT
