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
    if channel.settled:
        state.ids -= channel.trim(now.us, state.commit_log.decided)
    found = _find_duplicates(state, channel, records)
    if isinstance(found, Refusal):
        channel.counters.reject += counted * (found.code == "IdConflict")
        leave(state, now, channel, is_new)
        return found
    fresh, seqs, duplicates, gate = found
    if fresh:
        refusal = state.sort(channel, fresh) if channel.ready_order is not None else None
        size = sum([len(record.body) for record in fresh])
        rules = state.triggers.on_insert
        if rules and refusal is None:
            size += firing.enrich(state, now, channel, fresh)
        refusal = refusal or _make_room(state, now, channel, len(fresh), size)
        if refusal is not None:
            channel.counters.reject += len(fresh) * counted
            leave(state, now, channel, is_new)
            return refusal
        gate = state.commit_log.gate
        admit(state, now, channel, fresh, size)
        if rules:
            firing.inserted(state, now, channel, fresh, cascade)
    if duplicates is not None:
        channel.counters.dup += len(duplicates)
    state.rest(channel, now)
    return Admitted(gate, seqs, duplicates)


def _find_duplicates(
    state: QueueState, channel: Channel, records: list[Record]
) -> tuple[list[Record], list[int], list[str] | None, int] | Refusal:
    """The new ones of these records, the numbers of all, the ids of the others and the commit that those wait for."""
    live, settled, log = channel.live, channel.settled, state.commit_log
    own = {record.id: record for record in records}
    if len(own) == len(records) and live.keys().isdisjoint(own) and settled.keys().isdisjoint(own):
        return records, list(range(channel.seq + 1, channel.seq + len(records) + 1)), None, 0
    own.clear()
    seqs: list[int] = []
    duplicates: list[str] = []
    gate = 0
    is_split = False
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
            own[id_] = record
            record.seq = channel.seq + len(own)
            record.batch = log.gate
            seqs.append(record.seq)
            continue
        if not same:
            return Refusal("IdConflict", f"id `{id_}` was used before with other content", ref=id_)
        is_split |= batch != 0 and gate not in (0, batch)
        duplicates.append(id_)
        seqs.append(seq)
        gate = max(gate, batch)
    if is_split or (own and gate not in (0, log.gate)):
        # One answer cannot wait for two commits that may end differently.
        busy = "an earlier request with some of these ids is being written"
        return Refusal("JournalUnavailable", busy, ref=channel.name, retry_after_ms=RETRY_WRITE_MS)
    return list(own.values()), seqs, duplicates, gate


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
    """Number checked records and take them in as pending, into the open batch."""
    live, now_us, gate = channel.live, now.us, state.commit_log.gate
    seq = channel.seq
    for record in fresh:
        seq += 1
        record.seq = seq
        record.batch = gate
        record.channel = channel
        record.arrived_us = now_us
        live[record.id] = record
    if fresh[0].sender == PIPELINE:  # only whole batches are the pipeline's
        channel.count_own()
    channel.seq = seq
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
