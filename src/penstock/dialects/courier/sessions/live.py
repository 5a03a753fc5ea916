"""Sessions that follow views: one follower on a connection of its own, and the followers of a Control v1 connection.

Pure, like every session. On a WebSocket the peer sends only `{"credit": n}`; on server-sent events it sends nothing.
"""

from __future__ import annotations

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import ABSENT, Session
from penstock.core.queue.views import View
from penstock.dialects.courier.operations.views import Sight
from penstock.dialects.courier.sessions import view_feed
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.frames import FollowFrame
from penstock.dialects.courier.sessions.message_session import MessageSession
from penstock.dialects.courier.sessions.view_feed import LiveQuery, Style, ViewFollower

_encode = msgspec.json.encode
MESSAGE_MAX = 64 * 1024
"""Bytes of one message from a follower."""


class _Message(msgspec.Struct):
    credit: int | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Message).decode
_UNKNOWN = Refusal("UnknownOp", "the message has no `credit`")


class LiveSession(MessageSession[_Message]):
    """One follower on its own connection."""

    fault = "InvalidCredit"
    _size_max = MESSAGE_MAX

    def __init__(self, runtime: RuntimePort, query: LiveQuery, style: Style) -> None:
        super().__init__(runtime, _decode)
        self._query = query
        self._style = style
        self._watcher: ViewFollower

    def open(self, now: Now, view: View, sight: Sight) -> None:
        """Follow, once the connection is open."""
        query = self._query
        watcher = ViewFollower(self, view, sight, self._style, credit=query.credit)
        if query.since is not None:
            watcher.follow_on(query.since)
        self._watcher = watcher
        self._runtime.live.watch(now, watcher)

    def _write(self, refusal: Refusal) -> None:
        message = _encode({"error": refusal.wire()})
        self.out += self._style.pack([(self._watcher.sent_version, message)])

    def _message(self, now: Now, message: _Message) -> None:
        if message.credit is msgspec.UNSET:
            self._strike(now, _UNKNOWN)
            return
        refusal = self._watcher.grant(self._machine.limits.credit_max, message.credit)
        if refusal is not None:
            self._fail(refusal)
        else:
            self._runtime.live.granted(self._watcher)

    def release(self) -> None:
        super().release()
        self._watcher.session = ABSENT

    def drain(self, refusal: Refusal) -> None:
        self._fail(refusal, 1001)


class Followers:
    """The followers of one Control v1 connection, by label."""

    def __init__(self, runtime: RuntimePort, session: Session) -> None:
        self._runtime = runtime
        self._session = session
        self._watchers: dict[str, ViewFollower] = {}
        self._count = 0

    def __contains__(self, label: str | None) -> bool:
        return label in self._watchers

    def open(self, frame: FollowFrame, taken: bool) -> str | Refusal:
        """Open a follower and return its label. `taken` says that a subscription has the label."""
        machine = self._runtime.machine
        limits = machine.limits
        query = LiveQuery(frame.view, frame.credit, frame.since, frame.addr)
        checked = view_feed.check(machine, self._session.link.principal, query)
        if isinstance(checked, Refusal):
            return checked
        label = frame.sub_id
        if label is not None and (taken or label in self._watchers or len(label) > limits.id_max):
            return Refusal("InvalidRequest", f"`subId` {label[:64]!r} is in use or too long", ref="subId")
        if len(self._watchers) >= limits.subscriptions_max:
            return Refusal("QuotaExceeded", f"a connection follows at most {limits.subscriptions_max} views at once")
        while label is None or label in self._watchers:
            self._count += 1
            label = f"v{self._count}"
        watcher = ViewFollower(self._session, *checked, view_feed.lines(label), label, frame.credit)
        if frame.since is not None:
            watcher.follow_on(frame.since)
        self._watchers[label] = watcher
        return label

    def start(self, now: Now, label: str) -> None:
        """Send the snapshot. Separate from `open`, so that the answer goes out first."""
        self._runtime.live.watch(now, self._watchers[label])

    def grant(self, label: str, n: int) -> int | Refusal:
        watcher = self._watchers[label]
        if (refusal := watcher.grant(self._runtime.machine.limits.credit_max, n)) is not None:
            return refusal
        self._runtime.live.granted(watcher)
        return watcher.credit or 0

    def release(self) -> None:
        """The connection has ended, and nothing follows for it any more."""
        self._session = ABSENT
        for watcher in self._watchers.values():
            watcher.session = ABSENT

    def close(self, label: str) -> None:
        self._runtime.live.unwatch(self._watchers.pop(label))
