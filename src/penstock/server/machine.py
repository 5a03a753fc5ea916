"""Making the queue machine that a config describes."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.book import Wrapping
from penstock.core.limits import Limits
from penstock.core.policy import Policy
from penstock.core.queue import QueueMachine
from penstock.dialects.courier import envelopes, lanes

WRAPPING = Wrapping(
    bury=envelopes.bury, revive=envelopes.revive, key=lanes.partition_key, level=lanes.priority
)


def make_machine(
    limits: Limits,
    policy_for: Callable[[str], Policy],
    entropy: Callable[[int], bytes],
    *,
    auto_create: bool = True,
) -> QueueMachine:
    """A queue machine that moves Courier envelopes."""
    return QueueMachine(
        limits=limits, policy_for=policy_for, wrapping=WRAPPING, entropy=entropy, auto_create=auto_create
    )
