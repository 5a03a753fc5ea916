"""Making the queue machine that a config describes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.core.book import Wrapping
from penstock.core.limits import Limits
from penstock.core.policy import Policy
from penstock.core.queue import QueueMachine
from penstock.dialects.courier import envelopes
from penstock.dialects.courier.rules import Trigger
from penstock.dialects.courier.ruling import recovered_rules
from penstock.dialects.courier.triggers import Envelope, rule_of

WRAPPING = Wrapping(bury=envelopes.bury, revive=envelopes.revive, read=Envelope)


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


def install_rules(machine: QueueMachine, triggers: Iterable[Trigger]) -> list[str]:
    """Have these triggers tried, and those that were given at run time. Returns which of the latter no longer can be."""
    machine.triggers.install([rule_of(trigger, machine.limits) for trigger in triggers])
    return recovered_rules(machine)
