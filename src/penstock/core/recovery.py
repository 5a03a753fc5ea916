"""Recovery: the machine rebuilt from the rows it once wrote.

`restore` takes rows in offset order and changes state without effects or facts; `recovered` then makes what was leased or
due ready. A row about a record that is not live is skipped: it was settled before the rows we were given begin.
"""

from __future__ import annotations

import msgspec

from penstock.core.book import Book
from penstock.core.instant import Now
from penstock.core.records import DELAYED, PENDING, READY, Record
from penstock.core.rows import Row

_OUTCOMES = {
    "ack": ("ack", "acked"),
    "dead": ("dead", "dead"),
    "drop": ("drop", "dropped"),
    "purge": ("purged", "purged"),
    "move": ("moved", "moved"),
}


class _Due(msgspec.Struct):
    due: int = 0


def _due(row: Row) -> int:
    return msgspec.json.decode(row.meta, type=_Due).due if row.meta else 0


def restore(book: Book, now: Now, row: Row) -> None:
    """Apply one row of the past."""
    if row.event == "enqueue":
        _restore_enqueue(book, now, row)
        return
    channel = book.channels.get(row.channel)
    record = None if channel is None or row.id is None else channel.live.get(row.id)
    if channel is None or record is None or record.seq != row.seq:
        return
    record.attempt = max(record.attempt, row.attempt or 0)
    record.first_wall_us = row.first_at or record.first_wall_us
    if row.event == "nack":
        channel.counters.nack += 1
        record.error = row.reason
        record.due_wall_us = _due(row)
        return
    settled = _OUTCOMES.get(row.event)
    if settled is None:
        return
    counter, outcome = settled
    setattr(channel.counters, counter, getattr(channel.counters, counter) + 1)
    book.settle(record, outcome, Now(now.us - max(now.wall_us - row.recorded_at, 0), now.wall_us))


def _restore_enqueue(book: Book, now: Now, row: Row) -> None:
    channel = book.channels.get(row.channel) or book.load(row.channel)
    assert row.id is not None
    assert row.body is not None
    if row.id in channel.settled:  # taken again by a redrive, or after its window
        channel.unsettle(row.id)
        book.ids -= 1
    due = _due(row)
    record = Record(row.id, row.kind or "", row.body, row.sender, row.corr, due, scheduled_wall_us=due)
    record.channel = channel
    record.seq = row.seq
    record.offset = row.offset
    record.arrived_wall_us = row.recorded_at
    record.arrived_us = now.us - max(now.wall_us - row.recorded_at, 0)
    record.state = PENDING
    channel.live[record.id] = record
    channel.seq = max(channel.seq, row.seq)
    channel.bytes += len(record.body)
    channel.counters.in_ += 1
    channel.last_wall_us = row.recorded_at
    book.bytes += len(record.body)


def recovered(book: Book, now: Now) -> None:
    """Everything has been restored: make records ready in sequence order, or delayed until they are due."""
    for channel in list(book.channels.values()):
        for record in channel.live.values():
            if record.state != PENDING:
                continue
            if record.due_wall_us > now.wall_us:
                channel.make_delayed(record)
                book.timers.arm(now.us + record.due_wall_us - now.wall_us, record)
                assert record.state == DELAYED
            else:
                channel.make_ready(record)
                assert record.state == READY
        book.rest(channel, now)
