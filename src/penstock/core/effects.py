"""Effects: what a machine asks its runtime to do. The runtime applies them in order before it calls the machine again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from penstock.core.links import Consumer
    from penstock.core.queue.taps import Tap
    from penstock.core.records import Record
    from penstock.core.rules.rule_set import Cascade, Firing
    from penstock.core.steps import Steps


class Deliver(msgspec.Struct, gc=False, eq=False):
    """Hand these records to one consumer, all just leased to it. A pull that found nothing gets none."""

    consumer: Consumer
    records: list[Record]


class Expire(msgspec.Struct, gc=False, eq=False):
    """Notify a consumer that asked for it that its lease ended."""

    consumer: Consumer
    record: Record
    lease_id: str


class Hot(msgspec.Struct, gc=False, eq=False):
    """Report a record that fails again and again, and how many of its channel do."""

    record: Record
    count: int


class Job(msgspec.Struct, eq=False):
    """Counts what became of a group of sends."""

    moved: int = 0
    kept: list[Record] = []
    """Records that found no room. They are held until every send is answered, then ready again."""
    count: int = 0
    waiting: list[Record] = []
    """Records that are not sent yet; they are held meanwhile."""
    is_chosen: bool = False
    """Whether the records were chosen by id; else they were the first ones of their channel."""


class Send(msgspec.Struct, gc=False, eq=False):
    """Put a record into another channel, wherever it lives, then report the outcome to the origin's machine with `sent`."""

    channel: str
    record: Record
    origin: Record
    event: Literal["dead", "move", "trigger"]
    reason: str
    peer: str | None = None  # who brought it about
    token: str | None = None
    job: Job | None = None
    firing: Firing | None = None
    """The rule at work, when one sends this; the origin then stays where it is unless the event is a move."""
    cascade: Cascade | None = None


class Copy(msgspec.Struct, gc=False, eq=False):
    """Show these records, which it does not hold, to a tap; `lost` were left out before them."""

    tap: Tap
    records: list[Record]
    shared: dict[tuple[bytes, int], bytes]
    """What dialects wrote for other taps of this commit: taps that do not read hold the same bytes."""
    lost: int = 0


Work: TypeAlias = "Send | Steps[Any]"  # what a turn may leave to later ones (`core/queue/backlog.py`)
Effect: TypeAlias = "Deliver | Expire | Hot | Copy | Work"
