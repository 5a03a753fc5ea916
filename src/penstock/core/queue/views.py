"""Views: small tables that a reader can read and follow, kept with the queue.

Owns the rows of each view and its version. A row carries the version of its latest change and the table is sorted by it, so the
changes since a version are the end of the table: there is no log of updates, and a late reader sees each changed row once. Only
removals are logged, up to a bound.

Keeps: a version is never reused, even across restarts, because each run starts at its wall clock in microseconds; rows, bytes and
logged removals are bounded. A change is O(1); the changes since a version are O(those changes).

The machine maintains `latestPerAgent` from commits. A dialect computes the rows of `inflight` and `metrics:streams` on demand.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.tenants import TENANTS, split

if TYPE_CHECKING:
    from penstock.core.clock import Now
    from penstock.core.queue.channel import Channel
    from penstock.core.records import Record

LATEST = "latestPerAgent"
INFLIGHT = "inflight"
STREAMS = "metrics:streams"
PREFIX = "views/"
"""A view's name may be written as an address too."""
_AGENTS = "agents/"
_INBOX = "/inbox"


NOTHING_SENT: Mapping[str, bool] = {}


class ViewEntry(msgspec.Struct, gc=False, eq=False):
    """One row as it stands."""

    addr: str
    stream: str
    """The stream it describes; only readers with access to it see the row."""
    data: bytes
    """JSON."""
    version: int
    born: int
    """The version that added it."""
    mark: tuple[int, ...] = ()
    """Compared by the dialect to detect a change."""


class Gone(msgspec.Struct, gc=False, eq=False):
    """A removed row."""

    addr: str
    stream: str
    version: int
    born: int


class ViewChange(msgspec.Struct, gc=False, frozen=True):
    """A change of one row, as sent to readers."""

    op: Literal["add", "update", "remove"]
    addr: str
    stream: str
    data: bytes
    version: int


class View:
    """One table."""

    def __init__(self, name: str, member: str, limits: Limits) -> None:
        self.name = name
        self.member = member
        """The name of a row's content on the wire."""
        self.rows: OrderedDict[str, ViewEntry] = OrderedDict()
        """By address, the one that changed longest ago first."""
        self.gone: deque[Gone] = deque()
        self.bytes = 0
        self.version = 0
        self.floor = 0
        """Changes up to this version are no longer available."""
        self.evicted = 0
        """Rows evicted at a bound."""
        self.todo: list[str] = []
        """Rows that the current refresh has still to read."""
        self._limits = limits

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self._limits.view_rows_max or self.bytes >= self._limits.view_bytes_max

    def begin(self, version: int) -> None:
        """Start a run: no earlier version can be resumed or is used again."""
        self.version = self.floor = max(version, self.version + 1)
        self.gone.clear()
        for entry in self.rows.values():
            entry.version = entry.born = self.version

    def put(self, addr: str, stream: str, data: bytes, mark: tuple[int, ...] = ()) -> None:
        """Add or change a row."""
        self.version += 1
        entry = self.rows.get(addr)
        if entry is None:
            self.rows[addr] = ViewEntry(addr, stream, data, self.version, self.version, mark)
            self.bytes += len(data)
        else:
            self.bytes += len(data) - len(entry.data)
            entry.data = data
            entry.version = self.version
            entry.mark = mark
            self.rows.move_to_end(addr)
        self._fit()

    def adopt(self, limits: Limits) -> None:
        """Adopt other bounds."""
        self._limits = limits
        self._fit()

    def _fit(self) -> None:
        limits = self._limits
        while len(self.rows) > limits.view_rows_max or (self.bytes > limits.view_bytes_max and len(self.rows) > 1):
            self.evicted += 1
            self.remove(next(iter(self.rows)))

    def remove(self, addr: str) -> None:
        """Remove a row."""
        entry = self.rows.pop(addr)
        self.bytes -= len(entry.data)
        self.version += 1
        self.gone.append(Gone(addr, entry.stream, self.version, entry.born))
        if len(self.gone) > self._limits.view_log_max:
            self.floor = self.gone.popleft().version

    def changes(
        self, since: int, base: int | None = None, sent: Mapping[str, bool] = NOTHING_SENT
    ) -> list[ViewChange] | None:
        """The changes that a reader at `since` needs, in order; None when it needs the whole table.

        A reader that received only some changes since `base` passes the rows it was `sent`, and whether each existed then.
        """
        base = since if base is None else base
        # A row that went and came again after `base` existed then: its first birth shows whether the reader knows it.
        known_from = min(base, since)
        if not self.floor <= known_from or since > self.version:
            return None
        births: dict[str, int] = {}
        """For each row removed since: the version that first added it."""
        newest: dict[str, Gone] = {}
        for gone in reversed(self.gone):
            if gone.version <= known_from:
                break
            births[gone.addr] = gone.born
            if gone.version > since:
                newest.setdefault(gone.addr, gone)
        rows = self.rows
        changed: list[ViewChange] = []
        for entry in reversed(rows.values()):
            if entry.version <= since:
                break
            addr = entry.addr
            is_known = sent.get(addr, births.get(addr, entry.born) <= base)
            op: Literal["add", "update"] = "update" if is_known else "add"
            changed.append(ViewChange(op, addr, entry.stream, entry.data, entry.version))
        if not newest:
            changed.reverse()
            return changed
        changed += [
            ViewChange("remove", addr, gone.stream, b"", gone.version)
            for addr, gone in newest.items()
            if addr not in rows and sent.get(addr, births[addr] <= base)  # else it came and went unseen
        ]
        changed.sort(key=lambda change: change.version)
        return changed


class Views:
    """Every view of one machine."""

    def __init__(self, limits: Limits) -> None:
        self.latest = View(LATEST, "env", limits)
        self.inflight = View(INFLIGHT, "row", limits)
        self.streams = View(STREAMS, "row", limits)
        self.all = {view.name: view for view in (self.latest, self.inflight, self.streams)}
        self.is_copy = False
        """Whether the rows come from other machines, and none is computed here."""

    def begin(self, now: Now) -> None:
        """The machine starts to serve."""
        for view in self.all.values():
            view.begin(now.wall_us)

    def adopt(self, limits: Limits) -> None:
        """Adopt other bounds."""
        for view in self.all.values():
            view.adopt(limits)

    def find(self, name: str) -> View | Refusal:
        if (view := self.all.get(name.removeprefix(PREFIX))) is not None:
            return view
        known = ", ".join(f"`{known}`" for known in self.all)
        return Refusal("UnknownView", f"there is no view `{name[:200]}`", ref=name, hint=f"views: {known}")


def is_inbox(name: str) -> bool:
    """Whether a channel is an agent's inbox: `agents/<name>/inbox`, three parts, of any tenant."""
    if name.startswith(TENANTS):
        name = split(name)[1]
    return (
        name.startswith(_AGENTS)
        and name.endswith(_INBOX)
        and name.count("/") == 2
        and len(name) > len(_AGENTS) + len(_INBOX)
    )


def note_arrivals(view: View, touched: Iterable[Channel], kept: list[Record]) -> None:
    """New records are committed: each inbox shows the last one. A moved record is not new."""
    inboxes = {channel: None for channel in touched if is_inbox(channel.name)}
    if not inboxes:
        return
    found: list[Record] = []
    for record in reversed(kept):
        if record.channel in inboxes and not record.reserved:
            del inboxes[record.channel]
            found.append(record)
            if not inboxes:
                break
    for record in reversed(found):
        name = record.channel.name
        view.put(name, name, record.body)
