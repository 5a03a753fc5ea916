"""Moving records between channels: dead letters and redrive; and dropping records: all that wait, or some by id.

A record that moves is held at its origin while a `Send` takes a copy to the other channel. The origin settles it only when the copy
is accepted, in the same commit. So a full dead-letter channel loses nothing: the record stays held and is retried.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.effects import Job, Send
from penstock.core.errors import Refusal
from penstock.core.links import Link
from penstock.core.queue.channel import Channel
from penstock.core.queue.deliver import dispatch
from penstock.core.queue.enqueue import RETRY_WRITE_MS, admit, enqueue
from penstock.core.queue.state import Cause, QueueState
from penstock.core.records import DELAYED, HELD, LEASED, PENDING, READY, Record, Settle
from penstock.core.rules import firing
from penstock.core.rules.rule_set import Firing
from penstock.core.steps import STEP_COST
from penstock.core.tenants import dead_name, home_name, is_dead

BODY_UNIT, WINDOW_UNIT = 128, 250
"""Bytes of a body, and remembered ids, that each cost as much as a record of a plain stream."""
BURIED_UNIT = 4 * 1024
"""Bytes of a body that is buried, likewise."""
HELD_RETRY_US = 1_000_000
"""How often a record is offered to a dead-letter channel that was full."""


def bury(state: QueueState, now: Now, record: Record, reason: str, by: Link) -> None:
    """A record has failed for good. In a dead-letter channel it ends here, elsewhere it moves to one."""
    channel = record.channel
    if is_dead(channel.name):
        channel.counters.dead += 1
        ended = Settle("dead", record, by.who, record.attempt, record.first_wall_us, reason, error=record.error)
        ended.token = by.voucher
        state.commit_log.facts.append(ended)
        state.settle(record, "dead", now)
        if state.triggers.on_dead:
            firing.happened(state, now, "on_dead", record)
        return
    channel.make_held(record)
    record.fate = reason
    record.due_wall_us = 0
    letter = offer(state, record, by)
    if state.triggers.on_dead:
        firing.happened(state, now, "on_dead", record, letter.body)


def offer(state: QueueState, record: Record, by: Link | None = None) -> Record:
    """Ask for a held record to be taken by its dead-letter channel. Returns it as it would be there."""
    channel = record.channel
    state.cost += 1 + len(record.body) // BURIED_UNIT
    cause = Cause(record.fate, channel.name, record.attempt, record.first_wall_us, record.error)
    letter = Record(
        record.id, record.kind, state.wrapping.bury(record.body, cause), record.sender, record.corr, reserved=True
    )
    peer, token = (None, None) if by is None else (by.who, by.voucher)
    state.effects.append(Send(dead_name(channel.name), letter, record, "dead", record.fate, peer, token))
    return letter


def accept(state: QueueState, now: Now, send: Send) -> Refusal | None:
    """Take a record that another channel sends here. The same bytes, live here under its id, are the record itself."""
    if send.firing is not None:
        return _accept_from_rule(state, now, send, send.firing)
    channel = state.open_channel(send.channel, moving=True)
    if isinstance(channel, Refusal):
        return channel
    record = send.record
    twin = channel.live.get(record.id)
    if twin is not None:
        if send.event == "dead" and twin.body == record.body:
            return None
        return Refusal("IdConflict", f"`{record.id}` is in `{channel.name}` already", ref=record.id)
    policy = channel.policy
    size = len(record.body)
    if len(channel.live) >= policy.max_depth or channel.bytes + size > policy.max_bytes:
        return Refusal("StreamFull", f"stream `{channel.name}` is full", ref=channel.name)
    seen = channel.settled.get(record.id)
    if seen is not None:
        if seen.batch > state.commit_log.decided:
            return Refusal("IdConflict", f"`{record.id}` is just being settled in `{channel.name}`", ref=record.id)
        channel.unsettle(record.id)
        state.ids -= 1
        state.revived[record] = seen
    state.sort(channel, [record])
    admit(state, now, channel, [record], size)
    if channel.holding is not None:
        channel.holding.regain(size)  # what it came from is counted out with the next count
    return None


def _accept_from_rule(state: QueueState, now: Now, send: Send, firing: Firing) -> Refusal | None:
    """Take what a rule sends, as if it had been enqueued. An id that is known came from the same source before."""
    if send.event == "move" and (send.origin.state != PENDING or send.origin.batch != state.commit_log.gate):
        return Refusal("NotLeaseHolder", f"`{send.origin.id}` has been moved already", ref=send.origin.id)
    if send.event == "move" and send.channel == send.origin.channel.name:
        return Refusal("IdConflict", f"`{send.origin.id}` is in `{send.channel}` already", ref=send.origin.id)
    admitted = enqueue(state, now, send.channel, [send.record], cascade=send.cascade)
    if isinstance(admitted, Refusal):
        if admitted.code != "IdConflict" or send.record.id == send.origin.id:
            return admitted
        firing.known += 1
    elif admitted.duplicates:
        if send.event == "move" and admitted.gate > state.commit_log.decided and admitted.gate != state.commit_log.gate:
            # Were that commit refused and this one not, the envelope would be nowhere: it stays where it is.
            busy = f"an earlier commit that brings `{send.record.id}` to `{send.channel}` is being written"
            return Refusal("JournalUnavailable", busy, ref=send.record.id, retry_after_ms=RETRY_WRITE_MS)
        firing.known += 1
    else:
        state.triggers.pending[send.record] = firing
    return None


def sent(state: QueueState, now: Now, send: Send, refusal: Refusal | None) -> None:
    """The other channel has answered: settle the origin, or keep it."""
    if send.firing is not None:
        firing.answered(state, now, send, refusal)
        return
    record = send.origin
    channel = record.channel
    if refusal is None:
        channel.leave(record)
        is_buried = send.event == "dead"
        channel.counters.dead += is_buried
        channel.counters.moved += not is_buried
        moved = Settle(send.event, record, send.peer, record.attempt, record.first_wall_us, send.reason)
        moved.token, moved.error = send.token, record.error if is_buried else None
        state.commit_log.facts.append(moved)
        state.settle(record, "dead" if is_buried else "moved", now)
        if send.job is not None:
            send.job.moved += 1
            _finish(state, now, channel, send.job)
        return
    if send.event == "dead":
        state.totals.dead_blocked += 1
        if record.due_wall_us == 0:
            # The consumer may get the answer that it was given up, so it must not be delivered again, not even after a crash.
            record.due_wall_us = now.wall_us
            blocked = Settle("nack", record, None, record.attempt, record.first_wall_us, record.error)
            blocked.fate = record.fate
            state.commit_log.facts.append(blocked)
        state.timers.arm(now.us + HELD_RETRY_US, record)
        return
    assert send.job is not None
    send.job.kept.append(record)
    _finish(state, now, channel, send.job)


def _finish(state: QueueState, now: Now, channel: Channel, job: Job) -> None:
    """Once every send of a redrive is answered, put what found no room back in its place, in one pass."""
    if not job.kept or job.moved + len(job.kept) < job.count:
        return
    channel.held -= len(job.kept)
    channel.put_back(job.kept, now.us, is_chosen=job.is_chosen)
    dispatch(state, now, channel)


def begin_redrive(
    state: QueueState, now: Now, name: str, limit: int, ids: Iterable[str] | None = None
) -> Job | Refusal:
    """Hold the dead letters that go back, the oldest ones or those with the given ids; `send_back` sends them."""
    channel = state.find(dead_name(name))
    if isinstance(channel, Refusal):
        hint = "an envelope comes there by `term`, or after `maxDeliveries`"
        return Refusal("UnknownStream", f"there are no dead letters in `{dead_name(name)}`", ref=name, hint=hint)
    state.rest(channel, now)
    taken = channel.take_out(limit) if ids is None else _take_chosen(channel, ids)
    if isinstance(taken, Refusal):
        return taken
    return Job(waiting=_hold(channel, taken), count=len(taken), is_chosen=ids is not None)


def send_back(state: QueueState, job: Job) -> None:
    """Send the next dead letters of a job, as many as one turn allows: each leaves the window of its stream in O(window)."""
    home = state.channels.get(home_name(job.waiting[0].channel.name)) if job.waiting else None
    each = 1 + (0 if home is None else len(home.order) // WINDOW_UNIT)
    cost = count = 0
    while cost < STEP_COST and count < len(job.waiting):
        cost += each + len(job.waiting[count].body) // BODY_UNIT
        count += 1
    letters, job.waiting = job.waiting[:count], job.waiting[count:]
    for record in letters:
        back = Record(
            record.id, record.kind, state.wrapping.revive(record.body), record.sender, record.corr, reserved=True
        )
        state.effects.append(Send(home_name(record.channel.name), back, record, "move", "redrive", job=job))


def _hold(channel: Channel, records: list[Record]) -> list[Record]:
    for record in records:
        channel.make_held(record)
        record.fate = ""  # it does not go to the dead letters
    return records


class Purge(msgspec.Struct, eq=False):
    """Records that a purge holds. Nothing is dropped before all of them are held."""

    channel: Channel
    records: list[Record] = []
    ready: int = 0
    """How many of them were ready."""


def begin_purge(channel: Channel, step: int) -> Generator[None, Any, Purge]:
    """Hold what is ready or delayed now, so many records a step. Leases go on."""
    job, newest, left = Purge(channel), channel.seq, len(channel.ready)
    delayed = [record for record in channel.live.values() if record.state == DELAYED] if channel.delayed else []
    for start in range(0, max(left, len(delayed)), step):
        if start:
            yield
        taken = channel.take_out(min(step, max(left - start, 0)))
        if fresh := [record for record in taken if record.seq > newest]:  # a consumer took some of those before
            channel.put_back(fresh, 0, is_chosen=True)
            taken = [record for record in taken if record.seq <= newest]
        job.ready += len(taken)
        channel.doomed += len(taken)
        for record in [record for record in delayed[start : start + step] if record.state == DELAYED]:
            channel.undelay(record)
            record.ticket = 0
            taken.append(record)
        job.records += _hold(channel, taken)
    return job


def purge_part(state: QueueState, now: Now, job: Purge, start: int, count: int) -> None:
    """Drop so many held records as facts. With the first part, figures count all of them as dropped."""
    channel = job.channel
    if start == 0:
        channel.held -= len(job.records)
        channel.doomed -= job.ready
        channel.counters.purged += len(job.records)
    for record in job.records[start : start + count]:
        state.commit_log.facts.append(Settle("purge", record, None, record.attempt, record.first_wall_us))
        state.settle(record, "purged", now)
    state.rest(channel, now)


def drop(state: QueueState, now: Now, channel: Channel, ids: Iterable[str], peer: str) -> int | Refusal:
    """Purge ready or delayed records by their ids, all of them or none. `peer` is the party that asked."""
    chosen = _take_chosen(channel, ids)
    if isinstance(chosen, Refusal):
        return chosen
    for record in chosen:
        channel.counters.purged += 1  # `drop` counts what a full stream loses
        reason = "requested"
        state.commit_log.facts.append(Settle("purge", record, peer, record.attempt, record.first_wall_us, reason))
        state.settle(record, "purged", now)
    dispatch(state, now, channel)  # a dropped record may have blocked others of its key
    state.rest(channel, now)
    return len(chosen)


def _take_chosen(channel: Channel, ids: Iterable[str]) -> list[Record] | Refusal:
    """Take out the ready or delayed records with these ids; none, and a refusal, if one of them does not wait here."""
    found = []
    for id_ in dict.fromkeys(ids):
        record = channel.live.get(id_)
        if record is not None and record.state in (READY, DELAYED):
            found.append(record)
        elif record is not None and record.state == LEASED:
            return Refusal("EnvelopeLeased", f"`{id_}` is leased to a consumer", ref=id_)
        elif record is not None and record.state == HELD and record.fate:
            hint = f"make room in `{dead_name(channel.name)}`"
            return Refusal("StreamFull", f"`{id_}` waits for room in the dead letters", ref=id_, hint=hint)
        else:  # unknown, not committed, or a purge or a redrive has taken it
            hint = "`penstock where ID` shows every stream that holds an id"
            return Refusal("UnknownEnvelope", f"`{id_}` does not wait in `{channel.name}`", ref=id_, hint=hint)
    channel.take_chosen({record for record in found if record.state == READY})
    for record in found:
        if record.state == DELAYED:
            channel.undelay(record)
        record.ticket = record.due_wall_us = 0
    return found
