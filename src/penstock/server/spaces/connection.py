"""The connection of a participant: frames skip the session, everything else goes through the runtime.

The writers of a stream with `overflow: wait` are not read while a target is too far behind. The outbox of a target says when that is so
(`core/fanout/outbox.py`). A target that takes nothing for `limits.space_wait_ms` is removed from the stream, so two streams that wait for
each other come to an end. Progress is what leaves the buffer of the target's socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.core.clock import Now
from penstock.core.fanout.frame_router import MARK, FrameRoute
from penstock.core.fanout.outbox import Outbox
from penstock.dialects.mew import frames
from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.session import MewSession
from penstock.server.engine.connections import Connection

if TYPE_CHECKING:
    from penstock.server.spaces.host import Spaces


class Sink(Protocol):
    """A participant without a connection, such as a file."""

    def taken(self, now: Now, outbox: Outbox) -> None:
        """There is something in its outbox."""


class SpaceConnection(Connection):
    """A participant's WebSocket. Frames bypass the session's parser, because they are most of the traffic."""

    __slots__ = ("spaces",)

    session: MewSession
    spaces: Spaces

    def received(self, data: bytes) -> None:
        if self.closed:
            return
        session = self.session
        session.is_alive = True
        spaces = self.spaces
        if data and data[0] == MARK and session.publish(data):
            if not spaces.is_turn_due:
                spaces.schedule_turn()
            return
        spaces.schedule_turn()
        self._runtime.received(self, data)

    def pong_received(self) -> None:
        """The peer has answered a ping."""
        self.session.is_alive = True

    def congested(self, on: bool) -> None:
        outbox = self.session.outbox
        outbox.stuck = on
        if not on and outbox:
            self.spaces.waiting[outbox] = None
            self.spaces.schedule_turn()
        super().congested(on)

    @property
    def party(self) -> tuple[bool, str]:
        space, who = self.session.space, self.session.participant
        return super().party if space is None or who is None else (False, f"{who.party} of space {space.id}")

    def unread(self) -> int:
        return super().unread() + self.session.outbox.size

    def cut(self, size: int) -> None:
        if self.session.space is not None:
            self.session.space.slow_cut += 1
        super().cut(size)

    def gone(self, now: Now) -> None:
        self.session.left(now, "disconnected")
        self.spaces.sessions.pop(self.session, None)
        self.spaces.schedule_turn()
        if self.session.closing is not None:
            code, reason = self.session.closing
            self.spaces.log("space.ended", link=self.link.no, peer=self.peer, code=code, reason=reason)


LOOKS = 5
"""How often a target is looked at while it may be behind without progress."""
OVERRUN = 16
"""How many times `limits.space_wait_max` may wait for one target: writers that cannot be stopped, such as the pipeline, end there."""


class StreamWaits:
    """Who waits for whom."""

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._routes: dict[FrameRoute, SpaceMachine] = {}
        """Streams with a target that is behind."""
        self._progress: dict[tuple[FrameRoute, Outbox], tuple[int, int]] = {}
        """When each of these targets last took something, and how much its socket had to take then."""
        self._blocked: dict[MewSession, None] = {}
        """Writers that are not read."""
        self._is_armed = False

    def turn(self, now: Now) -> None:
        """Stop reading the writers of streams with a target that is behind, and resume those of all others."""
        for space in self._spaces.spaces.values():
            if space.router.blocked:
                self._routes |= dict.fromkeys(space.router.blocked, space)
                space.router.blocked.clear()
        if not self._routes and not self._blocked:
            return
        blocked = self._survey(now)
        most = OVERRUN * self._spaces.limits.space_wait_max
        for route, outbox in list(self._progress):
            if outbox.waits > most:
                self._remove(now, route, outbox, f"has {outbox.waits} bytes to read, and {most} may wait")
        for session in self._blocked | blocked:
            is_blocked = session in blocked
            connection = self._spaces.runtime.peers.find(session)
            if session.is_blocked != is_blocked and connection is not None:
                session.is_blocked = is_blocked
                self._spaces.runtime.peers.touch(connection)
        self._blocked = blocked
        if self._routes and not self._is_armed:
            self._is_armed = True
            pause_us = self._spaces.limits.space_wait_ms * 1000 // LOOKS
            self._spaces.runtime.scheduler.at(now.us + pause_us, self._look)

    def _survey(self, now: Now) -> dict[MewSession, None]:
        """Forget targets that caught up or left; returns the writers of the rest."""
        before, self._progress = self._progress, {}
        blocked: dict[MewSession, None] = {}
        for route, space in list(self._routes.items()):
            audience = space.router.audience(route) if space.router.routes.get(route.key) is route else ()
            route.full = {outbox: None for outbox in route.full if outbox in audience}
            for outbox in route.full:
                self._progress[route, outbox] = before.get((route, outbox)) or (now.us, self._unread(outbox))
            if not route.full:
                del self._routes[route]
                continue
            writers = [space.present[name].outbox for name in route.writers if name in space.present]
            owners = [writer.owner for writer in writers if writer is not None]
            blocked |= {owner: None for owner in owners if isinstance(owner, MewSession) and owner.closing is None}
        return blocked

    def _unread(self, outbox: Outbox) -> int:
        """Bytes that the socket of a target has not taken."""
        session = outbox.owner
        connection = self._spaces.runtime.peers.find(session) if isinstance(session, MewSession) else None
        return 0 if connection is None else connection.wire.buffered

    def _look(self) -> None:
        """Remove targets that made no progress."""
        self._is_armed = False
        now = self._spaces.runtime.scheduler.now()
        wait_ms = self._spaces.limits.space_wait_ms
        for (route, outbox), (since_us, left) in list(self._progress.items()):
            unread = self._unread(outbox)
            since_us = now.us if unread < left else since_us
            self._progress[route, outbox] = (since_us, unread)
            if now.us - since_us >= wait_ms * 1000 and outbox in route.full:
                self._remove(now, route, outbox, f"has taken nothing for {wait_ms} ms")
        self._spaces.schedule_turn()

    def _remove(self, now: Now, route: FrameRoute, outbox: Outbox, why: str) -> None:
        space = self._routes[route]
        removed = frames.remove_target(space, now, route, outbox, why)
        self._spaces.log("space.target_removed", space=space.id, stream=route.id, participant=removed, reason=why)
        self._spaces.schedule_turn()
