"""Sessions that follow views: one follower on a connection of its own, and the followers of a Control v1 connection.

Pure, like every session. On a WebSocket the peer sends only `{"credit": n}`; on server-sent events it sends nothing. Errors leave the socket
open, except malformed JSON (1007), a flood (1008) and too many unknown operations (1003).
"""

from __future__ import annotations

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Link, Session
from penstock.core.queue.views import View
from penstock.dialects.courier.operations.views import Sight
from penstock.dialects.courier.sessions import view_feed
from penstock.dialects.courier.sessions.answers import RuntimePort
from penstock.dialects.courier.sessions.control.frames import FollowFrame
from penstock.dialects.courier.sessions.flood_limiter import FloodLimiter
from penstock.dialects.courier.sessions.view_feed import LiveQuery, Style, ViewFollower
from penstock.dialects.courier.wire.envelopes import json_problem, to_refusal

_encode = msgspec.json.encode
MESSAGE_MAX = 64 * 1024
"""Bytes of one message from a follower."""


class _Message(msgspec.Struct):
    credit: int | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Message).decode
_UNKNOWN = Refusal("UnknownOp", "the message has no `credit`")


class LiveSession:
    """One follower on its own connection."""

    def __init__(self, runtime: RuntimePort, query: LiveQuery, style: Style) -> None:
        self.out: list[bytes] = []
        self.closing: tuple[int, str] | None = None
        self.link: Link
        """Set by the runtime, right after the machine accepted the connection."""
        self.answers = ()
        self._runtime = runtime
        self._limits = runtime.machine.limits
        self._query = query
        self._style = style
        self._watcher: ViewFollower
        self._strikes = 0
        self._flood_limiter = FloodLimiter(self._limits.control_rate)

    def open(self, now: Now, view: View, sight: Sight) -> None:
        """Follow, once the connection is open."""
        query = self._query
        watcher = ViewFollower(self, view, sight, self._style)
        watcher.credit = query.credit
        if query.since is not None:
            watcher.follow_on(query.since)
        self._watcher = watcher
        self._runtime.live.watch(now, watcher)

    def _fail(self, refusal: Refusal, close: int | None = None) -> None:
        message = _encode({"error": refusal.wire()})
        self.out += self._style.pack([(self._watcher.sent_version, message)])
        if close is not None and self.closing is None:
            self.closing = (close, refusal.code)

    def receive(self, now: Now, data: bytes) -> None:
        if self.closing is not None:
            return
        flood = self._flood_limiter.flood(now)
        if flood is not None:
            self._fail(flood, 1008)
            return
        if len(data) > MESSAGE_MAX:
            self._fail(Refusal("TooLarge", f"a message has at most {MESSAGE_MAX} bytes"), 1009)
            return
        try:
            message = _decode(data)
        except msgspec.ValidationError as error:
            self._fail(to_refusal(error, "InvalidCredit"))
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._fail(Refusal("InvalidJSON", f"the message is not JSON: {error}"), 1007)
            return
        problem = json_problem(data)
        if problem is not None:
            self._fail(problem, 1007)
        elif message.credit is msgspec.UNSET:
            self._fail(_UNKNOWN)
            self._strikes += 1
            if self._strikes > self._limits.strikes_max:
                self.closing = (1003, "UnknownOp")
        else:
            refusal = self._watcher.grant(self._limits.credit_max, message.credit)
            if refusal is not None:
                self._fail(refusal)
            else:
                self._runtime.live.granted(self._watcher)

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
        watcher = ViewFollower(self._session, *checked, view_feed.lines(label), label)
        watcher.credit = frame.credit
        if frame.since is not None:
            watcher.follow_on(frame.since)
        self._watchers[label] = watcher
        return label

    def start(self, now: Now, label: str) -> None:
        """Send the snapshot. Separate from `open`, so that the answer goes out first."""
        self._runtime.live.watch(now, self._watchers[label])

    def grant(self, label: str, n: int) -> int | Refusal:
        watcher = self._watchers[label]
        refusal = watcher.grant(self._runtime.machine.limits.credit_max, n)
        if refusal is not None:
            return refusal
        self._runtime.live.granted(watcher)
        return watcher.credit or 0

    def close(self, label: str) -> None:
        self._runtime.live.unwatch(self._watchers.pop(label))
