"""The queue machine of a config, and the state that a journal rebuilds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.queue.state import Wrapping
from penstock.core.rows import Row
from penstock.dialects.courier.triggers.admin import recovered_rules
from penstock.dialects.courier.triggers.config import Trigger
from penstock.dialects.courier.triggers.script import TriggerEnvelope, rule_of
from penstock.dialects.courier.wire import envelopes
from penstock.dialects.mew.state import DOOR, SpaceMemory
from penstock.dialects.streamservice import relay_memory

WRAPPING = Wrapping(
    bury=envelopes.bury,
    revive=envelopes.revive,
    read=TriggerEnvelope,
    key=envelopes.partition_key,
    level=envelopes.priority,
)


def make_machine(
    limits: Limits, policy_for: Callable[[str], Policy], entropy: Callable[[int], bytes], *, auto_create: bool = True
) -> QueueMachine:
    """A queue machine that moves Courier envelopes."""
    return QueueMachine(
        limits=limits, policy_for=policy_for, wrapping=WRAPPING, entropy=entropy, auto_create=auto_create
    )


class Machines:
    """What a journal rebuilds: the queue, and what the spaces and the relay remember."""

    def __init__(self, queue: QueueMachine) -> None:
        self.queue = queue
        self.memory = SpaceMemory()
        self.relay = relay_memory.RelayMemory()
        self._memories: dict[str, SpaceMemory | relay_memory.RelayMemory]
        self._memories = {DOOR: self.memory, relay_memory.DOOR: self.relay}

    def snapshot(self, now: Now) -> Iterator[Row]:
        yield from self.queue.snapshot(now)
        yield from self.memory.snapshot()
        yield from self.relay.snapshot()

    def resume(self, now: Now, row: Row) -> None:
        memory = self._memories.get(row.door)
        if memory is None:
            self.queue.resume(now, row)
        else:
            memory.restore(row)

    def restore(self, now: Now, row: Row) -> None:
        memory = self._memories.get(row.door)
        if memory is None:
            self.queue.restore(now, row)
        else:
            memory.restore(row)

    def recovered(self, now: Now) -> None:
        self.queue.recovered(now)

    def wake(self, now: Now) -> None:
        while (due_us := self.queue.next_deadline()) is not None and due_us <= now.us:
            self.queue.wake(now)


def install_rules(machine: QueueMachine, triggers: Iterable[Trigger]) -> list[str]:
    """Install these triggers and those set at run time; returns the latter that this version cannot run."""
    machine.triggers.install([rule_of(trigger, machine.limits) for trigger in triggers])
    return recovered_rules(machine)
