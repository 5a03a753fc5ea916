"""A moment on two clocks: a monotonic one for timers, and wall time for people and the disk."""
# size: every module depends on this one, and it depends on none.

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple


class Now(NamedTuple):
    """What every call of a machine is given instead of a clock."""

    us: int
    """Monotonic microseconds: leases, delays, latencies."""
    wall_us: int
    """Microseconds since 1970: what is shown, and what must survive a restart."""


def rfc3339(wall_us: int) -> str:
    """A wall time for people, in UTC with milliseconds."""
    moment = datetime.fromtimestamp(wall_us / 1_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
