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
from penstock.core.queue.state import Book
from penstock.core.rules.rate_limits import Meter, Rates
from penstock.core.tenants import Quota


def reconfigure(
    book: Book,
    now: Now,
    *,
    limits: Limits,
    policy_for: Callable[[str], Policy],
    auto_create: bool,
    rates: Rates | None,
    quota_for: Callable[[str], Quota],
) -> None:
    """Go on with other settings, at once and everywhere."""
    book.limits = limits
    book.policy_for = policy_for
    book.auto_create = auto_create
    limit_rates(book, rates)
    book.tenants.quota_for = quota_for
    book.views.adopt(limits)
    for channel in list(book.channels.values()):
        policy = policy_for(channel.name)
        if policy != channel.policy:
            channel.adopt(policy)
            dispatch(book, now, channel)  # more may be leased at once than before


def limit_rates(book: Book, rates: Rates | None) -> None:
    """Count senders by these rates, and streams by those of their policies; None lets everybody send."""
    if rates is None:
        book.meter = None
        return
    if book.meter is None:
        book.meter = Meter(rates, lambda name: book.policy_for(name).rate)
    book.meter.rates = rates
    book.meter.buckets_max = book.limits.buckets_max
