"""Intake: a record is checked, numbered, proposed to the journal, and visible once that has it.

Keeps "visible only when durable" and "a duplicate of an uncommitted id waits for the same commit". A refused
request changes nothing; an array is taken whole or not at all. O(1) a record.
"""

from __future__ import annotations

from collections import deque
from zlib import crc32

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.queue import taps
from penstock.core.queue.channel import Channel
from penstock.core.queue.deliver import dispatch
from penstock.core.queue.ready_order import take_out
from penstock.core.queue.state import QueueState
from penstock.core.queue.views import note_arrivals
from penstock.core.records import GONE, HELD, PENDING, READY, Applied, Fact, Record, Ruled, Settle, is_fresh
from penstock.core.rules import firing
from penstock.core.rules.firing import Cascade

RETRY_FULL_MS = 1_000
"""What a producer is told to wait when a stream is full: about one look of a person."""
RETRY_WRITE_MS = 50
"""What a producer is told to wait for an earlier request of its own: a few commits."""
SETTLE_RETRY_US = 1_000_000
"""A record whose settle the journal refused is held back this long, or a broken disk would make it spin."""


class Admitted(msgspec.Struct, gc=False):
    """The answer to an enqueue, good once `gate` is committed."""

    gate: int
    seqs: list[int]
    duplicates: list[str] | None = None


def enqueue(
    state: QueueState,
    now: Now,
    name: str,
    records: list[Record],
    *,
    counted: bool = True,
    cascade: Cascade | None = None,
) -> Admitted | Refusal:
    """Admit records to a channel, or none of them. A caller that will offer them one by one does not count refusals.

    With a cascade they come from a rule: consequences of what was taken before, which a shutdown does not refuse.
    """
    if state.commit_log.draining and cascade is None:
        return Refusal("Draining", "the server is shutting down and takes nothing new")
    is_new = not state.known(name)
    channel = state.open_channel(name)
    if isinstance(channel, Refusal):
        return channel
    live = channel.live
    settled = channel.settled
    fresh: list[Record] = []
    size = 0
    seqs: list[int] = []
    duplicates: list[str] | None = None
    gate = 0
    is_split = False
    own: dict[str, Record] = {}
    log = state.commit_log
    open_gate = log.gate
    if settled:
        state.ids -= channel.trim(now.us, log.decided)
    for record in records:
        id_ = record.id
        twin = live.get(id_) or own.get(id_)
        if twin is not None:
            same = is_same(twin, record.body)
            seq, batch = twin.seq, twin.batch if twin.state == PENDING else 0
        elif (seen := settled.get(id_)) is not None:
            same = seen.check == crc32(record.body)
            # A rule may have moved it away in the commit that brings it: then that is what to wait for.
            is_born = seen.outcome != "moved" or seen.batch <= log.decided
            seq, batch = seen.seq, 0 if is_born else seen.batch
        else:
            fresh.append(record)
            own[id_] = record
            size += len(record.body)
            record.seq = channel.seq + len(fresh)
            record.batch = open_gate
            seqs.append(record.seq)
            continue
        if batch and gate not in (0, batch):
            is_split = True
        if not same:
            channel.counters.reject += counted
            leave(state, now, channel, is_new)
            return Refusal("IdConflict", f"id `{id_}` was used before with other content", ref=id_)
        if duplicates is None:
            duplicates = []
        duplicates.append(id_)
        seqs.append(seq)
        gate = max(gate, batch)
    if is_split or (fresh and gate not in (0, open_gate)):
        # One answer cannot wait for two commits that may end differently.
        leave(state, now, channel, is_new)
        busy = "an earlier request with some of these ids is being written"
        return Refusal("JournalUnavailable", busy, ref=name, retry_after_ms=RETRY_WRITE_MS)
    if fresh:
        refusal = state.sort(channel, fresh) if channel.ready_order is not None else None
        rules = state.triggers.on_insert
        if rules and refusal is None:
            size += firing.enrich(state, now, channel, fresh)
        refusal = refusal or _make_room(state, now, channel, len(fresh), size)
        if refusal is not None:
            channel.counters.reject += len(fresh) * counted
            leave(state, now, channel, is_new)
            return refusal
        gate = open_gate
        admit(state, now, channel, fresh, size)
        if rules:
            firing.inserted(state, now, channel, fresh, cascade)
    if duplicates is not None:
        channel.counters.dup += len(duplicates)
    state.rest(channel, now)
    return Admitted(gate, seqs, duplicates)


def is_same(twin: Record, body: bytes) -> bool:
    """Whether these are the bytes that a live record came with."""
    return twin.body == body if twin.check is None else twin.check == crc32(body)


def leave(state: QueueState, now: Now, channel: Channel, is_new: bool) -> None:
    """A refused request makes no stream, and keeps none awake."""
    if is_new:
        state.drop_channel(channel)
    else:
        state.rest(channel, now)


def admit(state: QueueState, now: Now, channel: Channel, fresh: list[Record], size: int) -> None:
    """Take checked and numbered records in as pending, into the open batch."""
    live = channel.live
    now_us, wall_us = now
    for record in fresh:
        record.channel = channel
        record.arrived_us = now_us
        record.arrived_wall_us = wall_us
        live[record.id] = record
    channel.seq = fresh[-1].seq
    channel.bytes += size
    state.bytes += size
    state.pending_bytes += size
    state.commit_log.facts += fresh


def _make_room(state: QueueState, now: Now, channel: Channel, count: int, size: int) -> Refusal | None:
    """Check every bound before anything changes; with `drop-oldest`, make the room."""
    limits = state.limits
    policy = channel.policy
    if state.pending_bytes + size > limits.pending_max or state.bytes + size > limits.memory_max:
        return overload(state, size)
    if len(channel.live) + count <= policy.max_depth and channel.bytes + size <= policy.max_bytes:
        return None if channel.holding is None else state.tenants.admit(now, channel, count, size)
    victims = overflowing(channel, count, size)
    refusal = victims if isinstance(victims, Refusal) else state.tenants.admit(now, channel, count, size)
    if refusal is not None:
        return refusal
    assert isinstance(victims, list)
    drop(state, now, channel, victims)
    return None


def overload(state: QueueState, size: int) -> Refusal | None:
    """Why the server as a whole cannot take so many bytes more."""
    limits = state.limits
    if state.pending_bytes + size > limits.pending_max:
        return Refusal("JournalUnavailable", "the journal is behind", retry_after_ms=RETRY_FULL_MS)
    if state.bytes + size > limits.memory_max:
        return Refusal(
            "QuotaExceeded",
            f"all streams together hold {state.bytes} bytes and `limits.memory_max` allows no more",
            retry_after_ms=RETRY_FULL_MS,
        )
    return None


def overflowing(channel: Channel, count: int, size: int) -> list[Record] | Refusal:
    """The records that have to go before so much fits into a channel; it must not be filled beyond its bounds."""
    policy = channel.policy
    depth_over = len(channel.live) + count - policy.max_depth
    bytes_over = channel.bytes + size - policy.max_bytes
    victims: list[Record] = []
    if policy.overflow == "drop-oldest" and count <= policy.max_depth and size <= policy.max_bytes:
        for record in channel.ready if channel.ready_order is None else channel.ready_order.expendable():
            if depth_over <= 0 and bytes_over <= 0:
                break
            victims.append(record)
            depth_over -= 1
            bytes_over -= len(record.body)
    if depth_over > 0 or bytes_over > 0:
        what = "maxDepth" if depth_over > 0 else "maxBytes"
        bound = policy.max_depth if depth_over > 0 else policy.max_bytes
        return Refusal(
            "StreamFull",
            f"stream `{channel.name}` is at its `{what}` of {bound}",
            ref=channel.name,
            retry_after_ms=RETRY_FULL_MS,
        )
    return victims


def drop(state: QueueState, now: Now, channel: Channel, victims: list[Record]) -> None:
    """Drop ready records of a channel that `overflowing` found: of a plain line the first ones."""
    if channel.ready_order is None:
        take_out(channel.ready, len(victims))
    for record in victims:
        if channel.ready_order is not None:
            channel.ready_order.remove(record)
        channel.counters.drop += 1
        state.settle(record, "dropped", now)
        state.commit_log.facts.append(
            Settle("drop", record, None, record.attempt, record.first_wall_us, reason="overflow")
        )


def committed(state: QueueState, now: Now, first_offset: int, refused: str | None = None) -> None:
    """The oldest proposed batch is durable; with `refused`, all but its fresh facts.

    Offsets are dense over what was kept, facts first, then observations.
    """
    batch = state.commit_log.decide()
    offset = first_offset
    touched: dict[Channel, int] = {}
    kept: list[Record] = []
    for fact in batch.facts:
        if refused is not None and is_fresh(fact):
            continue
        if isinstance(fact, Record):
            fact.offset = offset
            kept.append(fact)
        offset += 1
    if refused is not None:
        _withdraw(state, now, [fact for fact in batch.facts if is_fresh(fact)])
    if state.revived:
        for record in kept:
            state.revived.pop(record, None)
    now_us, wall_us = now
    pending = state.triggers.pending
    for record in kept:
        channel = record.channel
        touched[channel] = touched.get(channel, 0) + 1
        if pending:
            pending.pop(record, None)
        if record.state == GONE:  # a rule moved it away in the same commit
            channel.counters.moved += 1
            continue
        state.pending_bytes -= len(record.body)
        if record.due_wall_us > wall_us:
            channel.make_delayed(record)
            state.timers.arm(now.us + record.due_wall_us - wall_us, record)
        else:
            ready = channel.ready
            if isinstance(ready, deque):
                record.state = READY
                ready.append(record)
            else:
                channel.make_ready(record, now_us)
    note_arrivals(state.views.latest, touched, kept)
    for channel, count in touched.items():
        channel.counters.in_ += count
        channel.rate_in.add(now.us, count)
        channel.last_wall_us = wall_us
        dispatch(state, now, channel)
    if state.taps:
        taps.show(state, kept)


def refused(state: QueueState, now: Now) -> None:
    """The oldest proposed batch was refused whole: undo it, newest first."""
    _withdraw(state, now, state.commit_log.decide().facts)


def _withdraw(state: QueueState, now: Now, facts: list[Fact]) -> None:
    restored: dict[Channel, None] = {}
    for fact in reversed(facts):
        if isinstance(fact, Record):
            channel = fact.channel
            fired = state.triggers.pending.pop(fact, None)
            if fired is not None:
                firing.withdrawn(state, now, fired)
            channel.forget(fact)
            seen = state.revived.pop(fact, None)
            if seen is not None:
                channel.resettle(fact.id, seen)
                state.ids += 1
            state.bytes -= len(fact.body)
            state.pending_bytes -= len(fact.body)
            state.totals.records_refused += 1
            state.rest(channel, now)
        elif isinstance(fact, Settle) and fact.event != "nack" and fact.record.state == GONE:
            _restore(state, now, fact)
            if fact.record.state != PENDING:
                restored[fact.record.channel] = None
        elif isinstance(fact, Applied):
            state.forget_applied(fact)
        elif isinstance(fact, Ruled):
            firing.unchange(state, fact)
        elif isinstance(fact, Settle) and fact.fate:
            _spare(state, now, fact.record)
    for channel in restored:  # somebody may have come to wait for them meanwhile
        dispatch(state, now, channel)


def _spare(state: QueueState, now: Now, record: Record) -> None:
    """Nobody was told that a record is given up: it is not, and will be delivered again, as after a crash."""
    record.due_wall_us = 0
    if record.state == HELD:
        record.channel.leave(record)
        record.channel.make_delayed(record)
        state.timers.arm(now.us + SETTLE_RETRY_US, record)


_UNDO = {"ack": "ack", "dead": "dead", "drop": "drop", "purge": "purged", "move": "moved"}


def _restore(state: QueueState, now: Now, fact: Settle) -> None:
    """A settle did not become durable: the record is live again, and will be delivered again."""
    record = fact.record
    channel = record.channel
    ids_before = len(channel.order)
    channel.recall(record)
    state.ids += len(channel.order) - ids_before
    state.bytes += len(record.body)
    if channel.holding is not None:
        channel.holding.regain(len(record.body))
    if fact.event == "move" and fact.fresh:  # it is refused together with the record itself, and next
        record.state = PENDING
        state.pending_bytes += len(record.body)
        return
    name = _UNDO[fact.event]
    setattr(channel.counters, name, getattr(channel.counters, name) - 1)
    state.totals.settles_refused += 1
    if fact.event == "drop":  # undone newest first, so this restores their order
        channel.make_ready(record, now.us, first=True)
        return
    if fact.event == "dead" and record.fate and record.due_wall_us:
        channel.make_held(record)  # it had been told that this one is given up
    else:
        channel.make_delayed(record)
    state.timers.arm(now.us + SETTLE_RETRY_US, record)
