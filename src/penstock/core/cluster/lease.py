"""The lease of a shard is progress in its own log.

An owner serves clients until `LEASE_US` after it *sent* the newest message that was kept, and publishes an idle frame when it has nothing
else to write. A candidate takes over when its own reads of the stream's leader, one a second, have shown no new message for `SILENCE_US`.
What it saw last was sent before it saw it, so the owner's lease ended at least two seconds earlier, unless one clock runs 1.6 times as
fast as the other. An election among the servers stops reads and writes alike: it pauses shards and moves none.

The lease is for liveness, and for clients that should not be served by two nodes. What is durable is decided by the log alone.
Times are microseconds of a clock that goes on while the machine sleeps.
"""
# size: the argument is longer than the code

from __future__ import annotations

LEASE_US = 3_000_000
"""Three idle frames may be late before an owner stops."""
IDLE_EVERY_US = 1_000_000
SILENCE_US = 5_000_000
"""Longer than a lease by what clocks and pauses may differ."""
READ_EVERY_US = 1_000_000
READ_GAP_US = 2_000_000
"""Reads that are farther apart prove nothing about the time between them."""


def is_held(now_us: int, proven_us: int | None) -> bool:
    """Whether an owner whose newest kept message was sent at `proven_us` may serve clients."""
    return proven_us is not None and now_us - proven_us < LEASE_US


class Silence:
    """For how long a candidate has seen no new message."""

    def __init__(self) -> None:
        self._since_us: int | None = None
        self._read_us = 0

    def read(self, sent_us: int, now_us: int, *, has_news: bool) -> None:
        """A read of the leader that was sent at `sent_us` has succeeded."""
        if has_news or self._since_us is None or sent_us - self._read_us > READ_GAP_US:
            self._since_us = now_us
        self._read_us = sent_us

    def broken(self) -> None:
        """A read failed: what happened meanwhile is unknown."""
        self._since_us = None

    def is_over(self, now_us: int) -> bool:
        """Whether a candidate may begin an epoch."""
        since_us = self._since_us
        return since_us is not None and now_us - since_us >= SILENCE_US and now_us - self._read_us <= READ_GAP_US
