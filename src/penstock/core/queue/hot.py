"""Hot records: those that fail again and again. `explain`, the metrics and the log read them here.

A record is hot from its sixth nack or expiry, its sixth release, or the sixth lost connection in a row on, until it is settled. Only
names and ids are kept, within bounds. Reads prune what was settled, O(ids kept).
"""

from __future__ import annotations

from penstock.core.clock import Now
from penstock.core.effects import Hot
from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import IMMEDIATE
from penstock.core.queue.state import HotStream, QueueState
from penstock.core.records import Record

IDS_MAX = 100
"""Hot records that one channel remembers; beyond that their number is a lower bound."""
STREAMS_MAX = 1_000
"""Channels that remember any."""
REPORT_EVERY_US = 60_000_000
"""How often a channel reports a hot record, so that a thousand of them do not fill the log."""

HINT = "correct the consumer, or give the envelope up with `term`"


def is_hot(record: Record) -> bool:
    return max(record.failures, record.abandoned_row, record.released_row) > IMMEDIATE


def note_hot(state: QueueState, now: Now, record: Record) -> None:
    """A record was given back. If it is hot, remember it, and report the first of its channel each minute."""
    if not is_hot(record):
        return
    name = record.channel.name
    stream = state.hot.get(name)
    if stream is None:
        if len(state.hot) >= STREAMS_MAX:
            total(state)
        if len(state.hot) >= STREAMS_MAX:
            del state.hot[next(iter(state.hot))]
        stream = state.hot[name] = HotStream()
    if record.id not in stream.ids:
        while len(stream.ids) >= IDS_MAX:
            del stream.ids[next(iter(stream.ids))]
        stream.ids[record.id] = None
    if stream.reported_us is None or now.us - stream.reported_us >= REPORT_EVERY_US:
        stream.reported_us = now.us
        state.effects.append(Hot(record, len(hot_records(state, record.channel))))


def hot_records(state: QueueState, channel: Channel) -> list[Record]:
    """The hot records of a channel, oldest first."""
    stream = state.hot.get(channel.name)
    if stream is None:
        return []
    found = [record for id_ in stream.ids if (record := channel.live.get(id_)) is not None and is_hot(record)]
    if len(found) < len(stream.ids):
        stream.ids = {record.id: None for record in found}
    return found


def total(state: QueueState) -> int:
    """How many records are hot in all channels; forgets channels that have none."""
    count = 0
    for name in list(state.hot):
        channel = state.channels.get(name)
        found = len(hot_records(state, channel)) if channel is not None else 0
        count += found
        if not found:
            del state.hot[name]
    return count


def describe(record: Record) -> str:
    """Why a record is hot, in words."""
    if record.failures > IMMEDIATE:
        return f"`{record.id}` failed {record.failures} times" + (f", last: {record.error}" if record.error else "")
    if record.released_row > IMMEDIATE:
        return f"`{record.id}` was released {record.released_row} times"
    return f"{record.abandoned_row} consumers in a row lost their connection while they held `{record.id}`"
