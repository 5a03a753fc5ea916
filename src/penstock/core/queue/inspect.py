"""Looking at a queue without touching it: numbers, rows, where an id is, and why nothing flows.

Reads only. A look at one channel is O(1) or O(rows asked for), except a page of `peek`, which is O(records), and `where`,
which asks every channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from penstock.core.clock import Now, rfc3339
from penstock.core.health import NEEDED
from penstock.core.links import Link
from penstock.core.queue.channel import Channel
from penstock.core.queue.counters import Counters
from penstock.core.queue.hot import HINT, describe, hot_records
from penstock.core.queue.ready_order import KeyedOrder
from penstock.core.queue.state import QueueState
from penstock.core.records import DELAYED, HELD, LEASED, PENDING, READY, STATE_NAMES, Record
from penstock.core.tenants import dead_name

Row = dict[str, Any]
AGENTS_SHOWN = 4
"""Consumers of a stream whose agents its figures name; `explain` has the others."""
CUTS_MAX = 1_000
"""Streams that remember a reader that was disconnected."""
CUT_SHOWN_MS = 300_000
"""How long `explain` names it."""


def _ms(us: int) -> float:
    return round(us / 1000, 3)


def stats(state: QueueState, now: Now, channel: Channel) -> Row:
    """The seed's figures of one stream, and the rest that a person asks for next."""
    p50, p95, p99 = channel.latencies.percentiles_us(now.us, (0.50, 0.95, 0.99))
    oldest = next((r for r in channel.live.values() if r.state != PENDING), None)
    return {
        "depth": channel.depth,
        "inflight": channel.leased,
        "rateIn": channel.rate_in.per_second(now.us),
        "rateOut": channel.rate_out.per_second(now.us),
        "latP50": _ms(p50),
        "latP95": _ms(p95),
        "latP99": _ms(p99),
        "lastTs": channel.last_wall_us,
        "delayed": channel.postponed,
        "bytes": channel.bytes,
        "consumers": len(channel.consumers),
        "credit": sum(consumer.credit for consumer in channel.consumers.values()),
        "agents": list(dict.fromkeys(one.link.who for one in islice(channel.consumers.values(), AGENTS_SHOWN))),
        "seq": channel.seq,
        "hot": len(hot_records(state, channel)),
        "oldestMs": _ms(now.us - oldest.arrived_us) if oldest is not None else 0,
    }


def metrics(state: QueueState, now: Now, channel: Channel) -> Row:
    """Counters by the seed's names; invariant 2 holds over them at any instant."""
    return _named(channel.counters, channel.depth, channel.leased, channel.postponed)


def _named(count: Counters, depth: int, leased: int, delayed: int) -> Row:
    counters = {f"q.{name}": value for name, value in msgspec.to_builtins(count).items()}
    return counters | {"q.depth": depth, "q.if": leased, "q.delayed": delayed}


def overview(state: QueueState, channels: Iterable[Channel], *, asleep: Iterable[Counters] = ()) -> Row:
    """The same of several channels together, and of what those counted that sleep. O(channels)."""
    counts, depth, leased, delayed = Counters(), 0, 0, 0
    rows = []
    for channel in channels:
        rows.append(msgspec.structs.astuple(channel.counters))
        depth += channel.depth
        leased += channel.leased
        delayed += channel.postponed
    rows += map(msgspec.structs.astuple, asleep)
    if rows:
        counts = Counters(*map(sum, zip(*rows, strict=True)))
    return _named(counts, depth, leased, delayed)


def place(state: QueueState, now: Now, record: Record) -> Row:
    """Where a live record stands."""
    row: Row = {
        "stream": record.channel.name,
        "state": STATE_NAMES[record.state],
        "seq": record.seq,
        "attempt": record.attempt,
    }
    if record.state == LEASED and record.holder is not None:
        link = record.holder.link
        row |= {"holder": record.holder.holder_name, "agent": link.who, "peer": link.peer or None}
        row["leaseExpiresAt"] = (now.wall_us + record.deadline_us - now.us) // 1000
    elif record.state == DELAYED and record.due_wall_us:
        row["dueAt"] = record.due_wall_us // 1000
    if record.error:
        row["lastError"] = record.error
    return row


_PEEK_STATES = {"ready": (READY,), "inflight": (LEASED,), "delayed": (DELAYED, HELD)}


def peek(
    state: QueueState, now: Now, channel: Channel, which: str, limit: int, after: int | None = None
) -> list[Record]:
    """Up to `limit` records of one state, next first; with `after`, those with a greater number, in the order of numbers."""
    if which == "dead":
        dead = state.channels.get(dead_name(channel.name))
        return [] if dead is None else peek(state, now, dead, "ready", limit, after)
    found = (record for record in channel.live.values() if record.state in _PEEK_STATES[which])
    if after is None:
        return list(islice(channel.ready if which == "ready" else found, limit))
    return nsmallest(limit, (record for record in found if record.seq > after), key=attrgetter("seq"))


def where(state: QueueState, now: Now, id_: str, names: Iterable[str] | None = None) -> list[Row]:
    """Which of these streams, or of all, hold an id or remember it. O(streams)."""
    rows: list[Row] = []
    for name in [*state.channels, *state.dormant] if names is None else names:
        channel = state.channels.get(name)
        record = None if channel is None else channel.live.get(id_)
        if record is not None:
            if record.state != PENDING:
                rows.append(place(state, now, record))
            continue
        known = channel or state.dormant.get(name)
        seen = None if known is None else known.settled.get(id_)
        if seen is not None:
            rows.append({"stream": name, "state": "settled", "seq": seen.seq, "outcome": seen.outcome})
    return rows


def note_cut(state: QueueState, now: Now, link: Link, size: int, bound: str) -> None:
    """A peer was disconnected because it did not read: say so to those who look at its channels."""
    who = f"`{link.name()}`"
    why = f"{who} was disconnected: {size} bytes were unread, and `limits.{bound}` allows no more"
    row = {"code": "reader_cut", "message": why, "at": now.wall_us // 1000, "bytes": size}
    for name in [*(consumer.channel.name for consumer in link.consumers), *link.taps]:
        state.cuts.pop(name, None)
        state.cuts[name] = row
    for name in list(state.cuts)[:-CUTS_MAX]:
        del state.cuts[name]


def explain(state: QueueState, now: Now, channel: Channel) -> Row:
    """Why nothing flows, or that it does, in words that say what to do."""
    reasons: list[Row] = []
    policy = channel.policy
    consumers = list(channel.consumers.values())
    hot = hot_records(state, channel)
    able = [c for c in consumers if c.credit > 0 and c.link.room > 0]

    def because(code: str, message: str, **more: Any) -> None:
        reasons.append({"code": code, "message": message, **more})

    if state.commit_log.draining:
        because("draining", "the server is shutting down and delivers nothing more")
    for name, part in state.health.parts.items():
        if name in NEEDED and part.state == "failed":
            because(f"{name}.failed", f"{part.reason}; {part.action}", since=rfc3339(part.since_us))
    if channel.ready:
        if not consumers:
            because("no_consumer", "no consumer is subscribed; start one, or pull")
        elif not able:
            dry = [c for c in consumers if c.credit <= 0]
            if dry:
                because("no_credit", "no consumer has credit; grant some", consumers=len(dry))
            if len(dry) < len(consumers):
                slow = [c.holder_name for c in consumers if c.credit > 0]
                why = f"consumers have credit but do not read: {', '.join(slow[:AGENTS_SHOWN])}"
                because("slow_consumer", why, consumers=len(slow))
        if isinstance(channel.ready_order, KeyedOrder) and any(channel.ready_order.blocked):
            count, keys = channel.ready_order.blocked
            why = "envelopes wait for another of their partition key, which is leased or delayed; settle it"
            if any(record.state == DELAYED for record in hot):
                why = "envelopes wait for another of their partition key, which waits for its next redelivery"
            because("key_blocked", why, count=count, keys=keys)
        if policy.max_inflight and channel.leased >= policy.max_inflight:
            because("max_inflight", f"`maxInflight` of {policy.max_inflight} is reached; settle something")
    elif channel.leased:
        soonest = min((r.deadline_us for c in state.consumers.values() for r in c.leases.values()
                       if r.channel is channel), default=now.us)  # fmt: skip
        because("all_leased", "every envelope is with a consumer", nextExpiryMs=_ms(soonest - now.us))
    elif not channel.live:
        because("empty", "there is nothing in the stream")
    if channel.delayed:
        due = [r.due_wall_us for r in channel.live.values() if r.state == DELAYED and r.due_wall_us]
        because(
            "delayed",
            "envelopes wait for their time",
            count=channel.delayed,
            nextDueAt=min(due, default=now.wall_us) // 1000,
        )
    if hot:
        because("redelivery.hot", f"{describe(hot[0])}; {HINT}", count=len(hot), ids=[record.id for record in hot[:10]])
    held = [r for r in channel.live.values() if r.state == HELD and r.fate] if channel.held else []
    if held:  # without a fate, a purge or a redrive holds them
        dead = dead_name(channel.name)
        why = f"`{dead}` cannot take them: it is full, or holds the same ids; make room there"
        because("dead_letters_full", why, count=len(held))
    if len(channel.live) >= policy.max_depth or channel.bytes >= policy.max_bytes:
        because("full", "the stream is at its bound and refuses new envelopes")
    cut = state.cuts.get(channel.name)
    if cut is not None and now.wall_us // 1000 - cut["at"] < CUT_SHOWN_MS:
        reasons.append(cut)
    return {
        "stream": channel.name,
        "flowing": bool(channel.leasable and able) and not state.commit_log.draining,
        "reasons": reasons,
        "consumers": [
            {
                "holder": c.holder_name,
                "agent": c.link.who,
                "peer": c.link.peer or None,
                "credit": c.credit,
                "inflight": len(c.leases),
                "delivered": c.delivered,
                "writable": c.link.room > 0,
            }
            for c in consumers[:100]
        ],
    }
