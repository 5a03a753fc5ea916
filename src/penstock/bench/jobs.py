"""What the parent tells a load process to do, and what that process reports: JSON both ways."""

from __future__ import annotations

import math

import msgspec


class Job(msgspec.Struct, rename="camel"):
    """One load process's task."""

    role: str
    """`produce`, `pace`, `consume`, `post`, `idle`, `follow`, `change`, `core`, one of those of a space
    (`fan-publish`, `fan-receive`, `fan-pace`), of a relay (`relay-publish`, `relay-receive`, `relay-register`, `relay-hold`,
    `relay-verify`), or one of those of Redis."""
    host: str = "127.0.0.1"
    port: int = 0
    stream: str = ""
    board: str = ""
    size: int = 300
    batch: int = 1
    seconds: float = 1.0
    count: int = 0
    """Envelopes at most, or subscribers, or cycles."""
    window: int = 8192
    rate: int = 0
    connections: int = 1
    stream_max: int = 0
    """Envelopes of one stream, before the next one is begun; 0 means one stream for all."""
    tag: str = "b"
    token: str | None = None
    server_pid: int = 0
    """Whose CPU a load of a space watches."""
    is_targeted: bool = False
    """Whether frames go to one participant, or to everybody in the space."""
    is_aggregated: bool = False
    """Whether the one answers with a stream to everybody."""
    pub: str = ""
    """Where a relay's subscribers connect."""
    pull: str = ""
    """Where its publishers do."""
    is_plain: bool = False
    """Whether it is a proxy that knows nothing of topics."""


class Report(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a load process has done."""

    count: int = 0
    first_ns: int = 0
    last_ns: int = 0
    cpu_s: float = 0.0
    latencies: dict[str, float] | None = None
    """Milliseconds by percentile."""
    late: dict[str, float] | None = None
    """How far behind its schedule an open-loop producer sent, in milliseconds."""
    error: str | None = None
    note: str | None = None
    server_cpu_s: float = 0.0
    """What the server spent meanwhile."""
    heard: int = 0
    """Frames that arrived here."""
    missing: int = 0
    """Frames that should have arrived here and did not."""
    echoes: int = 0
    """Deliveries that went to the sender itself."""


SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}


def percentiles_ms(values_ns: list[int]) -> dict[str, float]:
    """Nearest-rank percentiles, in milliseconds."""
    if not values_ns:
        return {}
    ordered = sorted(values_ns)
    last = len(ordered) - 1
    return {
        name: round(ordered[min(last, max(0, math.ceil(share * len(ordered)) - 1))] / 1e6, 3)
        for name, share in SHARES.items()
    }
