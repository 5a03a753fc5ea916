"""The outcome of a commit: make visible what became durable, and undo what was refused.

The journal may refuse a whole batch, or only its fresh facts when it is short of space: settles free space. A refused record never
existed. A record whose settle was refused is live again and is redelivered, as after a crash. O(facts of the batch).
"""

from __future__ import annotations

from collections import deque

from penstock.core.clock import Now
from penstock.core.queue import taps
from penstock.core.queue.channel import Channel
from penstock.core.queue.deliver import dispatch
from penstock.core.queue.state import QueueState
from penstock.core.queue.views import note_arrivals
from penstock.core.records import GONE, HELD, PENDING, READY, Applied, Fact, Record, Ruled, Settle, is_fresh
from penstock.core.rules import firing, rule_set

SETTLE_RETRY_US = 1_000_000
"""A record whose settle the journal refused is held back this long, or a broken disk would make it spin."""


def committed(
    state: QueueState, now: Now, first_offset: int, refused: str | None = None, recorded_us: int | None = None
) -> None:
    """The oldest batch is durable; with `refused`, all but its fresh facts. Offsets are dense: facts, then observations.

    `recorded_us` is the time of its rows; None if the journal keeps no rows.
    """
    facts = state.commit_log.decide().facts
    if refused is not None:
        _withdraw(state, now, [fact for fact in facts if is_fresh(fact)])
        facts = [fact for fact in facts if not is_fresh(fact)]
    now_us, wall_us = now
    recorded_us = wall_us if recorded_us is None else recorded_us
    touched: dict[Channel, int] = {}
    kept: list[Record] = []
    pending, revived = state.triggers.pending, state.revived
    size = begun = 0
    ready: deque[Record] | None = None
    channel: Channel | None = None
    for offset, record in enumerate(facts, first_offset):
        if type(record) is not Record:
            continue
        record.offset = offset
        record.recorded_us = recorded_us
        if record.channel is not channel:
            if channel is not None:
                touched[channel] = touched.get(channel, 0) + len(kept) - begun
            begun = len(kept)
            channel = record.channel
            ready = channel.ready if type(channel.ready) is deque else None
        kept.append(record)
        if revived:
            revived.pop(record, None)
        if pending:
            pending.pop(record, None)
        if record.state == GONE:  # a rule moved it away in the same commit
            channel.counters.moved += 1
            continue
        size += len(record.body)
        if record.due_wall_us > wall_us:
            channel.make_delayed(record)
            state.timers.arm(now_us + record.due_wall_us - wall_us, record)
        elif ready is not None:
            record.state = READY
            ready.append(record)
        else:
            channel.make_ready(record, now_us)
    if channel is not None:
        touched[channel] = touched.get(channel, 0) + len(kept) - begun
    state.pending_bytes -= size
    note_arrivals(state.views.latest, touched, kept)
    for channel, count in touched.items():
        channel.counters.in_ += count
        channel.rate_in.add(now_us, count)
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
            rule_set.unchange(state, fact)
        elif isinstance(fact, Settle) and fact.fate:
            _spare(state, now, fact.record)
    for channel in restored:  # consumers may have joined meanwhile
        dispatch(state, now, channel)


def _spare(state: QueueState, now: Now, record: Record) -> None:
    """The answer that a record is given up was never sent: the record is delivered again, as after a crash."""
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
    if fact.event == "drop" and fact.reason == "overflow":  # undone newest first, so this restores their order
        channel.make_ready(record, now.us, first=True)
        return
    if fact.event == "dead" and record.fate and record.due_wall_us:
        channel.make_held(record)  # its consumer has the answer that it is given up
    else:
        channel.make_delayed(record)
    state.timers.arm(now.us + SETTLE_RETRY_US, record)
