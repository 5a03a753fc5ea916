"""Enqueue: check a record, number it, and add it to the open batch. It is visible once the journal has it.

Keeps "visible only when durable" and "a duplicate of an uncommitted id waits for the same commit". A refused
request changes nothing; an array is taken whole or not at all. O(1) a record.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.queue.channel import Channel
from penstock.core.queue.state import QueueState
from penstock.core.records import PENDING, Record, Settle
from penstock.core.rules import firing
from penstock.core.rules.rule_set import Cascade
from penstock.core.scopes import PIPELINE

RETRY_FULL_MS = 1_000
"""Retry hint for a producer when a stream is full."""
RETRY_WRITE_MS = 50
"""Retry hint while an earlier request with the same ids is being written: a few commits."""

DROP_MAX = 8_192
"""Envelopes that one request may make a stream drop: about 20 ms."""


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
    for record in fresh:
        record.channel = channel
        record.arrived_us = now.us
        live[record.id] = record
    if fresh[0].sender == PIPELINE:  # only whole batches are the pipeline's
        channel.count_own()
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
            if len(victims) > DROP_MAX:
                return Refusal(
                    "TooLarge",
                    f"stream `{channel.name}` would drop more than {DROP_MAX} envelopes at once",
                    ref=channel.name,
                    hint="send less at once, or raise the stream's `maxDepth` or `maxBytes`",
                )
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
        channel.take_out(len(victims))
    for record in victims:
        if channel.ready_order is not None:
            channel.ready_order.remove(record)
        channel.counters.drop += 1
        state.settle(record, "dropped", now)
        state.commit_log.facts.append(
            Settle("drop", record, None, record.attempt, record.first_wall_us, reason="overflow")
        )
