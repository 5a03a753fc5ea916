"""Taps: links that see what is enqueued to a channel and take nothing.

A tap has no credit and no lease, and never creates, wakes or delays a channel. It gets each record once, when it is durable, in commit
order. Unread bytes of its peer are bounded: records beyond are dropped and counted, and `report_missed` tells the peer how many before
it gets newer ones. Cost: nothing without a tap, otherwise one lookup a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.effects import Copy
from penstock.core.errors import Refusal
from penstock.core.links import Link
from penstock.core.records import Record

if TYPE_CHECKING:
    from penstock.core.queue.state import QueueState

FRAME_BYTES = 64
"""What a copy adds to its body on the wire, roughly."""


class Tap(msgspec.Struct, eq=False):
    """One link's look at one channel."""

    link: Link
    name: str
    lost: int = 0
    """Records left out since the last report to the peer."""


def tap(state: QueueState, link: Link, name: str) -> Refusal | None:
    """Show a link what comes into a channel from now on, whether that exists yet or not; twice is once."""
    if name in link.taps:
        return None
    limit = state.limits.taps_max
    if state.taps_open >= limit:
        message = f"{limit} taps are open and `limits.taps_max` allows no more"
        return Refusal("QuotaExceeded", message, ref=name, retry_after_ms=1_000)
    made = link.taps[name] = Tap(link, name)
    state.taps.setdefault(name, []).append(made)
    state.taps_open += 1
    return None


def forget(state: QueueState, link: Link) -> None:
    """A link is gone, and its taps with it."""
    for name, gone in link.taps.items():
        left = state.taps[name]
        left.remove(gone)
        if not left:
            del state.taps[name]
        state.taps_open -= 1
    link.taps.clear()


def show(state: QueueState, records: list[Record]) -> None:
    """These records have become durable, in this order."""
    limits = state.limits
    # Well below the bound at which a peer is cut off: one that only looks must not be.
    floor = limits.outbox_max - min(limits.copies_max, limits.outbox_hard_max // 2)
    seen: dict[Tap, list[Record]] = {}
    for record in records:
        for watcher in state.taps.get(record.channel.name, ()):
            link = watcher.link
            if link.room <= floor:
                watcher.lost += 1
                link.stalled = True
                state.totals.copies_lost += 1
                continue
            link.room -= len(record.body) + FRAME_BYTES
            seen.setdefault(watcher, []).append(record)
    shared: dict[tuple[bytes, int], bytes] = {}
    for watcher, copies in seen.items():
        state.effects.append(Copy(watcher, copies, shared))


def report_missed(state: QueueState, link: Link) -> None:
    """A link has room again: say what it missed."""
    for watcher in link.taps.values():
        if watcher.lost:
            state.effects.append(Copy(watcher, [], {}, watcher.lost))
            watcher.lost = 0
