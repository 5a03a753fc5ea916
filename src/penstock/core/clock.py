"""A moment, on two clocks: one that never steps, for timers, and the wall's, for people and for disk."""

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
