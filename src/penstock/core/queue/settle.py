"""Settling: how a lease ends. By its holder (ack, nack, release, term), by the clock, or with its link.

Invariant 3: a late settle never settles another's lease. A settle takes effect at once and is a fact in the open batch; its
confirmation waits for the returned gate. Settles are never refused for lack of space. O(1) each, O(log n) for a delay.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from penstock.core.clock import Now
from penstock.core.effects import Expire
from penstock.core.errors import Refusal
from penstock.core.links import Consumer, Link
from penstock.core.queue.channel import Channel
from penstock.core.queue.dead_letters import bury
from penstock.core.queue.deliver import detach, dispatch, forget_idle, regrant
from penstock.core.queue.hot import note_hot
from penstock.core.queue.policy import IMMEDIATE
from penstock.core.queue.state import QueueState
from penstock.core.records import LEASED, PENDING, READY, Record, Settle
from penstock.core.rules import firing
from penstock.core.scopes import PIPELINE, Principal


class Done(msgspec.Struct, gc=False):
    """A settle that was carried out, durable once `gate` is committed."""

    gate: int
    deadline_us: int = 0
    """For an extension: when the lease now ends."""


class Denied(msgspec.Struct, gc=False):
    """A settle that was refused; the reason itself may rest on a commit that is still under way."""

    gate: int
    refusal: Refusal


def ack(state: QueueState, now: Now, consumer: Consumer, ids: list[str]) -> list[Denied]:
    """Acknowledge by envelope id what this consumer holds. The hot path of settling."""
    channel, link = consumer.channel, consumer.link
    live, leases, order = channel.live, consumer.leases, channel.ready_order
    acked: list[Record] = []
    refused: list[str] = []
    late_acks = 0
    for id_ in ids:
        record = live.get(id_)
        if record is None or record.holder is not consumer:
            if record is None or not _is_late(channel, consumer, record):
                refused.append(id_)
                continue
            channel.leave(record)
            record.lapsed = None  # an id that is given twice finds it neither lapsed nor held
            late_acks += 1
        else:
            del leases[record.lease]
            record.holder = None
            if order is not None:
                order.free(record)
        acked.append(record)
    if acked:
        peer, token = link.who, link.voucher
        state.commit_log.facts += [
            Settle("ack", record, peer, record.attempt, record.first_wall_us, token=token) for record in acked
        ]
        channel.leased -= len(acked) - late_acks
        channel.counters.ack += len(acked)
        state.settle_all(channel, acked, "acked", now)
        if state.triggers.on_ack:
            for record in acked:
                firing.happened(state, now, "on_ack", record)
    denied = [_deny(state, channel, consumer, id_) for id_ in refused]
    if acked:
        _after(state, now, consumer, len(acked) - late_acks)  # an expiry has given its credit back already
    return denied


def _is_late(channel: Channel, consumer: Consumer, record: Record) -> bool:
    """With `late_ack: accept`, an expired record that was not redelivered may still be acked."""
    return channel.policy.late_ack == "accept" and record.state == READY and record.lapsed is consumer


def _after(state: QueueState, now: Now, consumer: Consumer, settled: int) -> None:
    """A consumer settled something: give back automatic credit, let others move up."""
    if consumer.auto:
        regrant(state, consumer, settled)
    channel = consumer.channel
    if channel.ready:
        dispatch(state, now, channel)
    forget_idle(state, consumer)


def held(state: QueueState, consumer: Consumer, id_: str, lease_id: str | None) -> Record | Denied:
    """The record that this consumer holds under this id, and under this very lease when one is named."""
    record = consumer.channel.live.get(id_)
    if record is None or record.holder is not consumer:
        return _deny(state, consumer.channel, consumer, id_)
    if lease_id is not None and lease_id != state.lease_id(record):
        return Denied(0, Refusal("LeaseExpired", f"lease `{lease_id}` of `{id_}` has ended", ref=id_))
    return record


def _deny(state: QueueState, channel: Channel, consumer: Consumer, id_: str) -> Denied:
    record = channel.live.get(id_)
    if record is not None and record.state != PENDING:
        if record.lapsed is consumer or (record.holder is None and record.attempt > 0):
            late = f"the lease of `{id_}` ended" + (", and another holds it now" if record.holder else "")
            return Denied(0, Refusal("LeaseExpired", late, ref=id_))
        return Denied(0, Refusal("NotLeaseHolder", f"`{id_}` is not leased to you", ref=id_))
    seen = channel.settled.get(id_)
    if seen is not None:
        return Denied(seen.batch, Refusal("AlreadyAcked", f"`{id_}` was settled: {seen.outcome}", ref=id_))
    return Denied(0, Refusal("UnknownEnvelope", f"no envelope `{id_}` is known in `{channel.name}`", ref=id_))


def _unlease(record: Record) -> Consumer:
    """End a record's lease; it is in no state until the caller gives it one."""
    consumer = record.holder
    assert consumer is not None
    del consumer.leases[record.lease]
    record.holder = record.lapsed = None
    record.lease = record.ticket = 0
    channel = record.channel
    channel.leased -= 1
    if channel.ready_order is not None:
        channel.ready_order.free(record)
    return consumer


def _requeue(state: QueueState, now: Now, record: Record, delay_us: int, *, first: bool = False) -> None:
    channel = record.channel
    note_hot(state, now, record)
    if delay_us > 0:
        record.due_wall_us = now.wall_us + delay_us
        channel.make_delayed(record)
        state.timers.arm(now.us + delay_us, record)
    else:
        record.due_wall_us = 0
        channel.make_ready(record, now.us, first=first)


def _backoff_us(state: QueueState, record: Record, failures: int, immediate: int | None = None) -> int:
    """The delay after so many failures, of which the first ones cost none: as many as the policy says, unless given."""
    retry = record.channel.policy.retry
    if retry is None:
        return 0
    failures -= retry.immediate if immediate is None else immediate
    if failures <= 0:
        return 0
    draw = int.from_bytes(state.entropy(2), "big") / 65_535 if retry.jitter else 0.0
    return retry.delay_us(failures, draw)


def _has_failed(record: Record) -> bool:
    """Count a nack or an expiry. Returns whether it was one too many."""
    record.failures += 1
    record.abandoned_row = record.released_row = 0
    limit = record.channel.policy.max_deliveries
    return 0 < limit <= record.failures


def _ended(event: str, record: Record, by: Link, reason: str | None = None) -> Settle:
    """The row of a delivery that ended without an ack, with what a recovery needs to count on."""
    ended = Settle(event, record, by.who, record.attempt, record.first_wall_us, reason, record.due_wall_us)
    ended.failures = None if record.failures == record.attempt else record.failures
    ended.abandoned, ended.token = record.abandoned, by.voucher
    return ended


def nack(
    state: QueueState,
    now: Now,
    consumer: Consumer,
    record: Record,
    delay_us: int | None,
    reason: str | None,
    *,
    backoff: bool = False,
) -> Done:
    """The holder failed: deliver again, at once, after a delay, or (too often) to the dead letters.

    With `backoff` and without a delay the back-off of the channel begins with the first failure.
    """
    _unlease(record)
    record.channel.counters.nack += 1
    record.error = reason
    if _has_failed(record):
        bury(state, now, record, "maxDeliveries", consumer.link)
    else:
        if delay_us is None:
            delay_us = _backoff_us(state, record, record.failures, 0 if backoff else None)
        _requeue(state, now, record, delay_us)
        state.commit_log.facts.append(_ended("nack", record, consumer.link, reason))
    _after(state, now, consumer, 1)
    return Done(state.commit_log.gate)


def release(state: QueueState, now: Now, consumer: Consumer, record: Record) -> Done:
    """The holder gives it back untouched: first in line again, from the sixth time in a row after the back-off. Not a failure."""
    _unlease(record)
    record.released_row += 1
    delay_us = _backoff_us(state, record, record.released_row, IMMEDIATE)
    _give_back(state, now, record, consumer.link, delay_us)
    _after(state, now, consumer, 1)
    return Done(state.commit_log.gate)


def _give_back(state: QueueState, now: Now, record: Record, by: Link, delay_us: int = 0) -> None:
    record.abandoned_row = 0
    record.channel.counters.release += 1
    _requeue(state, now, record, delay_us, first=True)
    state.commit_log.observe_settle(_ended("release", record, by))


def term(state: QueueState, now: Now, consumer: Consumer, record: Record, reason: str | None) -> Done:
    """The holder says it can never be done: to the dead letters."""
    _unlease(record)
    record.error = reason
    bury(state, now, record, "term", consumer.link)
    _after(state, now, consumer, 1)
    return Done(state.commit_log.gate)


def extend(state: QueueState, now: Now, consumer: Consumer, record: Record, lease_us: int) -> Done | Denied:
    """Renew from now; the lease as a whole is bounded."""
    end_us = record.leased_us + state.limits.lease_max_ms * 1000
    deadline_us = min(now.us + (lease_us or consumer.lease_us), end_us)
    if deadline_us <= now.us:
        return Denied(0, Refusal("LeaseExpired", f"`{record.id}` was held for the longest time allowed", ref=record.id))
    state.timers.arm(deadline_us, record)  # a timer of its own; the lease keeps its number, and so its id
    record.deadline_us = deadline_us
    state.commit_log.observe("extend", record, consumer.link.who)
    return Done(0, deadline_us)


def expire_leases(state: QueueState, now: Now, consumer: Consumer, most: int) -> int:
    """Called by the timer of a consumer: expire those leases that are due, `most` of them. Returns how many."""
    due: list[Record] = []
    consumer.ticket = 0
    for record in consumer.leases.values():
        if record.ticket:  # extended: it has a timer of its own
            continue
        if record.deadline_us > now.us or len(due) == most:
            state.timers.arm(record.deadline_us, consumer)
            break
        due.append(record)
    for record in due:
        expire(state, now, record)
    return len(due)


def expire(state: QueueState, now: Now, record: Record) -> None:
    """Its lease is over: the holder was too slow."""
    consumer = record.holder
    assert consumer is not None
    lease_id = state.lease_id(record)
    _unlease(record)
    record.lapsed = consumer
    channel = record.channel
    channel.counters.timeout += 1
    if record.sender == PIPELINE:
        channel.count_own().timeout += 1
    is_over = _has_failed(record)
    state.commit_log.observe_settle(_ended("timeout", record, consumer.link))
    if state.triggers.on_timeout:
        firing.happened(state, now, "on_timeout", record)
    if consumer.expiry_wanted and consumer.link.open:
        state.effects.append(Expire(consumer, record, lease_id))
    if is_over:
        record.error = "lease expired"
        bury(state, now, record, "maxDeliveries", consumer.link)
    else:
        _requeue(state, now, record, _backoff_us(state, record, record.failures))
    _after(state, now, consumer, 1)
    dispatch(state, now, channel)


def abandon(state: QueueState, now: Now, consumer: Consumer, *, is_lost: bool = False) -> None:
    """A subscription ends, or its connection is lost: its leases go back, unless its channel holds them to their end."""
    detach(state, now, consumer)
    if consumer.channel.policy.on_disconnect == "hold":
        return
    state.begin(now, _give_back_all(state, now, consumer, is_lost))


def _give_back_all(state: QueueState, now: Now, consumer: Consumer, is_lost: bool) -> Generator[None, Now, None]:
    """Give back the leases of a consumer, the newest first, as many a turn as it allows."""
    for record in reversed(list(consumer.leases.values())):
        if state.is_spent:
            now = yield
        state.cost += 1
        if record.holder is not consumer:  # it expired, or was settled, in between
            continue
        _unlease(record)
        if is_lost and not state.commit_log.draining:
            _lose(state, now, record, consumer.link)
        else:
            _give_back(state, now, record, consumer.link)
    forget_idle(state, consumer)
    dispatch(state, now, consumer.channel)
    state.rest(consumer.channel, now)


def _lose(state: QueueState, now: Now, record: Record, by: Link) -> None:
    """The connection of its holder ended. Not a failure of the record, but one that ends every consumer must not go round for ever."""
    channel = record.channel
    channel.counters.release += 1
    record.abandoned += 1
    record.abandoned_row += 1
    limit = channel.policy.max_abandoned
    if 0 < limit <= record.abandoned:
        state.commit_log.observe_settle(_ended("release", record, by, "abandoned"))
        record.error = "the connection of its consumer was lost"
        bury(state, now, record, "abandoned", by)
        return
    _requeue(state, now, record, _backoff_us(state, record, record.abandoned_row, IMMEDIATE), first=True)
    state.commit_log.observe_settle(_ended("release", record, by, "abandoned"))


def _may_settle_for(principal: Principal, holder: Consumer) -> bool:
    """A holder settles its own leases; the operator settles any."""
    return principal.operator or principal.name == holder.link.principal.name


def _lease_gone(state: QueueState, principal: Principal, id_: str, lease_id: str, name: str | None) -> Denied:
    """Why a lease id stands for nothing. Other streams may know the same id, so what was leased before comes first."""
    channels = [
        channel
        for channel in state.channels.values()
        if name in (None, channel.name) and principal.allows("subscribe", channel.name)
    ]
    for channel in channels:
        record = channel.live.get(id_)
        if record is not None and record.attempt > 0:
            return Denied(0, Refusal("LeaseExpired", f"lease `{lease_id}` of `{id_}` has ended", ref=id_))
    for channel in channels:
        seen = channel.settled.get(id_)
        if seen is not None:
            gone = Refusal("AlreadyAcked", f"`{id_}` was settled: {seen.outcome}", ref=id_)
            return Denied(seen.batch, gone)
    return Denied(0, Refusal("UnknownEnvelope", f"no envelope `{id_}` is known", ref=id_))


def holder_for(
    state: QueueState, principal: Principal, id_: str, lease_id: str | None, name: str | None
) -> Consumer | Denied:
    """Whose lease a request outside any subscription means: exact by lease id, else the caller's own."""
    if lease_id is not None:
        record = state.lease_of(lease_id)
        is_theirs = record is not None and not principal.meets(record.channel.name)
        if record is not None and record.id == id_ and record.holder is not None and not is_theirs:
            if _may_settle_for(principal, record.holder):
                return record.holder
            return Denied(0, Refusal("NotLeaseHolder", f"`{id_}` is leased to another", ref=id_))
        return _lease_gone(state, principal, id_, lease_id, name)
    assert name is not None
    channel_ = state.find(name)
    if isinstance(channel_, Refusal):
        return Denied(0, channel_)
    record = channel_.live.get(id_)
    if record is not None and record.state == LEASED and record.holder is not None:
        if _may_settle_for(principal, record.holder):
            return record.holder
        return Denied(0, Refusal("NotLeaseHolder", f"`{id_}` is leased to another", ref=id_))
    stranger = Consumer(0, channel_, Link(0, principal, None, 0), 0)
    return _deny(state, channel_, stranger, id_)
