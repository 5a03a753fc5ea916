"""A journal row: the one shape of the facts and observations of every protocol.

Names and meanings are frozen: columns may be added, never renamed or retyped.
"""

from __future__ import annotations

import msgspec

from penstock.core.records import Applied, Entry, Fact, Note, Record, Ruled

EVENTS = {
    "courier": "enqueue ack nack dead drop purge move leased read expired receipt_owed agent wake parcel arrived applied "
    "deliver release extend timeout trigger gauge",
    "mew": "envelope stream_open stream_close grant revoke invite kick join leave frame frame_counts",
    "streamservice": "register expire nonce chunk chunk_counts subscribe unsubscribe resume",
    "server": "start stop tick epoch repair erased",
}
"""The events of each door, separated by spaces. The list is closed: a new event is added here first."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of history. The journal fills the first five columns when it appends."""

    journal: str = ""
    shard: int = 0
    epoch: int = 0
    offset: int = -1
    recorded_at: int = 0
    """Microseconds since 1970; never decreases within a shard."""
    door: str = "courier"
    event: str = ""
    channel: str = ""
    seq: int = 0
    id: str | None = None
    kind: str | None = None
    sender: str | None = None
    peer: str | None = None
    corr: str | None = None
    attempt: int | None = None
    size: int | None = msgspec.field(default=None, name="bytes")
    recipients: int | None = None
    reason: str | None = None
    ref_offset: int | None = None
    ref_at: int | None = None
    first_at: int | None = None
    meta: str | None = None
    body: bytes | None = None


_ENTRY_COLUMNS = tuple(name for name in Entry.__struct_fields__ if name != "fresh")


def row_of(fact: Fact) -> Row:
    """The row of a fact. Reads only what never changes, so it may run later and elsewhere."""
    if isinstance(fact, Record):
        return Row(
            event="enqueue",
            channel=fact.channel.name,
            seq=fact.seq,
            id=fact.id,
            kind=fact.kind,
            sender=fact.sender,
            corr=fact.corr,
            size=len(fact.body),
            meta=fact.meta,
            body=fact.body,
        )
    if isinstance(fact, Note):
        return Row(door=fact.door, event=fact.event, channel=fact.channel or "", seq=fact.seq or 0, meta=fact.meta)
    if isinstance(fact, Entry):
        return Row(**{name: getattr(fact, name) for name in _ENTRY_COLUMNS})
    if isinstance(fact, Applied | Ruled):
        return Row(door="server", event=fact.event, meta=fact.meta)
    record = fact.record
    return Row(
        event=fact.event,
        channel=record.channel.name,
        seq=record.seq,
        id=record.id,
        kind=record.kind,
        sender=record.sender,
        peer=fact.peer,
        corr=record.corr,
        attempt=fact.attempt,
        size=len(record.body),
        reason=fact.reason,
        ref_offset=record.offset,
        ref_at=record.recorded_us or None,
        first_at=fact.first_wall_us or None,
        meta=fact.meta,
    )
