"""Delivery: credits, fairness, leases.

Invariants: no delivery at zero credit; first deliveries leave in sequence order; a lease has one holder. A record is leased only when
its link has room, so a lease never runs while it waits in a buffer. `dispatch` is O(1) a delivery, and O(1) when nothing can move.
"""

from __future__ import annotations

from collections import deque

from penstock.core.clock import Now
from penstock.core.effects import Deliver
from penstock.core.errors import Refusal
from penstock.core.links import Consumer, Link
from penstock.core.queue import taps
from penstock.core.queue.channel import NO_CONSUMERS, Channel
from penstock.core.queue.counters import Counters, bucket_of
from penstock.core.queue.state import QueueState
from penstock.core.records import LEASED, Record
from penstock.core.scopes import PIPELINE

FRAME_BYTES = 128
"""What a delivery adds to its body on the wire, roughly."""


def subscribe(
    state: QueueState, now: Now, link: Link, name: str, lease_us: int = 0, *, replaces: bool = False
) -> Consumer | Refusal:
    """Add a consumer to a channel, with no credit. `replaces`: the caller ends another one if this one is accepted."""
    if state.commit_log.draining:
        return Refusal("Draining", "the server is shutting down")
    channel = (None if replaces else _subscriptions_problem(state, link)) or state.open_channel(name)
    if isinstance(channel, Refusal):
        return channel
    return _join(state, link, channel, lease_us)


def _subscriptions_problem(state: QueueState, link: Link) -> Refusal | None:
    """Why one connection may not have another consumer: it must not use up what others need."""
    limit = state.limits.subscriptions_max
    if len(link.consumers) < limit:
        return None
    return Refusal("QuotaExceeded", f"one connection has at most {limit} subscriptions and waiting pulls")


def pull(
    state: QueueState, now: Now, link: Link, name: str, count: int, wait_us: int, lease_us: int = 0
) -> Consumer | Refusal:
    """Take up to `count` records as soon as one is there; a `Deliver` effect follows, at the latest after the wait."""
    if state.commit_log.draining:
        return Refusal("Draining", "the server is shutting down")
    if state.waiting_pulls >= state.limits.waiters_max:
        return Refusal("QuotaExceeded", f"{state.waiting_pulls} pulls wait already", retry_after_ms=1_000)
    channel = _subscriptions_problem(state, link) or state.open_channel(name)
    if isinstance(channel, Refusal):
        return channel
    consumer = _join(state, link, channel, lease_us)
    consumer.pull = True
    consumer.credit = consumer.granted = count
    state.waiting_pulls += 1
    state.timers.arm(now.us + max(wait_us, 0), consumer)
    _enter_ring(consumer)
    dispatch(state, now, channel)
    if wait_us <= 0 and consumer.delivered == 0:
        end_pull(state, now, consumer)
    return consumer


def _join(state: QueueState, link: Link, channel: Channel, lease_us: int) -> Consumer:
    state.consumer_no += 1
    consumer = Consumer(state.consumer_no, channel, link, lease_us or channel.policy.lease_us)
    state.consumers[consumer.no] = consumer
    channel.consumers[consumer.no] = consumer
    link.consumers.append(consumer)
    return consumer


def end_pull(state: QueueState, now: Now, consumer: Consumer) -> None:
    """A pull's wait is over with nothing to show."""
    state.effects.append(Deliver(consumer, []))
    detach(state, now, consumer)


def detach(state: QueueState, now: Now, consumer: Consumer) -> None:
    """A consumer takes no more; it stays findable while it holds leases."""
    channel = consumer.channel
    consumer.credit = 0
    if channel.consumers.pop(consumer.no, None) is None:
        return
    if consumer.ringed:
        channel.ring.remove(consumer)
        consumer.ringed = False
    if consumer.pull:
        state.waiting_pulls -= 1
        consumer.ticket = 0
    if consumer in consumer.link.consumers:
        consumer.link.consumers.remove(consumer)
    forget_idle(state, consumer)
    state.rest(channel, now)


def forget_idle(state: QueueState, consumer: Consumer) -> None:
    """Forget a consumer that takes no more and holds nothing."""
    if not consumer.leases and consumer.no not in consumer.channel.consumers:
        state.consumers.pop(consumer.no, None)
        consumer.ticket = 0


def grant(state: QueueState, now: Now, consumer: Consumer, n: int) -> Refusal | None:
    """Add credit; refused whole when it would pass the cap, so both sides agree on the number."""
    if n < 1:
        return Refusal("InvalidCredit", f"credit must be 1 or more, not {n}")
    if consumer.credit + n > state.limits.credit_max:
        return Refusal(
            "InvalidCredit", f"{consumer.credit} + {n} is over the cap of {state.limits.credit_max} outstanding"
        )
    consumer.credit += n
    consumer.granted += n
    _enter_ring(consumer)
    dispatch(state, now, consumer.channel)
    return None


def _enter_ring(consumer: Consumer) -> None:
    if not consumer.ringed and consumer.credit > 0:
        consumer.ringed = True
        channel = consumer.channel
        if channel.ring is NO_CONSUMERS:
            channel.ring = deque()
        channel.ring.append(consumer)


def writable(state: QueueState, now: Now, link: Link) -> None:
    """The peer has read: there is room again."""
    link.room = state.limits.outbox_max
    if not link.stalled:
        return
    link.stalled = False
    if link.taps:
        taps.report_missed(state, link)
    for consumer in list(link.consumers):
        if consumer.credit > 0:
            _enter_ring(consumer)
            dispatch(state, now, consumer.channel)


def dispatch(state: QueueState, now: Now, channel: Channel) -> None:
    """Lease ready records to consumers with credit and room, one each in turn."""
    ready = channel.leasable
    ring = channel.ring
    if not ready or not ring or state.commit_log.draining:
        return
    room_leases = channel.policy.max_inflight - channel.leased if channel.policy.max_inflight else len(ready)
    now_us, wall_us = now
    if channel.ready_order is not None:
        channel.ready_order.at(now_us)
    handed: dict[Consumer, list[Record]] = {}
    lease = state.lease_no
    buckets = channel.latencies.buckets(now_us)
    counters = channel.counters
    out = first = 0
    arrived_us = bucket = -1
    while ready and ring and room_leases > 0:
        consumer = ring[0]
        link = consumer.link
        if consumer.credit <= 0 or link.room <= 0:
            # Out of the ring until `grant` or `writable` puts it back, so an idle consumer costs no look a dispatch.
            ring.popleft()
            consumer.ringed = False
            if consumer.credit > 0:
                link.stalled = True
            continue
        ring.rotate(-1)
        # A lone consumer takes what it can in one go. Several take one record each in turn, so that a consumer with much
        # credit does not starve the others.
        share = min(consumer.credit, len(ready), room_leases) if len(ring) == 1 else 1
        records = handed.get(consumer)
        if records is None:
            records = handed[consumer] = []
        leases = consumer.leases
        deadline_us = now_us + consumer.lease_us
        taken = 0
        room = link.room
        # One record may overdraw the room: a body larger than the outbox must still be deliverable.
        while taken < share and room > 0:
            record = ready.popleft()
            lease += 1
            taken += 1
            record.state = LEASED
            record.holder = consumer
            record.lease = lease
            record.deadline_us = deadline_us
            record.leased_us = now_us
            record.attempt = attempt = record.attempt + 1
            if attempt == 1:
                record.first_wall_us = wall_us
                if record.arrived_us != arrived_us:  # what came together waited equally long
                    if first:
                        buckets[bucket] = buckets.get(bucket, 0) + first
                        first = 0
                    arrived_us = record.arrived_us
                    bucket = bucket_of(now_us - arrived_us)
                first += 1
            else:
                counters.re += 1
            leases[lease] = record
            records.append(record)
            room -= len(record.body) + FRAME_BYTES
        link.room = room
        consumer.credit -= taken
        consumer.delivered += taken
        out += taken
        room_leases -= taken
    if first:
        buckets[bucket] = buckets.get(bucket, 0) + first
    state.lease_no = lease
    channel.leased += out
    if out:
        counters.out += out
        if channel.own is not None:
            _count_own(channel.own, handed)
        channel.rate_out.add(now_us, out)
    # One effect a consumer, after the loop: the session writes them as one message, and a pull ends only once.
    for consumer, records in handed.items():
        state.effects.append(Deliver(consumer, records))
        if consumer.pull:
            detach(state, now, consumer)
        _keep_deadline(state, consumer, records, now_us + consumer.lease_us)


def _keep_deadline(state: QueueState, consumer: Consumer, records: list[Record], deadline_us: int) -> None:
    """Have a timer for new leases that end together: one for all leases of the consumer, as long as they end in their order."""
    if deadline_us < consumer.leases_end_us:  # it has subscribed again, for shorter leases
        for record in records:
            state.timers.arm(deadline_us, record)
        return
    consumer.leases_end_us = deadline_us
    if consumer.ticket == 0:
        state.timers.arm(deadline_us, consumer)


def _count_own(own: Counters, handed: dict[Consumer, list[Record]]) -> None:
    for records in handed.values():
        attempts = [record.attempt for record in records if record.sender == PIPELINE]
        own.out += len(attempts)
        own.re += sum(attempt > 1 for attempt in attempts)


def regrant(state: QueueState, consumer: Consumer, n: int) -> None:
    """A consumer with `auto` gets back the credit of what it settled."""
    if consumer.auto and consumer.no in consumer.channel.consumers:
        consumer.credit += n
        consumer.granted += n
        _enter_ring(consumer)
