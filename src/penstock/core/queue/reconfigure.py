"""Settings that change while the machine runs: bounds, policies, rates.

A change never costs a record: a channel that is over a lowered bound keeps what it has and refuses what is new. Leases that
are out keep their length, and subscriptions the one they began with. O(records) only for a channel whose order changes.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.deliver import dispatch
from penstock.core.queue.policy import Policy
from penstock.core.queue.state import QueueState
from penstock.core.rules.rate_limits import Meter, Rates
from penstock.core.tenants import Quota


def reconfigure(
    state: QueueState,
    now: Now,
    *,
    limits: Limits,
    policy_for: Callable[[str], Policy],
    auto_create: bool,
    rates: Rates | None,
    quota_for: Callable[[str], Quota],
) -> None:
    """Go on with other settings, at once and everywhere."""
    state.limits = state.commit_log.limits = limits
    state.policy_for = policy_for
    state.auto_create = auto_create
    limit_rates(state, rates)
    state.tenants.quota_for = quota_for
    state.views.adopt(limits)
    for channel in list(state.channels.values()):
        policy = policy_for(channel.name)
        if policy != channel.policy:
            channel.adopt(policy)
            dispatch(state, now, channel)  # more may be leased at once than before


def limit_rates(state: QueueState, rates: Rates | None) -> None:
    """Count senders by these rates, and streams by those of their policies; None lets everybody send."""
    if rates is None:
        state.meter = None
        return
    if state.meter is None:
        state.meter = Meter(rates, lambda name: state.policy_for(name).rate)
    state.meter.rates = rates
    state.meter.buckets_max = state.limits.buckets_max
