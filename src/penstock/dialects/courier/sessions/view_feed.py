"""Following a view: a snapshot first, then every change, conflated for slow followers.

A `ViewFollower` keeps its position in the view and the last version that it was sent. A follower without credit, or whose peer does not
read, stays at its position; the view itself computes what changed since, each row once. So nothing is queued per follower. A `ViewFeed`
encodes once what followers with the same position and sight get, and shares the bytes: a thousand followers cost one encoding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Session
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.views import View, ViewChange
from penstock.core.scopes import Principal
from penstock.dialects.courier.operations import views
from penstock.dialects.courier.operations.views import Sight, Version

CACHE_BYTES_MAX = 16 * 1024 * 1024
"""Encoded messages that a feed keeps for followers at the same position."""
_encode = msgspec.json.encode

Message = tuple[int, bytes]
"""A message and the version that its reader has afterwards."""


class LiveQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"soft_auth": "softAuth"}):
    """The query of `/v1/live`."""

    view: str
    credit: int | None = None
    """Changes that may be sent; without it, as many as the peer reads. WebSocket only."""
    since: Version | None = None
    addr: str | None = None
    """Only rows whose address or stream matches this pattern."""
    compat: bool = False
    soft_auth: bool = False


class Style(msgspec.Struct, frozen=True, eq=False):
    """The format of messages on one kind of connection."""

    key: str
    """Equal for styles that produce equal bytes."""
    head: bytes
    tail: bytes
    pack: Callable[[list[Message]], list[bytes]]
    """Turns messages into writes."""
    heartbeat: bytes = b""
    compat: bool = False
    """The format of the first Courier: no snapshot, no versions, no removals."""


def bare(messages: list[Message]) -> list[bytes]:
    return [message for _, message in messages]


def events(messages: list[Message]) -> list[bytes]:
    """Server-sent events, all in one write."""
    return [b"".join([b"id: %d\ndata: %b\n\n" % message for message in messages])]


def plain_events(messages: list[Message]) -> list[bytes]:
    """Server-sent events without ids, as the first Courier wrote them."""
    return [b"".join([b"data: %b\n\n" % message for _, message in messages])]


EVENTS = Style("events", b"{", b"}", events, b": heartbeat\n\n")
COMPAT_EVENTS = Style("compat", b"", b"", plain_events, b": heartbeat\n\n", compat=True)


def lines(label: str) -> Style:
    """Control v1 lines of one subscription."""
    head = b'{"type":"live","subId":%b,' % _encode(label)
    return Style(f"lines {label}", head, b"}\n", bare)


class ViewFollower(msgspec.Struct, eq=False):
    """One follower of one view."""

    session: Session
    view: View
    sight: Sight
    style: Style
    label: str = ""
    credit: int | None = None
    """Changes that may still be sent; None: as many as the peer reads."""
    seen: int | None = None
    """Its position in the view; None before its snapshot."""
    sent_version: int = 0
    """The version of its last message."""
    base: int | None = None
    """The last version at which it was complete; behind `seen` only while credit is short."""
    rows: dict[str, bool] = {}
    """Rows sent since `base`, and whether they existed; bounded by the view's rows and the removals that it remembers."""
    is_resumed: bool = False
    """It resumed and is not complete yet: which rows it has is unknown, so changes are sent as if it had all of them."""

    def follow_on(self, since: int) -> None:
        """Resume after a reconnect: the peer has the changes up to this version, and perhaps some later ones."""
        self.seen = self.sent_version = self.base = since
        self.is_resumed = True

    def look(self, sight: Sight) -> bool:
        """Change the sight; a new one begins with a new snapshot. Returns whether it changed."""
        if sight == self.sight:
            return False
        self.sight = sight
        self.seen = self.base = None
        self.is_resumed = False
        self.rows.clear()
        return True

    @property
    def wants(self) -> bool:
        """Whether it lacks something that may be sent now."""
        if self.session.closing is not None or self.seen == self.view.version:
            return False
        return self.seen is None or self.credit is None or self.credit > 0

    def grant(self, limit: int, n: int) -> Refusal | None:
        """More credit."""
        if self.credit is None:
            hint = "open with `credit=0` to count changes; without it the pace is that of your reading"
            return Refusal("InvalidCredit", "this follower does not count credit", ref="credit", hint=hint)
        if n < 1 or self.credit + n > limit:
            return Refusal(
                "InvalidCredit",
                f"a grant is 1 or more, and credit at most {limit}; {self.credit} is outstanding",
                ref="credit",
            )
        self.credit += n
        return None


class Watching(Protocol):
    """What a session needs of the part that keeps followers up to date."""

    def watch(self, now: Now, watcher: ViewFollower) -> None:
        """Begin to follow: the snapshot, or what was missed, is sent at once."""

    def unwatch(self, watcher: ViewFollower) -> None: ...

    def granted(self, watcher: ViewFollower) -> None:
        """A follower has credit again."""


def check(machine: QueueMachine, principal: Principal, query: LiveQuery) -> tuple[View, Sight] | Refusal:
    """The view and sight of a follower, or why it is rejected; checked before the connection is opened."""
    view = views.find(machine, principal, query.view)
    if isinstance(view, Refusal):
        return view
    sight = views.sight(machine, principal, query.addr)
    if isinstance(sight, Refusal):
        return sight
    limit = machine.limits.credit_max
    if query.credit is not None and not 0 <= query.credit <= limit:
        return Refusal("InvalidCredit", f"credit is 0 to {limit}", ref="credit")
    return view, sight


class ViewFeed:
    """The followers of one view, and what is encoded for them."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.watchers: dict[ViewFollower, None] = {}
        self.version = view.version
        """The version that every follower able to receive has."""
        self.snapshots = 0
        self.deltas = 0
        """Changes sent, over all followers."""
        self._cache: dict[tuple[str, Sight, int | None, int], tuple[list[bytes], int, int]] = {}
        self._cache_bytes = 0
        self._cache_version = -1

    def forget(self) -> None:
        """Drop the encoded messages: the next followers have other positions."""
        self._cache.clear()
        self._cache_bytes = 0

    def update(self, watcher: ViewFollower) -> bool:
        """Send a follower what it lacks. Returns whether that was anything."""
        view = self.view
        if self._cache_version != view.version:
            self.forget()
            self._cache_version = view.version
        seen = watcher.seen
        if seen != watcher.base or watcher.is_resumed:
            return self._some(watcher)
        key = (watcher.style.key, watcher.sight, seen, watcher.sent_version)
        written = self._cache.get(key)
        if written is None:
            changes = None if seen is None else view.changes(seen)
            written = self._snapshot(watcher) if changes is None else self._deltas(watcher, changes)
            size = sum(map(len, written[0]))
            if self._cache_bytes + size <= CACHE_BYTES_MAX:
                self._cache[key] = written
                self._cache_bytes += size
        out, count, version = written
        if watcher.credit is not None:
            if count > watcher.credit:
                return self._some(watcher)
            watcher.credit -= count
        self.deltas += count
        self._complete(watcher, version)
        watcher.session.out += out
        return bool(out)

    def _some(self, watcher: ViewFollower) -> bool:
        """Send as many changes as the credit allows, oldest first, to a follower that may have some of them already."""
        assert watcher.seen is not None
        base = self.view.version if watcher.is_resumed else watcher.base
        changes = self.view.changes(watcher.seen, base, watcher.rows)
        if changes is None:
            out, _, version = self._snapshot(watcher)
            self._complete(watcher, version)
            watcher.session.out += out
            return True
        changes = [change for change in changes if watcher.sight.sees(change)]
        rest = [] if watcher.credit is None else changes[watcher.credit :]
        del changes[len(changes) - len(rest) :]
        out, count, version = self._deltas(watcher, changes)
        self.deltas += count
        if watcher.credit is not None:
            watcher.credit -= count
        watcher.session.out += out
        if not rest:
            self._complete(watcher, version)
            return bool(out)
        watcher.seen = watcher.sent_version = version
        # Not for a resumed one: changes are sent as if it had all rows, so which it was sent does not matter.
        if not watcher.is_resumed:
            for change in changes:
                watcher.rows[change.addr] = change.op != "remove"
        return bool(out)

    def _complete(self, watcher: ViewFollower, version: int) -> None:
        """The follower is complete."""
        watcher.seen = watcher.base = self.view.version
        watcher.sent_version = version
        watcher.is_resumed = False
        if watcher.rows:
            watcher.rows.clear()

    def _snapshot(self, watcher: ViewFollower) -> tuple[list[bytes], int, int]:
        view, style = self.view, watcher.style
        self.snapshots += 1
        if style.compat:
            return style.pack([(view.version, b'{"connected":true}')]), 0, view.version
        member = view.member.encode()
        rows = [
            b'{"addr":%b,"%b":%b}'
            % (_encode(watcher.sight.from_channel(entry.addr)), member, watcher.sight.written(view, entry.data))
            for entry in view.rows.values()
            if watcher.sight.sees(entry)
        ]
        body = b'"snapshot":{"rows":[%b],"watermark":%d}' % (b",".join(rows), view.version)
        return style.pack([(view.version, style.head + body + style.tail)]), 0, view.version

    def _deltas(self, watcher: ViewFollower, changes: list[ViewChange]) -> tuple[list[bytes], int, int]:
        style = watcher.style
        version = watcher.sent_version
        changes = [change for change in changes if watcher.sight.sees(change)]
        if not changes:
            return [], 0, version
        member = self.view.member.encode()
        messages: list[Message] = []
        for change in changes:
            addr = _encode(watcher.sight.from_channel(change.addr))
            content = b""
            if change.data:
                content = b',"%b":%b' % (member, watcher.sight.written(self.view, change.data))
            if not style.compat:
                body = b'"delta":{"op":"%b","addr":%b%b,"version":%d,"prev":%d}' % (
                    change.op.encode(),
                    addr,
                    content,
                    change.version,
                    version,
                )
                messages.append((change.version, style.head + body + style.tail))
            elif content:
                messages.append((change.version, b'{"addr":%b%b}' % (addr, content)))
            version = change.version
        return style.pack(messages) if messages else [], len(changes), version
