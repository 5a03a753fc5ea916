"""Records, and the facts about them that a journal keeps.

A `Record` is what a channel holds: the exact bytes a consumer gets, and their position. The dialect makes it; the machine owns it
once admitted. A record is its own `enqueue` fact; every later change that must survive a restart is a `Settle`. Both refer to the
live object for what never changes (channel, seq, id, body) and copy what does, so a journal may encode them later, on a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from penstock.core.links import Consumer
    from penstock.core.queue.channel import Channel

# States of a record. Plain ints: they are compared on the hot path.
PENDING = 0  # waits for its commit; invisible
READY = 1
LEASED = 2
DELAYED = 3
HELD = 4  # on its way to another channel; counted as delayed
GONE = 5

STATE_NAMES = ("pending", "ready", "inflight", "delayed", "held", "settled")


SHARED_MAX = 4096
"""Texts that `shared` keeps."""
SHARED_LENGTH_MAX = 256
"""Characters of the longest of them."""
_shared: dict[str, str] = {}


def shared(text: str) -> str:
    """The one copy of a text that many records share. Not `sys.intern`, which may never free texts that peers choose."""
    if (known := _shared.get(text)) is not None:
        return known
    if len(text) <= SHARED_LENGTH_MAX:
        if len(_shared) >= SHARED_MAX:
            _shared.clear()
        _shared[text] = text
    return text


StructType = TypeVar("StructType", bound=type[msgspec.Struct])


def plain_stores(kind: StructType) -> StructType:
    """Let attributes of a struct be stored as those of any other class: a quarter of the cost. Only for structs without `gc` tracking,
    because the stores of msgspec begin it, and not inherited, because msgspec gives each struct its own."""
    kind.__setattr__ = object.__setattr__  # type: ignore[method-assign]
    kind.__delattr__ = object.__delattr__  # type: ignore[method-assign]
    return kind


@plain_stores
class Record(msgspec.Struct, gc=False, eq=False):
    """One record of one channel. Not tracked by the garbage collector: every way out of a channel breaks its only cycle."""

    id: str
    kind: str
    body: bytes
    sender: str | None = None
    corr: str | None = None
    due_wall_us: int = 0
    """When a scheduled or delayed record becomes ready."""
    scheduled_wall_us: int = 0
    """The time its producer asked for, which never changes; 0 means at once."""
    reserved: bool = False
    """May use the space a journal keeps for settles: it moves what is already accepted."""
    check: int | None = None
    """Checksum of the bytes its producer sent, where we have added to them."""
    sort_key: str | int | None = None
    """Where it waits in a channel that sorts: its partition key, or its level of urgency."""

    channel: Channel = None  # type: ignore[assignment]  # set when admitted
    seq: int = 0
    state: int = PENDING
    attempt: int = 0
    """Deliveries so far."""
    failures: int = 0
    """Deliveries that its holders nacked or let expire."""
    abandoned: int = 0
    """Deliveries that ended with the connection of their holder."""
    abandoned_row: int = 0
    """The latest of those, without another end between them."""
    released_row: int = 0
    """Releases since it last failed."""
    holder: Consumer | None = None
    lapsed: Consumer | None = None
    """Who held it last and lost it to the clock."""
    lease: int = 0
    """Number of its current lease, never used again."""
    ticket: int = 0
    """Number of its own timer; 0 while the timer of its holder keeps the deadline of its lease."""
    deadline_us: int = 0
    leased_us: int = 0
    batch: int = 0
    """The commit that makes it visible."""
    offset: int = -1
    arrived_us: int = 0
    recorded_us: int = 0
    """The `recorded_at` of its row, also after a restart; 0 until it is durable."""
    first_wall_us: int = 0
    error: str | None = None
    """Reason of the latest nack."""
    fate: str = ""
    """Why it goes to the dead letters, while it is held for them."""

    @property
    def meta(self) -> str | None:
        """The `meta` column of its row."""
        if self.reserved:
            return '{"moved":true}'
        if self.check is not None:
            due = f'"due":{self.scheduled_wall_us},' if self.scheduled_wall_us else ""
            return f'{{{due}"check":{self.check}}}'
        return f'{{"due":{self.scheduled_wall_us}}}' if self.scheduled_wall_us else None


class Settle(msgspec.Struct, gc=False, eq=False):
    """A change of a record that the journal keeps, complete in itself."""

    event: str
    """`ack nack dead drop purge move` are facts; `release extend timeout` are observations."""
    record: Record
    peer: str | None
    attempt: int
    first_wall_us: int
    reason: str | None = None
    due_wall_us: int = 0
    fate: str = ""
    """Of a nack: why the record goes to the dead letters as soon as they have room, and is never ready again."""
    error: str | None = None
    """Of a dead record: what its last holder said."""
    failures: int | None = None
    """Of a nack, timeout or release: how many of its deliveries failed, if not all of them."""
    abandoned: int = 0
    fresh: bool = False
    """Stands or falls with a new record of the same commit, so a journal short of space refuses both."""
    token: str | None = None
    """The name of the token, if the peer is an agent that its client only names."""

    @property
    def meta(self) -> str | None:
        """The `meta` column of its row."""
        own = self._own_meta()
        if self.token is None:
            return own
        token = f'"token":{msgspec.json.encode(self.token).decode()}'
        return f"{{{token}}}" if own is None else f"{own[:-1]},{token}}}"

    def _own_meta(self) -> str | None:
        if self.error is not None:
            return msgspec.json.encode({"error": self.error}).decode()
        if self.fate:
            return f'{{"fate":"{self.fate}"}}'
        if self.failures is None:
            return f'{{"due":{self.due_wall_us}}}' if self.due_wall_us else None
        due = f'"due":{self.due_wall_us},' if self.due_wall_us else ""
        abandoned = f',"abandoned":{self.abandoned}' if self.abandoned else ""
        return f'{{{due}"failures":{self.failures}{abandoned}}}'


class Fired(Settle, gc=False, eq=False):
    """An observation: a rule acted on a record, or was kept from it by its cooldown. The peer is the rule."""

    detail: str | None = None

    @property
    def meta(self) -> str | None:
        return self.detail


class Note(msgspec.Struct, frozen=True):
    """An observation about no single record: `gauge` of a channel, `tick`, `start` and `stop` of the server."""

    event: str
    door: str
    channel: str | None = None
    seq: int | None = None
    meta: str | None = None


class Applied(msgspec.Struct, frozen=True):
    """A batch of an application came in: durable together with the batch's records, or not at all."""

    app: str
    batch: int
    envelopes: int = 0
    gate: int = 0
    """The commit that makes it so."""
    before: int | None = None
    """The application's newest batch until then."""

    event = "tick"

    @property
    def meta(self) -> str:
        """The `meta` column of its row."""
        return msgspec.json.encode({"app": self.app, "batch": self.batch, "envelopes": self.envelopes}).decode()


class Ruled(msgspec.Struct, frozen=True, eq=False):
    """A rule was given at run time, or taken back: a fact about the server itself."""

    id: str
    text: str | None
    """The rule as JSON; None takes it back."""
    text_before: str | None = None
    rule_before: Any = None
    """What was in its place until then."""

    event = "tick"

    @property
    def meta(self) -> str:
        """The `meta` column of its row."""
        rule = None if self.text is None else msgspec.Raw(self.text.encode())
        return msgspec.json.encode({"trigger": self.id, "rule": rule}).decode()


class Entry(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A complete row of a protocol without a queue: a fact, or an observation."""

    door: str
    event: str
    channel: str
    seq: int = 0
    id: str | None = None
    kind: str | None = None
    sender: str | None = None
    peer: str | None = None
    corr: str | None = None
    size: int | None = None
    recipients: int | None = None
    reason: str | None = None
    meta: str | None = None
    body: bytes | None = None
    fresh: bool = True
    """Whether a journal short of space may refuse it."""


Fact = Record | Settle | Note | Applied | Ruled | Entry


def is_fresh(fact: Fact) -> bool:
    """Whether a journal short of space may refuse it: only what adds records, never what settles them."""
    if isinstance(fact, Record):
        return not fact.reserved
    if isinstance(fact, Settle):
        return fact.fresh or fact.event == "drop"
    if isinstance(fact, Entry):
        return fact.fresh
    return isinstance(fact, Applied)
