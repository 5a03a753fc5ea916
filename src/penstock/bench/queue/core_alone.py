"""The queue machine alone: enqueue, deliver and ack in one process, without a socket or a disk."""

from __future__ import annotations

import os
import time

from penstock.bench.harness.load import LoadReport
from penstock.bench.queue.envelopes import envelope
from penstock.bench.queue.loads import QueueJob
from penstock.core.clock import Now
from penstock.core.effects import Deliver
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.core.scopes import ANONYMOUS
from penstock.server.engine.machines import make_machine

CREDIT = 100_000


def cycle(job: QueueJob) -> LoadReport:
    """As many cycles as fit into the time; every record is accounted for at the end."""
    policy = Policy()
    machine = make_machine(Limits(), lambda name: policy, os.urandom)
    link = machine.connect(ANONYMOUS, None)
    now = Now(1, 1)
    assert not isinstance(link, Refusal)
    consumer = machine.subscribe(now, link, job.stream)
    assert not isinstance(consumer, Refusal)
    machine.grant(now, consumer, CREDIT)
    body = envelope(job.stream, job.size, job.tag) % (0, 0)
    first_ns = time.monotonic_ns()
    stop_ns = first_ns + int(job.seconds * 1e9)
    count = offset = tick_us = 0
    while time.monotonic_ns() < stop_ns:
        tick_us += 10
        now = Now(tick_us, tick_us)
        numbers = range(count, count + job.batch)
        machine.enqueue(now, job.stream, [Record(f"b-{number}", "bench.load", body) for number in numbers])
        count += job.batch
        offset += _commit(machine, now, offset)
        ids: list[str] = []
        for effect in machine.take_effects():
            assert isinstance(effect, Deliver)
            ids += [record.id for record in effect.records]
        link.room = machine.limits.outbox_max
        machine.ack(now, consumer, ids)
        machine.grant(now, consumer, len(ids))
        offset += _commit(machine, now, offset)
    last_ns = time.monotonic_ns()
    channel = machine.channels[job.stream]
    is_whole = channel.balance == 0 and channel.counters.ack == channel.counters.in_ == count
    return LoadReport(count, first_ns, last_ns, error=None if is_whole else f"not all of {count} were acked")


def _commit(machine: QueueMachine, now: Now, offset: int) -> int:
    batch = machine.commit_log.take_batch()
    if batch is None:
        return 0
    machine.committed(now, offset)
    return len(batch.facts)
